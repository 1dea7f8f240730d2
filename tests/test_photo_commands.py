"""The commands for photos: what they print, where, and their exit codes."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
import time
import tracemalloc
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from photo_helper import NOT_AN_IMAGE, TINY, command, write_bad, write_photos
from PIL import Image
from rich.console import Console

from treering import Budget, Learner, Recipe, evaluation, prediction
from treering.evaluation import Evaluation
from treering.images import files as image_files
from treering.images import folders as images
from treering.methods import speed
from treering.photos import overview
from treering.photos.console import Printer
from treering.prediction import Prediction, Teller
from treering.storage import model_folder

CLASSES = ["cat", "dog", "owl"]


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of this machine is not measured."""
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has learnt cats and dogs and then owls, and photos of them that it has not seen."""
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder / "first", {"cat": 12, "dog": 10})
    write_photos(folder / "second", {"owl": 11})
    write_photos(folder / "test", {"cat": 3, "dog": 4, "owl": 5}, seed=1)
    assert command("learn", folder / "model", folder / "first", *TINY).code == 0
    assert command("learn", folder / "model", folder / "second", "--device", "cpu").code == 0
    return folder


@pytest.fixture(scope="module")
def learner(place: Path) -> Learner:
    return Learner.load(place / "model", device="cpu")


def probabilities(learner: Learner, files: list[Path]) -> np.ndarray:
    return learner.predict_proba(np.stack([image_files.read(file, 20) for file in files]))


def manifest(model: Path) -> dict[str, Any]:
    return json.loads((model / "manifest.json").read_bytes())


# learn


def test_learn_says_what_it_found_and_what_came_of_it(tmp_path: Path) -> None:
    first = write_photos(tmp_path / "first", {"cat": 12, "dog": 10})
    done = command("learn", tmp_path / "model", first, *TINY)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:4] == [
        f"{tmp_path / 'model'} is a new model (small).",
        f"{first} has 2 new classes with 22 images.",
        "  cat: 12 images",
        "  dog: 10 images",
    ]
    assert any(line.startswith("It keeps at most 6 images of each class") for line in lines)
    assert any(re.fullmatch(r"Step 1 is learnt, in \d+ s\.", line) for line in lines)
    assert any(re.match(r"Accuracy: \d of 2 images that it was not trained on: ", line) for line in lines)
    second = write_photos(tmp_path / "second", {"owl": 11, "dog": 5})
    done = command("learn", tmp_path / "model", second, "--device", "cpu")
    assert f"{second} has 1 new class with 11 images and 1 known class with 5 images." in done.out.splitlines()
    assert "new model" not in done.out
    assert "Step 2 is learnt" in done.out
    assert "  classes known before: " in done.out
    assert "  new classes: " in done.out
    history = Learner.load(tmp_path / "model").history_
    assert [record["new_classes"] for record in history] == [["cat", "dog"], ["owl"]]
    measured = history[1]["accuracy"]
    assert measured["images"] == 3, "a cat and a dog of the first step, an owl; the dogs' share is full"
    assert f"of 3 images that it was not trained on: {measured['all']:.1f} %" in done.out


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 3, "dog": 3})
    done = command("learn", tmp_path / "model", photos, "--dry-run", *TINY)
    assert (done.code, done.err) == (0, "")
    assert "Training takes about" in done.out
    assert "is learnt" not in done.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_the_same_command_gives_the_same_model(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 6, "dog": 6})
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        assert command("learn", tmp_path / name, photos, *TINY, "--seed", seed).code == 0
    weights = [manifest(tmp_path / name)["files"]["weights"]["sha256"] for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


def test_a_validation_folder_measures_and_nothing_is_held_out(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 6, "dog": 6})
    checks = write_photos(tmp_path / "checks", {"cat": 2, "dog": 3, "owl": 4}, seed=1)
    done = command("learn", tmp_path / "model", photos, "--validation", checks, *TINY)
    assert (done.code, done.err) == (0, "")
    right = sum(
        name == said
        for name in ("cat", "dog")
        for said in Learner.load(tmp_path / "model").predict(
            np.stack([image_files.read(file, 20) for file in sorted((checks / name).iterdir())])
        )
    )
    assert f"Accuracy: {right} of 5 images of the validation folder: {100 * right / 5:.1f} %" in done.out
    assert manifest(tmp_path / "model")["files"]["held_out"] == [[], []]


def test_settings_of_a_model_cannot_be_changed_later(place: Path) -> None:
    for more in (["--backbone", "resnet18"], ["--set", "memory.held_out=0"], ["--set", "training.epochs=2"]):
        command("learn", place / "model", place / "second", *more).refused("is a model already")


def test_photos_cannot_be_added_to_a_model_of_numbers(tmp_path: Path) -> None:
    from conftest import examples, tiny_learner

    tiny_learner(backbone="small").partial_fit(*examples({1: 4, 2: 4})).save(tmp_path / "model")
    photos = write_photos(tmp_path / "photos", {"cat": 2})
    command("learn", tmp_path / "model", photos, "--device", "cpu").refused("are numbers")


def test_copies_and_images_in_two_classes_are_printed(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "first" / "cat", tmp_path / "again" / "cat")
    shutil.copytree(place / "first" / "cat", tmp_path / "again" / "lynx")
    done = command("learn", place / "model", tmp_path / "again", "--dry-run", "--device", "cpu")
    assert "The same photo in two classes: 12 images." in done.out
    assert f"and {tmp_path / 'again' / 'lynx' / '000.png'} (class lynx) show the same photo" in done.out
    assert "a kept photo of class cat and " in done.out
    assert re.search(r"Left out, because they show the same as others of their class: \d+ images\.", done.out)


def test_held_out_images_that_a_smaller_memory_has_no_room_for_are_told(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    third, fourth = (write_photos(tmp_path / name, {name: 8}) for name in ("ant", "bee"))
    done = command("learn", tmp_path / "model", third, "--memory", 1, "--device", "cpu")
    assert "It keeps at most 1 image of each class." in done.out
    assert "Dropped, because the memory has no more room for held-out images: 3 images." in done.out
    assert "No image is held out: no part of the memory is set aside for it." in done.out
    assert " of 3 images that it was not trained on, of 3 of the 4 classes: " in done.out
    done = command("learn", tmp_path / "model", fourth, "--memory", 10, "--device", "cpu")
    assert " of 1 image that it was not trained on, of 1 of the 5 classes: " in done.out
    few = write_photos(tmp_path / "few", {"fly": 2})
    done = command("learn", tmp_path / "model", few, "--dry-run", "--device", "cpu")
    assert "No image is held out: that takes classes of 5 images or more." in done.out


def test_settings_that_a_method_cannot_work_with_are_refused_before_the_plan(place: Path, tmp_path: Path) -> None:
    for more in (["--dry-run"], []):
        done = command("learn", tmp_path / "model", place / "first", *TINY, "--set", "method=gem", *more)
        done.refused("GEM keeps a random sample of each step: set memory.kind to per-step")
        assert done.out == ""
        done = command("learn", tmp_path / "model", place / "first", *TINY, "--set", "memory.kind=per-step", *more)
        done.refused("eeil cannot keep a per-step memory")
        assert done.out == ""


def test_a_method_without_a_memory_says_so_and_can_be_exported(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = command("learn", tmp_path / "model", place / "first", *TINY, "--set", "method=finetune")
    assert "It keeps no image but held-out ones: finetune has no memory." in done.out
    assert command("export", tmp_path / "model", tmp_path / "model.onnx").code == 0


def test_a_method_that_keeps_every_image_says_so(place: Path, tmp_path: Path) -> None:
    done = command("learn", tmp_path / "model", place / "first", *TINY, "--set", "method=joint", "--dry-run")
    assert "It keeps every image: joint trains on all of them in each step." in done.out


def test_a_backbone_is_not_chosen_without_its_settings(place: Path, tmp_path: Path) -> None:
    arguments = ("learn", tmp_path / "model", place / "first", "--set", "backbone=resnet18", "--dry-run")
    command(*arguments, "--backbone", "resnet32").refused("choose the backbone by --backbone resnet18")
    assert command(*arguments, "--backbone", "resnet18").code == 0


def test_a_version_that_a_killed_writer_left_is_no_earlier_one(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    assert command("learn", model, place / "first", *TINY).code == 0
    (model / "previous").mkdir()
    shutil.copy(model / "manifest.json", model / "previous" / "0001.json")
    assert "Earlier versions that undo can go back to: 0" in command("info", model).out
    command("undo", model).refused("no version to go back to")


def test_a_damaged_earlier_version_does_not_hide_the_model(place: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    assert command("learn", model, place / "first", *TINY).code == 0
    (model / "previous").mkdir()
    (model / "previous" / "0001.json").write_text("{")
    done = command("info", model)
    assert (done.code, done.err) == (0, "")


def test_a_model_of_grey_images_learns_photos_as_grey(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 5, "dog": 5})
    pixels = {
        name: np.stack([image_files.read(file, 12, 1)[..., 0] for file in (folder / name).iterdir()])
        for name in ("cat", "dog")
    }
    taught = Learner("small", memory=20, recipe=Recipe.find("digits"), device="cpu")
    taught.partial_fit(np.concatenate(list(pixels.values())), ["cat"] * 5 + ["dog"] * 5).save(tmp_path / "model")
    more = write_photos(tmp_path / "more", {"owl": 5})
    done = command("learn", tmp_path / "model", more, "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    owls = Learner.load(tmp_path / "model").exemplars_["owl"]
    assert owls.shape[1:] == (12, 12, 1)
    given = {image_files.read(file, 12, 1).tobytes() for file in (more / "owl").iterdir()}
    assert {owl.tobytes() for owl in owls} <= given


def test_a_folder_of_one_part_is_no_class_but_one_called_train_may_be(tmp_path: Path) -> None:
    write_photos(tmp_path / "birds" / "Train", {"cat": 3, "dog": 3})
    inside = tmp_path / "birds" / "Train"
    refusal = f"has one folder, Train, with folders in it, not classes: give {inside}"
    command("learn", tmp_path / "model", tmp_path / "birds", *TINY).refused(refusal)
    images.scan(write_photos(tmp_path / "toys", {"train": 3}))
    write_photos(tmp_path / "birds" / "Test", {"cat": 3, "dog": 3})
    write_photos(tmp_path / "birds" / "train", {"owl": 3})
    both = f"{tmp_path / 'birds'} has the folders Test and Train and train, not classes: give one of them"
    command("learn", tmp_path / "model", tmp_path / "birds", *TINY).refused(both)


def test_a_folder_with_train_and_val_is_not_two_classes(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_photos(tmp_path / "birds" / part, {"cat": 3, "dog": 3})
    refusal = f"{tmp_path / 'birds'} has the folders train and val, not classes: give one of them"
    command("learn", tmp_path / "model", tmp_path / "birds", *TINY).refused(refusal)
    write_photos(tmp_path / "birds", {"bus": 3})
    assert command("learn", tmp_path / "model", tmp_path / "birds", "--dry-run", *TINY).code == 0


def test_a_model_is_not_a_folder_of_images(place: Path, tmp_path: Path) -> None:
    command("learn", tmp_path / "model", place / "model", *TINY).refused(f"{place / 'model'} is a model")
    command("evaluate", place / "model", place / "model").refused(f"{place / 'model'} is a model")
    plain = tmp_path / "plain"
    assert command("learn", plain, place / "first", *TINY, "--set", "method=finetune").code == 0
    command("learn", tmp_path / "model", plain, *TINY).refused(f"{plain} is a model")


def test_a_model_whose_first_step_is_not_learnt_yet_says_so(place: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".learning").touch()
    for name in ("info", "undo"):
        command(name, tmp_path / "model").refused("has no model yet: its first step is under way, or was interrupted")


# predict


def test_predict_names_the_most_probable_classes_best_first(place: Path, learner: Learner) -> None:
    files = sorted((place / "test").rglob("*.png"))
    done = command("predict", place / "model", place / "test", "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    expected = []
    for file, row in zip(files, probabilities(learner, files), strict=True):
        best = sorted(zip(-row, learner.classes_, strict=True))
        expected.append(f"{file}: " + ", ".join(f"{name} {-100 * value:.1f} %" for value, name in best))
    assert done.out.splitlines() == expected


@pytest.mark.parametrize("top", [1, 2, 3, 50])
def test_json_lines_hold_the_top_classes(place: Path, learner: Learner, top: int) -> None:
    files = sorted((place / "test").rglob("*.png"))
    done = command("predict", place / "model", place / "test", "--json", "--top", top)
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["file"] for record in records] == [str(file) for file in files]
    for record, row in zip(records, probabilities(learner, files), strict=True):
        assert set(record) == {"file", "predictions"}
        found = record["predictions"]
        assert len(found) == min(top, 3)
        assert [one["probability"] for one in found] == pytest.approx(sorted(row, reverse=True)[:top], abs=2e-6)
        assert found[0]["class"] == learner.classes_[row.argmax()]


def test_files_and_folders_are_answered_in_the_order_given(place: Path) -> None:
    test = place / "test"
    given = [test / "owl" / "002.png", test / "dog", test / "cat" / "001.png", test / "owl" / "002.png"]
    done = command("predict", place / "model", *given, "--json")
    found = [json.loads(line)["file"] for line in done.out.splitlines()]
    dogs = [str(file) for file in sorted((test / "dog").iterdir())]
    assert found == [str(given[0]), *dogs, str(given[2]), str(given[3])]


def test_what_cannot_be_read_is_said_in_its_place_and_exit_code_1(tmp_path: Path, place: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2})
    bad = write_bad(folder / "cat", "text.png")
    given = [folder / "missing.jpg", folder]
    done = command("predict", place / "model", *given)
    assert done.code == 1
    assert done.err.splitlines() == [f"{given[0]}: No such file or directory", f"{bad}: {NOT_AN_IMAGE}"]
    assert [line.partition(":")[0] for line in done.out.splitlines()] == sorted(
        str(file) for file in (folder / "cat").glob("0*.png")
    )
    as_json = command("predict", place / "model", *given, "--json")
    assert (as_json.code, as_json.err) == (1, "")
    records = [json.loads(line) for line in as_json.out.splitlines()]
    assert [record.get("error") for record in records] == ["No such file or directory", None, None, NOT_AN_IMAGE]
    assert [len(record["predictions"]) for record in records] == [0, 2 + 1, 2 + 1, 0]


def test_a_folder_without_files_is_one_line(tmp_path: Path, place: Path) -> None:
    command("predict", place / "model", tmp_path).refused("no files in", str(tmp_path))


def test_answers_of_the_first_files_come_before_the_others_are_read(
    place: Path, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "BATCH", 4)
    seen: list[Path] = []
    read = image_files.read
    monkeypatch.setattr(image_files, "read", lambda file, *size: (seen.append(file), read(file, *size))[1])
    files = sorted((place / "test").rglob("*.png"))
    answers = evaluation.teller(learner.learnt_model()).predictions(files, 1)
    assert seen == []
    for number, answer in enumerate(answers):
        assert answer.file == files[number]
        assert len(seen) == min(len(files), 4 * (number // 4 + 1))


def test_the_command_prints_answers_as_they_come(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "BATCH", 4)
    printed: list[int] = []
    read = image_files.read

    def watched(file: Path, *size: int) -> np.ndarray:
        buffer = sys.stdout.buffer
        assert isinstance(buffer, io.BytesIO)
        printed.append(buffer.getvalue().count(b"\n"))
        return read(file, *size)

    monkeypatch.setattr(image_files, "read", watched)
    assert command("predict", place / "model", place / "test").code == 0
    assert printed == [0] * 4 + [4] * 4 + [8] * 4


def test_predicting_one_file_or_many_gives_the_same_answer(place: Path) -> None:
    together = command("predict", place / "model", place / "test").out.splitlines()
    alone = [command("predict", place / "model", file).out for file in sorted((place / "test").rglob("*.png"))]
    assert [line + "\n" for line in together] == alone


# evaluate


def table_rows(printed: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if line.startswith("│")]


def test_evaluation_counts_as_one_does_by_hand(place: Path, learner: Learner) -> None:
    counts = {name: dict.fromkeys(CLASSES, 0) for name in CLASSES}
    for file in sorted((place / "test").rglob("*.png")):
        counts[file.parent.name][str(learner.predict(image_files.read(file, 20)[None])[0])] += 1
    found = evaluation.evaluate(learner.learnt_model(), place / "test")
    assert (found.classes, found.new_classes, found.skipped, found.images) == (CLASSES, {"owl"}, [], 12)
    assert found.confusion == [list(counts[name].values()) for name in CLASSES]
    right = {name: counts[name][name] for name in CLASSES}
    done = command("evaluate", place / "model", place / "test")
    assert (done.code, done.err) == (0, "")
    shares = {"cat": right["cat"] / 3, "dog": right["dog"] / 4, "owl": right["owl"] / 5}
    assert [row[:3] for row in table_rows(done.out)] == [
        [name, str(number), f"{100 * shares[name]:.1f} %"] for name, number in (("cat", 3), ("dog", 4), ("owl", 5))
    ]
    assert f"Accuracy: {100 * sum(right.values()) / 12:.1f} % of 12 images" in done.out
    assert f"  classes of earlier steps: {100 * (right['cat'] + right['dog']) / 7:.1f} %" in done.out
    assert f"  classes of the last step: {100 * right['owl'] / 5:.1f} %" in done.out


def test_the_printed_numbers_of_a_scripted_model(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cats: 2 of 3 right, one taken for an owl. Dogs: 1 of 4, two taken for cats, one for an owl. Owls: 5 of 5."""
    script = {"cat": "cat owl cat", "dog": "cat dog cat owl", "owl": "owl owl owl owl owl"}

    def scripted(teller: Teller, files: list[Path], top: int) -> Any:
        said = script[files[0].parent.name].split()
        return (Prediction(file, [(name, 0.9)]) for file, name in zip(files, said, strict=True))

    monkeypatch.setattr(Teller, "predictions", scripted)
    done = command("evaluate", place / "model", place / "test", "--picture", tmp_path / "confusion.png")
    assert (done.code, done.err) == (0, "")
    assert table_rows(done.out) == [
        ["cat", "3", "66.7 %", "owl (1)"],
        ["dog", "4", "25.0 %", "cat (2)"],
        ["owl", "5", "100.0 %", ""],
    ]
    assert done.out.splitlines()[-4:] == [
        "Accuracy: 66.7 % of 12 images",
        "  classes of earlier steps: 42.9 %",
        "  classes of the last step: 100.0 %",
        f"The confusion matrix is in {tmp_path / 'confusion.png'}",
    ]
    with Image.open(tmp_path / "confusion.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        assert len(picture.convert("RGB").getcolors(2**24)) > 10


def test_accuracy_is_over_the_images_of_the_classes_asked_for() -> None:
    found = Evaluation(["a", "b", "c"], {0: Counter({0: 1, 1: 1}), 1: Counter({1: 6, 2: 2})}, {"b", "c"}, [])
    assert found.images == 10
    assert found.confusion == [[1, 1, 0], [0, 6, 2], [0, 0, 0]]
    assert [found.most_confused(index) for index in range(3)] == [("b", 1), ("c", 2), ("", 0)]
    assert found.accuracy() == 70
    assert found.accuracy(["a"]) == 50
    assert found.accuracy(["b", "c"]) == 75
    assert found.accuracy(["c"]) is None
    assert found.accuracy([]) is None


def test_classes_that_the_model_does_not_know_are_named(place: Path, tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "zebra": 2})
    done = command("evaluate", place / "model", folder)
    assert done.code == 0
    assert f"{folder / 'zebra'}: the model does not know this class" in done.out
    assert "of 2 images" in done.out
    assert [row[0] for row in table_rows(done.out)] == ["cat"]
    write_photos(tmp_path / "other", {"zebra": 1, "yak": 1})
    command("evaluate", place / "model", tmp_path / "other").refused("no image of a class", "cat, dog, owl")


