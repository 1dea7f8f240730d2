"""Datasets in folders: ImageNet's layout, a split where there is none, and a run over one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_helper import Finished, command, pixels_of, write_bad, write_photos

from treering import TreeringError, data
from treering.data import folder
from treering.images import files

COUNTS = {"cat": 6, "dog": 5, "owl": 4}


def split_dataset(place: Path, test: str = "val") -> Path:
    write_photos(place / "train", COUNTS)
    write_photos(place / test, {"cat": 2, "dog": 3, "owl": 1}, seed=1)
    return place


@pytest.mark.parametrize("test", ["val", "test", "validation"])
def test_training_and_test_images_come_from_their_folders(tmp_path: Path, test: str) -> None:
    place = split_dataset(tmp_path / "animals", test)
    found = folder.load(place, 12)
    assert (found.name, found.class_names) == ("animals", ("cat", "dog", "owl"))
    assert found.train_labels.tolist() == [0] * 6 + [1] * 5 + [2] * 4
    assert found.test_labels.tolist() == [0] * 2 + [1] * 3 + [2]
    for part, pixels in (("train", found.train_images), (test, found.test_images)):
        expected = [files.read(file, 12) for file in sorted((place / part).rglob("*.png"))]
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels, np.stack(expected))


def test_val_is_preferred_where_there_are_several(tmp_path: Path) -> None:
    write_photos(split_dataset(tmp_path / "animals") / "test", {"cat": 9, "dog": 9, "owl": 9})
    assert len(folder.load(tmp_path / "animals", 8).test_labels) == 6


@pytest.mark.parametrize(("count", "tests"), [(2, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3), (20, 4)])
def test_without_test_images_one_in_five_of_each_class_is_for_testing(tmp_path: Path, count: int, tests: int) -> None:
    place = write_photos(tmp_path / "animals", {"cat": count, "dog": 5})
    found = folder.load(place, 24)
    assert np.bincount(found.test_labels).tolist() == [tests, 1]
    assert np.bincount(found.train_labels).tolist() == [count - tests, 4]
    every = sorted(image.tobytes() for image in np.concatenate([found.train_images, found.test_images]))
    assert every == sorted(
        pixels_of(name, seed).tobytes() for name, n in (("cat", count), ("dog", 5)) for seed in range(n)
    )
    again = folder.load(place, 24)
    assert np.array_equal(again.test_images, found.test_images), "the split is always the same"


def test_one_image_in_a_class_is_too_few_to_split(tmp_path: Path) -> None:
    place = write_photos(tmp_path / "animals", {"cat": 5, "dog": 1})
    with pytest.raises(TreeringError, match="dog"):
        folder.load(place, 8)


def test_a_class_without_test_images_is_refused(tmp_path: Path) -> None:
    place = split_dataset(tmp_path / "animals")
    write_photos(place / "train", {"eel": 2})
    with pytest.raises(TreeringError, match=r"class eel of .*animals has no test images"):
        folder.load(place, 8)


def test_a_class_with_test_images_only_is_no_class_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = split_dataset(tmp_path / "animals")
    write_photos(place / "val", {"eel": 2, "yak": 1})
    assert folder.load(place, 8).class_names == ("cat", "dog", "owl")
    (record,) = caplog.records
    assert record.getMessage() == f"classes of {place / 'val'} without training images are left out: eel, yak"


@pytest.mark.parametrize("part", ["train", "val", ""])
def test_what_is_no_class_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str) -> None:
    place = split_dataset(tmp_path / "animals") if part else write_photos(tmp_path / "animals", COUNTS)
    (place / part / "empty").mkdir()
    (place / part / "loose.png").write_bytes(b"")
    folder.load(place, 8)
    assert {record.getMessage() for record in caplog.records} == {
        f"{place / part / 'empty'} is left out: no files in this class folder",
        f"{place / part / 'loose.png'} is left out: not in a class folder",
    }


@pytest.mark.parametrize("name", ["Train", "train"])
def test_a_class_may_be_called_train(tmp_path: Path, name: str) -> None:
    place = write_photos(tmp_path / "vehicles", {"Bus": 5, "Car": 5, name: 5})
    assert folder.load(place, 8).class_names == ("Bus", "Car", name)


def test_a_part_that_is_empty_or_flat_is_told(tmp_path: Path) -> None:
    flat = split_dataset(tmp_path / "flat")
    for file in list((flat / "val").rglob("*.png")):
        file.rename(flat / "val" / f"{file.parent.name}-{file.name}")
    for empty in ("cat", "dog", "owl"):
        (flat / "val" / empty).rmdir()
    with pytest.raises(TreeringError, match=r"val holds 6 files but no class folders"):
        folder.load(flat, 8)
    empty = split_dataset(tmp_path / "empty")
    shutil.rmtree(empty / "train")
    (empty / "train" / ".hidden").mkdir(parents=True)
    with pytest.raises(TreeringError, match=r"train has no class folders with images"):
        folder.load(empty, 8)


def test_a_folder_that_cannot_be_looked_into_is_left_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = split_dataset(tmp_path / "animals")
    (place / "lost+found").mkdir()
    iterdir = Path.iterdir

    def refused(path: Path) -> Any:
        if path.name == "lost+found":
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert folder.load(place, 8).class_names == ("cat", "dog", "owl")


def test_the_parts_may_be_capitalised(tmp_path: Path) -> None:
    place, other = split_dataset(tmp_path / "animals"), split_dataset(tmp_path / "others")
    (place / "train").rename(place / "Train")
    (place / "val").rename(place / "TEST")
    found, wanted = folder.load(place, 8), folder.load(other, 8)
    assert np.array_equal(found.train_images, wanted.train_images)
    assert np.array_equal(found.test_images, wanted.test_images)


def test_training_images_without_test_images_are_refused(tmp_path: Path) -> None:
    write_photos(tmp_path / "animals" / "train", COUNTS)
    with pytest.raises(TreeringError, match="none called val or test"):
        folder.load(tmp_path / "animals", 8)


def test_images_that_cannot_be_read_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = split_dataset(tmp_path / "animals")
    bad = [write_bad(place / "train" / "cat", "empty.jpg"), write_bad(place / "val" / "dog", "text.png")]
    found = folder.load(place, 8)
    assert (len(found.train_images), len(found.test_images)) == (15, 6)
    assert found.train_labels.tolist() == [0] * 6 + [1] * 5 + [2] * 4
    assert sorted(record.getMessage().partition(" is left out: ")[0] for record in caplog.records) == sorted(
        map(str, bad)
    )


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_class_without_a_readable_image_is_refused(tmp_path: Path, part: str) -> None:
    place = split_dataset(tmp_path / "animals")
    for file in (place / part / "dog").iterdir():
        file.write_bytes(b"")
    with pytest.raises(TreeringError, match=rf"no image of class dog in .*{part}/dog can be read"):
        folder.load(place, 8)


def test_images_that_do_not_fit_into_memory_are_refused_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = split_dataset(tmp_path / "animals")
    monkeypatch.setattr(files, "read", lambda *arguments: pytest.fail("an image was read"))
    with pytest.raises(TreeringError, match=r"21 images of .* take 630 GB .* 100000 x 100000 .*run.image_size"):
        folder.load(place, 100_000)
    monkeypatch.undo()
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 21 * 3, "SC_PAGE_SIZE": 64}.__getitem__)
    assert len(folder.load(place, 8).train_images) == 15, "exactly what the machine has"
    with pytest.raises(TreeringError, match="more than this machine has"):
        folder.load(place, 9)


def test_a_dataset_is_found_by_its_folders_name(tmp_path: Path) -> None:
    split_dataset(tmp_path / "animals")
    assert data.load("animals", tmp_path, image_size=9).train_images.shape == (15, 9, 9, 3)
    with pytest.raises(TreeringError, match=r"no dataset animal;.*train/<class>/<image>") as refused:
        data.load("animal", tmp_path)
    assert str(tmp_path / "animal") in str(refused.value)
    with pytest.raises(TreeringError, match="did you mean digits"):
        data.load("digit", tmp_path)


def test_a_dataset_that_is_not_there_is_named_with_what_to_do(tmp_path: Path) -> None:
    assert data.missing("digits", tmp_path) is None, "these come with a package"
    said = data.missing("animals", tmp_path)
    assert said is not None
    assert f"animals needs {tmp_path / 'animals'}" in said
    assert f"{tmp_path / 'animals'}/train/<class>/" in said
    (tmp_path / "animals").mkdir()
    assert data.missing("animals", tmp_path) is None


@pytest.mark.parametrize("inside", ["train/cat", "cat"])
def test_a_folder_with_a_built_in_datasets_name_is_not_passed_over(tmp_path: Path, inside: str) -> None:
    assert data.load("digits", tmp_path).name == "digits"
    (tmp_path / "digits" / inside).mkdir(parents=True)
    with pytest.raises(TreeringError, match=r"digits bears the name of a built-in dataset; rename the folder .*--data"):
        data.load("digits", tmp_path)


RECIPE = """
backbone = "small"
training = { epochs = 1, lr = 0.05 }
balanced = { epochs = 1, lr = 0.01 }
optimizer = { batch_size = 8 }
memory = { size = 6 }
augmentation = { kind = "photo", crop_size = 12, brightness = 10, contrast = [0.9, 1.1] }
run = { dataset = "animals", classes_per_step = 2, image_size = 16 }
"""


def run(place: Path, *more: str) -> Finished:
    (place / "tiny.toml").write_text(RECIPE)
    return command(
        "run", place / "tiny.toml", "--data", place, "--results", place / "results", "--device", "cpu", *more
    )


@pytest.mark.parametrize("layout", ["train and val", "classes only"])
def test_a_run_over_a_folder_of_images(tmp_path: Path, layout: str) -> None:
    if layout == "classes only":
        write_photos(tmp_path / "animals", COUNTS)
    else:
        split_dataset(tmp_path / "animals")
    done = run(tmp_path)
    assert (done.code, done.err) == (0, "")
    (file,) = (tmp_path / "results").glob("*.json")
    result = json.loads(file.read_text())
    assert result["dataset"] == "animals"
    assert sorted(result["class_order"]) == ["cat", "dog", "owl"]
    assert len(result["accuracy"]) == 2
    tests = 6 if layout == "train and val" else 2 + 1 + 1
    assert sum(map(sum, result["confusion"])) == tests
    first = file.read_bytes()
    assert run(tmp_path).code == 0
    assert file.read_bytes() == first, "a run that is done is not done again"


def test_a_run_without_its_folder_is_one_line(tmp_path: Path) -> None:
    run(tmp_path).refused("no dataset animals", str(tmp_path / "animals"))
    (tmp_path / "animals").mkdir()
    run(tmp_path).refused("has no class folders with images")
    write_bad(tmp_path / "animals" / "cat", "empty.jpg")
    write_photos(tmp_path / "animals", {"dog": 5})
    run(tmp_path).refused("class cat")
    assert not list(tmp_path.glob("results/*.json"))


def test_a_run_over_a_class_of_one_image_is_one_line(tmp_path: Path) -> None:
    write_photos(tmp_path / "animals", {"cat": 5, "dog": 5, "owl": 1})
    run(tmp_path).refused("owl")


@pytest.mark.parametrize("name", ["../up", "a/b", "n" * 300])
def test_a_dataset_of_an_odd_name_is_a_run_or_one_line(tmp_path: Path, name: str) -> None:
    if len(name) < 200:
        write_photos(tmp_path / "data" / name, {"cat": 5, "dog": 5})
    (tmp_path / "tiny.toml").write_text(RECIPE)
    place = ["--data", tmp_path / "data", "--results", tmp_path / "results", "--device", "cpu"]
    done = command("run", tmp_path / "tiny.toml", *place, "--set", f"run.dataset={name}")
    if done.code:
        done.refused()
    else:
        assert list((tmp_path / "results").rglob("*.json"))