def test_after_one_step_there_are_no_old_and_new_classes(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 3, "dog": 3})
    assert command("learn", tmp_path / "model", photos, *TINY).code == 0
    done = command("evaluate", tmp_path / "model", photos)
    assert "of 6 images" in done.out
    assert "step" not in done.out


@pytest.mark.parametrize("name", ["nowhere/a.png", "a.nonsense"])
def test_a_picture_that_cannot_be_written_is_one_line(place: Path, tmp_path: Path, name: str) -> None:
    command("evaluate", place / "model", place / "test", "--picture", tmp_path / name).refused("cannot write", name)
    command("info", place / "model", "--gallery", tmp_path / name).refused("cannot write", name)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_without_matplotlib_is_one_line(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    done = command("evaluate", place / "model", place / "test", "--picture", tmp_path / "a.png")
    done.refused("needs matplotlib", "pip install")
    assert done.out == "", "nothing is evaluated first"


@pytest.mark.parametrize("names", [["猫", "🦉", "dog"], ["$a$", "b_{x}", "\\alpha$"], ["c" * 200, "$" * 30, "e"]])
def test_names_in_pictures_are_drawn_as_they_are(tmp_path: Path, names: list[str]) -> None:
    photos = write_photos(tmp_path / "photos", dict.fromkeys(names, 2))
    assert command("learn", tmp_path / "model", photos, *TINY).code == 0
    done = command("evaluate", tmp_path / "model", photos, "--picture", tmp_path / "a.png")
    assert (done.code, done.err) == (0, "")
    done = command("info", tmp_path / "model", "--gallery", tmp_path / "b.png")
    assert (done.code, done.err) == (0, "")


# info


def test_info_shows_steps_memory_sizes_and_settings(place: Path, learner: Learner) -> None:
    done = command("info", place / "model")
    assert (done.code, done.err) == (0, "")
    rows = table_rows(done.out)
    history = learner.history_
    assert [row[0] for row in rows[2:]] == ["cat", "dog", "owl"]
    assert [(row[0], row[2], row[3]) for row in rows[:2]] == [("1", "cat, dog", "20"), ("2", "owl", "10")]
    assert [row[4] for row in rows[:2]] == [f"{record['accuracy']['all']:.1f} %" for record in history]
    held_out = {"cat": 1, "dog": 1, "owl": 1}
    kept = {name: len(part) for name, part in learner.exemplars_.items()}
    assert all(kept[name] + held_out[name] <= 6 for name in kept)
    assert f"Memory: {sum(kept.values())} exemplars of 3 classes, and 3 held-out images" in done.out
    for name, count in kept.items():
        assert f"  {name}: {count} + 1\n" in done.out
    assert "Recipe: eeil, small, 1 + 1 epochs" in done.out
    assert "Earlier versions that undo can go back to: 1" in done.out
    assert "interrupted" not in done.out


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the system keeps its time zone to itself")
def test_info_tells_the_time_of_the_place(place: Path, learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "JST-9")
    time.tzset()
    try:
        shown = [row[1] for row in table_rows(command("info", place / "model").out)[:2]]
    finally:
        monkeypatch.undo()
        time.tzset()
    utc = [datetime.fromisoformat(record["time"]).replace(tzinfo=None) for record in learner.history_]
    assert shown == [f"{moment + timedelta(hours=9):%Y-%m-%d %H:%M}" for moment in utc]


def test_the_sizes_add_up_to_the_folder(place: Path) -> None:
    found = overview.of(place / "model")
    on_disk = {file for file in (place / "model").rglob("*") if file.is_file()}
    assert sum(found.bytes_by_kind.values()) == sum(file.stat().st_size for file in on_disk)
    assert found.bytes_by_kind["weights"] == sum(file.stat().st_size for file in (place / "model").glob("weights*"))


@pytest.mark.parametrize(("saved", "said"), [(True, "has learnt the step"), (False, "is as it was: run the same")])
def test_an_interrupted_learn_says_which_model_is_there(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool, said: str
) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    write_photos(tmp_path / "more", {"fox": 5})
    replace = model_folder.replace

    def interrupted(*arguments: Any) -> None:
        if saved:
            replace(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(model_folder, "replace", interrupted)
    done = command("learn", tmp_path / "model", tmp_path / "more", "--device", "cpu")
    assert done.code == 130
    assert said in done.err
    assert ("fox" in Learner.load(tmp_path / "model").classes_) == saved


def test_info_says_that_a_step_was_interrupted(place: Path) -> None:
    (place / "model" / ".learning").write_bytes(b"x")
    try:
        done = command("info", place / "model")
        assert "interrupted" in done.out
        assert "run the same command again" in done.out
        on_disk = sum(file.stat().st_size for file in (place / "model").rglob("*") if file.is_file())
        assert sum(overview.of(place / "model").bytes_by_kind.values()) == on_disk
    finally:
        (place / "model" / ".learning").unlink()


def test_the_gallery_of_many_classes_is_no_larger_than_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MOST_ROWS", 3)
    heights = []
    for count in (2, 3, 4, 500):
        learner: Any = SimpleNamespace(exemplars_={f"c{row}": np.zeros((1, 8, 8, 3), np.uint8) for row in range(count)})
        overview.draw_gallery(learner, tmp_path / "gallery.png")
        with Image.open(tmp_path / "gallery.png") as page:
            heights.append(page.height)
    assert heights[0] < heights[1] < heights[2] == heights[3], "a last row says how many more there are"


def test_the_gallery_shows_every_exemplar_in_a_row_of_its_class(place: Path, learner: Learner, tmp_path: Path) -> None:
    done = command("info", place / "model", "--gallery", tmp_path / "gallery.png")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith(f"The exemplars are in {tmp_path / 'gallery.png'}\n")
    with Image.open(tmp_path / "gallery.png") as picture:
        assert picture.format == "PNG"
        page = np.asarray(picture.convert("RGB")).astype(int)
    cell = overview.THUMBNAIL + overview.GAP
    most = max(len(ranked) for ranked in learner.exemplars_.values())
    assert page.shape == (3 * cell + overview.GAP, overview.NAME_WIDTH + most * cell + overview.GAP, 3)
    for row, ranked in enumerate(learner.exemplars_.values()):
        for column, exemplar in enumerate(ranked):
            top, left = overview.GAP + row * cell, overview.NAME_WIDTH + column * cell
            shown = page[top : top + overview.THUMBNAIL, left : left + overview.THUMBNAIL]
            assert shown.mean((0, 1)) == pytest.approx(exemplar.mean((0, 1)), abs=2)
        name = page[overview.GAP + row * cell :][: overview.THUMBNAIL, : overview.NAME_WIDTH]
        assert (name < 100).any(), "the class is written before its row"


def test_a_gallery_counts_the_exemplars_beyond_those_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import examples, tiny_learner

    monkeypatch.setattr(overview, "MOST_EXEMPLARS", 3)
    learner = tiny_learner(backbone="small", memory=Budget("per-class", 9))
    learner.partial_fit(*examples({"cat": 9, "dog": 2}))
    overview.draw_gallery(learner, tmp_path / "gallery.png")
    with Image.open(tmp_path / "gallery.png") as picture:
        page = np.asarray(picture.convert("L"))
    cell = overview.THUMBNAIL + overview.GAP
    assert page.shape == (2 * cell + overview.GAP, overview.NAME_WIDTH + 4 * cell + overview.GAP)
    counted = page[:, overview.NAME_WIDTH + 3 * cell :]
    assert (counted[:cell] < 100).any(), "and 6"
    assert (counted[cell:] == 255).all()


def test_the_picture_of_a_thousand_classes_is_no_larger_than_a_page(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(1000)]
    counts = {number: Counter({number: 1}) for number in range(1000)}
    evaluation.draw_confusion(Evaluation(names, counts, set(), []), tmp_path / "confusion.png")
    with Image.open(tmp_path / "confusion.png") as picture:
        assert max(picture.size) <= 4700


class Knowing:
    """A model of many classes that takes every image for the first."""

    classes = tuple(f"class {number:05}" for number in range(20_000))
    image_shape = (3, 8, 8)
    usual_distances = None
    history = ()

    def sorted_classes(self) -> tuple[str, ...]:
        return self.classes

    def answers(self, images: Any) -> tuple[np.ndarray, None]:
        return np.eye(len(images), len(self.classes))[[0] * len(images)], None


def test_evaluation_takes_memory_by_its_images_and_not_by_the_pairs_of_classes(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"class 00000": 2, "class 19999": 1})
    tracemalloc.start()
    found = evaluation.evaluate(Knowing(), photos)  # type: ignore[arg-type]
    evaluation.draw_confusion(found, tmp_path / "confusion.png")
    text = io.StringIO()
    Printer(Console(file=text, width=100)).evaluation(found)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 100e6
    assert [row[:3] for row in table_rows(text.getvalue())] == [
        ["class 00000", "2", "100.0 %"],
        ["class 19999", "1", "0.0 %"],
    ]
    assert (found.images, found.accuracy(["class 19999"]), found.most_confused(19_999)) == (3, 0, ("class 00000", 1))


def test_a_model_without_exemplars_has_no_gallery(tmp_path: Path) -> None:
    from conftest import examples, tiny_learner

    learner = tiny_learner(backbone="small", method="finetune").partial_fit(*examples({"cat": 4, "dog": 4}))
    learner.save(tmp_path / "model")
    done = command("info", tmp_path / "model")
    assert (done.code, done.err) == (0, "")
    command("info", tmp_path / "model", "--gallery", tmp_path / "a.png").refused("no exemplars")


# undo


def test_undo_goes_back_step_by_step(tmp_path: Path) -> None:
    model = tmp_path / "model"
    test = write_photos(tmp_path / "test", {"cat": 2}, seed=1)
    answers = []
    for number, names in enumerate((["cat", "dog"], ["owl"], ["eel"])):
        photos = write_photos(tmp_path / str(number), dict.fromkeys(names, 3))
        assert command("learn", model, photos, *(TINY if number == 0 else ["--device", "cpu"])).code == 0
        answers.append(command("predict", model, test, "--json", "--device", "cpu").out)
    for number, names in ((1, "3 classes again: cat, dog, owl"), (0, "2 classes again: cat, dog")):
        done = command("undo", model)
        assert (done.code, done.out, done.err) == (0, f"{model} knows {names}\n", "")
        assert command("predict", model, test, "--json", "--device", "cpu").out == answers[number]
    command("undo", model).refused("no version to go back to")
    assert command("predict", model, test, "--json", "--device", "cpu").out == answers[0]
    assert command("learn", model, tmp_path / "1", "--device", "cpu").code == 0
    assert command("predict", model, test, "--json", "--device", "cpu").out == answers[1], "as if nothing had been"


def test_no_more_versions_are_kept_than_asked_for(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 3, "dog": 3})
    assert command("learn", tmp_path / "model", photos, "--keep", 0, *TINY).code == 0
    more = write_photos(tmp_path / "more", {"owl": 3})
    assert command("learn", tmp_path / "model", more, "--keep", 0, "--device", "cpu").code == 0
    command("undo", tmp_path / "model").refused("no version to go back to")


# The same folder through Python.


def test_a_folder_batches_and_arrays_give_the_identical_model(tmp_path: Path) -> None:
    from conftest import state_of

    from treering import Recipe

    recipe = Recipe.find("photos-from-scratch").changed([part for part in TINY if "=" in part])
    counts = {"cat": 5, "dog": 4, "owl": 3}
    folder = write_photos(tmp_path / "photos", counts)
    labels = [name for name, count in counts.items() for _ in range(count)]
    files = sorted(folder.rglob("*.png"))
    pixels = np.stack([image_files.read(file, 20) for file in files])
    later = np.stack(
        [image_files.read(file, 20) for file in sorted(write_photos(tmp_path / "new", {"eel": 4}).rglob("*.png"))]
    )

    def batches(array: np.ndarray, names: list[str], size: int) -> Any:
        return ((array[i : i + size], names[i : i + size]) for i in range(0, len(array), size))

    def learner() -> Learner:
        return Learner(backbone="small", recipe=recipe, device="cpu")

    states = [
        state_of(learner().partial_fit(folder).partial_fit(tmp_path / "new")),
        state_of(learner().partial_fit(str(folder)).partial_fit(str(tmp_path / "new"))),
        state_of(learner().partial_fit(pixels, labels).partial_fit(later, ["eel"] * 4)),
        state_of(learner().partial_fit(batches(pixels, labels, 1)).partial_fit(batches(later, ["eel"] * 4, 3))),
        state_of(learner().partial_fit(batches(pixels, labels, 5)).partial_fit(later, ["eel"] * 4)),
        state_of(learner().partial_fit(torch.from_numpy(pixels).movedim(-1, 1), labels).partial_fit(tmp_path / "new")),
    ]
    assert all(state == states[0] for state in states)
    assert states[0]["classes"] == ["cat", "dog", "owl", "eel"]


def test_a_folder_in_python_names_what_it_leaves_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from treering import Recipe, TreeringError

    recipe = Recipe.find("photos-from-scratch").changed([part for part in TINY if "=" in part])
    learner = Learner(backbone="small", recipe=recipe, device="cpu")
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    bad = write_bad(folder / "cat", "empty.jpg")
    learner.partial_fit(folder)
    assert f"{bad} is left out: empty file" in caplog.text
    with pytest.raises(TreeringError, match="brings its own labels"):
        learner.partial_fit(folder, ["cat"])
    with pytest.raises(TreeringError, match="does not exist"):
        learner.partial_fit(tmp_path / "nowhere")
    write_bad(tmp_path / "bad" / "cat", "empty.jpg")
    with pytest.raises(TreeringError, match=r"no image in .* can be read"):
        learner.partial_fit(tmp_path / "bad")
    assert learner.classes_.tolist() == ["cat", "dog"]
