"""Folders as they are: whatever is wrong with one, the good images are learnt from, or one line says what is wrong."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from photo_helper import BAD_FILES, TINY, Finished, command, encoded, unreadable, write_bad, write_photos

from treering import Learner
from treering.methods import speed
from treering.photos import console
from treering.runtime import file_lock
from treering.storage.folder import Folder
from treering.words import shown


@pytest.fixture(autouse=True)
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of this machine is not measured."""
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows cats and dogs."""
    folder = tmp_path_factory.mktemp("model")
    done = command("learn", folder / "model", write_photos(folder / "photos", {"cat": 6, "dog": 6}), *TINY)
    assert done.code == 0, done
    return folder / "model"


def learnt(model: Path) -> dict[str, Any]:
    """What a model folder holds, without times of day."""
    manifest = json.loads((model / "manifest.json").read_bytes())
    kept = ("classes", "head_sizes", "generator", "recipe")
    facts = {name: manifest[name] for name in kept} | {"weights": manifest["files"]["weights"]}
    return facts | {kind: manifest["files"][kind] for kind in ("memory", "held_out")}


def fine(done: Finished) -> None:
    """Success, or bad input in one line; never a traceback (it would be raised), never a warning."""
    if done.code == 0:
        assert done.err == "", done
    else:
        done.refused()


def test_five_per_cent_of_bad_files_change_nothing_but_are_listed(tmp_path: Path) -> None:
    counts = {"cat": 60, "dog": 55, "owl": 55}
    clean, mixed = (write_photos(tmp_path / name, counts) for name in ("clean", "mixed"))
    bad = list(BAD_FILES)[:9]
    assert len(bad) / (sum(counts.values()) + len(bad)) == pytest.approx(0.05, abs=0.001)
    for name, file in zip(["cat", "dog", "owl", "cat", "dog", "owl", "cat", "dog", "owl"], bad, strict=True):
        write_bad(mixed / name, file)
    assert command("learn", tmp_path / "a", clean, *TINY).code == 0
    done = command("learn", tmp_path / "b", mixed, *TINY)
    assert (done.code, done.err) == (0, "")
    assert "Left out: 9\n" in done.out
    for name in bad:
        (line,) = (line for line in done.out.splitlines() if f"/{name}: " in line)
        assert line.endswith(BAD_FILES[name][1])
    assert "3 new classes with 170 images" in done.out
    assert learnt(tmp_path / "a") == learnt(tmp_path / "b")


def test_a_long_list_of_bad_files_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "MOST_LINES", 10)
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    for number in range(25):
        (folder / "cat" / f"{number}.jpg").write_bytes(b"")
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert "Left out: 25\n" in done.out
    assert done.out.count("empty file") == 10
    assert "… and 15 more" in done.out


@pytest.mark.parametrize("name", BAD_FILES)
def test_each_kind_of_bad_file_is_left_out_by_every_command(tmp_path: Path, model: Path, name: str) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 1})
    bad = write_bad(folder / "dog", name)
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert (done.code, done.err) == (0, "")
    assert f"{bad}: " in done.out
    asked = command("predict", model, folder)
    assert asked.code == 1
    assert asked.out.count("\n") == 3
    assert asked.err.startswith(f"{bad}: ")
    assert asked.err.count("\n") == 1
    measured = command("evaluate", model, folder)
    assert (measured.code, measured.err) == (0, "")
    assert f"{bad}: " in measured.out
    assert "of 3 images" in measured.out


def test_damaged_camera_data_is_not_worth_a_warning(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    exif = b"Exif\0\0MM\0*\0\0\xff\xff"
    (folder / "cat" / "x.jpg").write_bytes(encoded("JPEG", exif=exif))
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert (done.code, done.err) == (0, "")
    assert "2 new classes with 5 images" in done.out


def test_a_folder_of_bad_files_only_is_one_line(tmp_path: Path, model: Path) -> None:
    for name in BAD_FILES:
        write_bad(tmp_path / "photos" / "cat", name)
    command("learn", tmp_path / "model", tmp_path / "photos", *TINY).refused("no image in", "can be read")
    assert not (tmp_path / "model").exists()
    command("evaluate", model, tmp_path / "photos").refused("no image of a class that the model knows")


NAMES = {
    "spaces": ["  two  words ", "a b"],
    "Unicode": ["猫", "chien é", "🦉 owl"],
    "right to left": ["חתול", "كلب"],
    "markup": ["[bold]cat", "[x]", "$x$ & <b>"],
    "names of emoji": [":smile:", "a :cat: b"],
    "quotes and shell": ["'; rm -rf", '"dog"', "a`b`", "--help"],
    "control characters": ["a\tb", "\x1b[31mred", "bell\a"],
    "long": ["c" * 255, "d" * 255],
    "case": ["Cat", "cat"],
    "backslash": ["a\\b", "c:d"],
    "numbers": ["1", "2.5", "None", "true"],
    "dots": ["a.", ".b", "c.d"],
    "not UTF-8": [os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xff\xfe")],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_classes_of_any_name_are_learnt_and_named(tmp_path: Path, names: list[str]) -> None:
    seen = [name for name in names if not name.startswith(".")]
    folder = write_photos(tmp_path / "photos", dict.fromkeys(names, 5) | {"plain": 5})
    done = command("learn", tmp_path / "model", folder, *TINY)
    assert (done.code, done.err) == (0, "")
    assert Learner.load(tmp_path / "model").classes_.tolist() == sorted([*seen, "plain"])
    asked = command("predict", tmp_path / "model", folder / "plain", "--json", "--top", 9)
    named = {one["class"] for line in asked.out.splitlines() for one in json.loads(line)["predictions"]}
    assert named == {*seen, "plain"}
    for what, *rest in (["info"], ["evaluate", folder], ["predict", folder / names[0], "--top", 9]):
        after = command(what, tmp_path / "model", *rest)
        assert (after.code, after.err) == (0, ""), after
        in_table = all(len(name) < 20 and name.isprintable() for name in seen)
        assert not in_table or all(shown(name) in after.out for name in seen), after
    more = write_photos(tmp_path / "more", dict.fromkeys(names, 2) | {"plain": 2}, seed=1)
    again = command("learn", tmp_path / "model", more, "--device", "cpu")
    assert (again.code, again.err) == (0, ""), "its classes are known by the same names"
    assert f"{len(seen) + 1} known classes" in again.out
    assert command("undo", tmp_path / "model").code == 0


def test_hidden_folders_are_listed_and_not_learnt(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2, ".owl": 2})
    done = command("learn", tmp_path / "model", folder, *TINY)
    assert f"{folder / '.owl'}: hidden folder" in done.out
    assert Learner.load(tmp_path / "model").classes_.tolist() == ["cat", "dog"]


def test_accents_spelt_in_two_ways_are_one_class(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Bär") for form in ("NFC", "NFD"))
    folder = write_photos(tmp_path / "photos", {composed: 3, "cat": 3})
    later = write_photos(tmp_path / "later", {decomposed: 4})
    assert command("learn", tmp_path / "model", folder, *TINY).code == 0
    done = command("learn", tmp_path / "model", later, "--device", "cpu")
    assert "1 known class with 4 images" in done.out
    assert Learner.load(tmp_path / "model").classes_.tolist() == [composed, "cat"]
    assert "of 4 images" in command("evaluate", tmp_path / "model", later).out


def test_a_name_with_a_line_break_stays_on_one_line_of_an_error(tmp_path: Path, model: Path) -> None:
    command("learn", tmp_path / "model", tmp_path / "two\nlines", *TINY).refused()
    folder = write_photos(tmp_path / "photos", {"two\nlines": 5})
    command("learn", tmp_path / "model", folder, *TINY).refused("one readable class only")
    command("predict", tmp_path / "no\nmodel", folder).refused()


def test_a_class_name_with_a_line_break_does_not_end_in_a_traceback(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"two\nlines": 5, "cat": 5})
    assert command("learn", tmp_path / "model", folder, *TINY).code == 0
    assert command("evaluate", tmp_path / "model", folder, "--picture", tmp_path / "a.png").code == 0
    assert command("info", tmp_path / "model", "--gallery", tmp_path / "b.png").code == 0


def test_labels_with_slashes_are_saved_and_evaluated(tmp_path: Path) -> None:
    from conftest import examples, tiny_learner

    counts = {"a/b": 4, "../up": 4, "/": 4, ".": 4, "": 4}
    learner = tiny_learner(backbone="small").partial_fit(*examples(counts))
    learner.save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert Learner.load(tmp_path / "model").classes_.tolist() == sorted(counts)
    assert command("info", tmp_path / "model", "--gallery", tmp_path / "gallery.png").code == 0
    assert command("predict", tmp_path / "model", write_photos(tmp_path / "photos", {"x": 1})).code == 0


def test_one_class_only_is_one_line_for_a_new_model_but_not_later(tmp_path: Path, model: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 3}, seed=9)
    command("learn", tmp_path / "model", folder, *TINY).refused(str(folder), "one readable class only, cat")
    (folder / "dog").mkdir()
    command("learn", tmp_path / "model", folder, *TINY).refused("one readable class only, cat")
    assert not (tmp_path / "model").exists()
    assert command("learn", model, folder, "--dry-run").code == 0


def test_one_image_in_a_class_is_learnt_with_a_word_of_advice(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 1, "dog": 3})
    done = command("learn", tmp_path / "model", folder, *TINY)
    assert (done.code, done.err) == (0, "")
    assert "cat: 1 image only: give more, if you can" in done.out
    assert "dog: 3 images\n" in done.out
    assert "No image was held out" in done.out


def test_an_empty_class_folder_is_listed(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / "owl").mkdir()
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert f"{folder / 'owl'}: no files in this class folder" in done.out
    assert "2 new classes" in done.out


def test_loops_of_links_are_listed(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / "cat" / "loop").symlink_to(folder / "cat")
    (folder / "dog" / "gone.jpg").symlink_to(folder / "nowhere.jpg")
    (folder / "dog" / "itself.jpg").symlink_to(folder / "dog" / "itself.jpg")
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert (done.code, done.err) == (0, "")
    assert "2 new classes with 4 images" in done.out
    assert "loop: a link back to a folder already read" in done.out
    assert "gone.jpg: No such file or directory" in done.out
    assert "itself.jpg: Too many levels of symbolic links" in done.out


def test_links_to_the_folder_of_the_classes_and_above_it_are_no_classes(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / "all").symlink_to(".")
    (folder / "up").symlink_to("..")
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert "2 new classes with 4 images" in done.out
    for name in ("all", "up"):
        assert f"{folder / name}: a link back to a folder already read" in done.out
    assert "no files in this class folder" not in done.out


def test_a_model_below_a_class_or_among_images_to_predict_is_left_out(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    model = tmp_path / "photos" / "cat" / "model"
    assert command("learn", tmp_path / "model", folder, *TINY).code == 0
    shutil.copytree(tmp_path / "model", model)
    done = command("learn", tmp_path / "other", folder, "--dry-run", *TINY)
    assert "2 new classes with 4 images" in done.out
    assert f"{model}: a model, not a class" in done.out
    done = command("predict", tmp_path / "model", folder, "--json")
    assert (done.code, done.err) == (0, "")
    assert len(done.out.splitlines()) == 4


def test_a_pipe_is_no_empty_file(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    os.mkfifo(folder / "cat" / "pipe.jpg")
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert "pipe.jpg: not a regular file" in done.out


@pytest.mark.parametrize(
    "arguments",
    [("learn", "model", ""), ("predict", "model", ""), ("info", ""), ("learn", "model", "photos", "--validation", "")],
    ids=" ".join,
)
def test_an_empty_argument_is_not_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    monkeypatch.chdir(tmp_path)
    command(*arguments).refused("an argument is empty: check")
    assert [file.name for file in tmp_path.iterdir()] == ["photos"]


def test_a_class_folder_that_is_a_link_to_itself_is_listed(tmp_path: Path) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / "loop").symlink_to(folder / "loop")
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert (done.code, done.err) == (0, "")
    assert f"{folder / 'loop'}: " in done.out


def test_files_that_may_not_be_read_are_listed(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    (folder / "cat" / "secret.jpg").write_bytes(encoded("JPEG"))
    monkeypatch.setattr(os, "access", lambda path, *modes, **options: Path(path).name != "secret.jpg")
    with unreadable("secret.jpg"):
        done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
        asked = command("predict", model, folder / "cat" / "secret.jpg")
    assert "secret.jpg: Permission denied" in done.out
    assert (asked.code, asked.err) == (1, f"{folder / 'cat' / 'secret.jpg'}: Permission denied\n")


def refusing(action: Callable[..., Any], name: str, code: int) -> Callable[..., Any]:
    """`action`, which fails for paths of this name."""

    def guarded(path: Any, *arguments: Any, **options: Any) -> Any:
        if Path(os.fsdecode(path)).name == name:
            raise OSError(code, os.strerror(code), str(path))
        return action(path, *arguments, **options)

    return guarded


def test_a_class_folder_that_may_not_be_read_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2, "owl": 2})
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, "owl", errno.EACCES))
    done = command("learn", tmp_path / "model", folder, "--dry-run", *TINY)
    assert "Left out: 1" in done.out
    assert f"{folder / 'owl'}: Permission denied" in done.out


def test_a_folder_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, "photos", errno.EACCES))
    command("learn", tmp_path / "model", folder, *TINY).refused(f"cannot read {folder}: Permission denied")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_model_folder_that_cannot_be_made_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    monkeypatch.setattr(os, "mkdir", refusing(os.mkdir, "model", code))
    command("learn", tmp_path / "model", folder, *TINY).refused(str(tmp_path / "model"), os.strerror(code))


def test_a_disk_that_is_full_from_the_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})

    def full(note: Path) -> None:
        note.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(file_lock, "_write", full)
    command("learn", tmp_path / "model", folder, *TINY).refused(os.strerror(errno.ENOSPC))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC])
def test_a_model_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    assert command("learn", tmp_path / "model", folder, *TINY).code == 0
    before = learnt(tmp_path / "model")

    def full(folder: Folder, name: str, content: bytes, flushed: bool = True) -> None:
        raise OSError(code, os.strerror(code), name)

    later = write_photos(tmp_path / "later", {"owl": 2})
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write", full)
        done = command("learn", tmp_path / "model", later, "--device", "cpu")
    done.refused(os.strerror(code), "intact")
    assert learnt(tmp_path / "model") == before
    assert command("learn", tmp_path / "model", later, "--device", "cpu").code == 0


PLACES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file": (lambda path: path.write_text("in the way"), "is a file"),
    "a file's inside": (lambda path: path.parent.joinpath("file").write_text(""), ""),
    "a folder of other things": (lambda path: write_photos(path, {"cat": 1}), "is not a treering model folder"),
    "a damaged manifest": (lambda path: (path.mkdir(), (path / "manifest.json").write_text("{")), "damaged"),
    "a foreign manifest": (lambda path: (path.mkdir(), (path / "manifest.json").write_text("{}")), "not written by"),
    "a manifest that is a folder": (lambda path: (path / "manifest.json").mkdir(parents=True), "manifest.json"),
    "a link to itself": (lambda path: path.symlink_to(path), ""),
    "a link to nowhere": (lambda path: path.symlink_to(path.parent / "nowhere"), ""),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", ["learn", "learn --dry-run", "predict", "evaluate", "info", "export", "undo"])
def test_what_is_no_model_folder_is_one_line(tmp_path: Path, place: str, what: str) -> None:
    make, fragment = PLACES[place]
    fresh = TINY if "manifest" not in place else ["--device", "cpu"]
    path = tmp_path / "model"
    make(path)
    if place == "a file's inside":
        path = tmp_path / "file" / "model"
    photos = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    more: dict[str, list[object]] = {"learn": [photos, *fresh], "learn --dry-run": [photos, *fresh]}
    more |= {"predict": [photos], "evaluate": [photos], "export": [tmp_path / "out.pt2"]}
    name, *option = what.split()
    done = command(name, path, *more.get(what, []), *option)
    if what == "learn --dry-run" or (what == "learn" and place == "a link to nowhere"):
        fine(done)
    else:
        done.refused(fragment if name == "learn" else "")


@pytest.mark.parametrize("what", ["learn", "predict", "evaluate", "info", "export", "undo"])
def test_a_path_that_is_too_long_is_one_line(tmp_path: Path, what: str) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    more: dict[str, list[object]] = {"learn": [photos, *TINY], "predict": [photos], "evaluate": [photos]}
    more |= {"export": [tmp_path / "out.pt2"]}
    command(what, tmp_path / ("m" * 300), *more.get(what, [])).refused("File name too long")


@pytest.mark.parametrize("what", ["learn", "predict", "evaluate", "validation", "picture", "gallery"])
def test_other_paths_that_are_too_long_are_one_line(tmp_path: Path, model: Path, what: str) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    long = tmp_path / ("x" * 300 + ".png")
    lines: dict[str, list[object]] = {
        "learn": ["learn", tmp_path / "model", long, *TINY],
        "predict": ["predict", model, long],
        "evaluate": ["evaluate", model, long],
        "validation": ["learn", tmp_path / "model", photos, "--validation", long, *TINY],
        "picture": ["evaluate", model, photos, "--picture", long],
        "gallery": ["info", model, "--gallery", long],
    }
    done = command(*lines[what])
    if what == "predict":
        assert (done.code, done.err) == (1, f"{long}: File name too long\n")
    else:
        done.refused("File name too long")


def test_an_input_that_may_not_be_looked_at_is_one_line(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 1})
    monkeypatch.setattr(os, "stat", refusing(os.stat, "secret.jpg", errno.EACCES))
    done = command("predict", model, photos, photos / "secret.jpg")
    assert (done.code, done.err) == (1, f"{photos / 'secret.jpg'}: Permission denied\n")
    assert done.out.count("\n") == 1


@pytest.mark.parametrize("validation", ["missing", "file", "empty", "of other classes"])
def test_a_bad_validation_folder(tmp_path: Path, validation: str) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    place = tmp_path / validation
    if validation == "file":
        place.write_text("x")
    elif validation == "empty":
        place.mkdir()
    elif validation == "of other classes":
        write_photos(place, {"owl": 3})
    done = command("learn", tmp_path / "model", photos, "--validation", place, *TINY)
    if validation == "of other classes":
        fine(done)
    else:
        done.refused(str(place))
        assert not (tmp_path / "model").exists()


def test_a_setting_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    command("learn", tmp_path / "model", photos, *TINY, "--set", "augmentation.crop_size=0").refused()
    command("learn", tmp_path / "model", photos, *TINY, "--set", "run.image_size=0").refused()
    command("learn", tmp_path / "model", photos, *TINY, "--set", "run.image_size=many").refused()
    command("learn", tmp_path / "model", photos, *TINY, "--set", "nonsense").refused()
    assert not (tmp_path / "model").exists()


# Generated folders. Each is used by four commands; none of them may end in a traceback or a warning.

class_names = st.sampled_from(
    ["cat", "dog", "owl", "B\u00e4r", "Ba\u0308r", "a b", ".hidden", "c" * 200, os.fsdecode(b"\xff")]
)
entries = st.sampled_from(
    [
        *(f"good {kind}" for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")),
        *BAD_FILES,
        *("folder.jpg", "link up", "link gone", "link itself", "clutter", "nothing"),
    ]
)


def build(folder: Path, content: list[tuple[str, list[str]]], loose: list[str]) -> Counter[str]:
    """Make a folder of classes with these entries; returns how many good images each class has."""
    good: Counter[str] = Counter()
    folder.mkdir()
    for place, kinds in [*((folder / name, kinds) for name, kinds in content), (folder, loose)]:
        place.mkdir(exist_ok=True)
        for number, kind in enumerate(kinds):
            if kind.startswith("good "):
                (place / f"{number}.jpg").write_bytes(encoded(kind.split()[1], number))
                if place != folder and not place.name.startswith("."):
                    good[unicodedata.normalize("NFC", place.name)] += 1
            elif kind in BAD_FILES:
                (place / f"{number} {kind}").write_bytes(BAD_FILES[kind][0]())
            elif kind == "folder.jpg":
                (place / f"{number}.folder.jpg").mkdir()
            elif kind.startswith("link "):
                target = {"link up": place, "link gone": place / "gone"}.get(kind, place / f"{number} link")
                (place / f"{number} link").symlink_to(target)
            elif kind == "clutter":
                (place / "Thumbs.db").write_bytes(b"x")
    return good


@given(
    st.lists(st.tuples(class_names, st.lists(entries, max_size=5)), max_size=4, unique_by=lambda one: one[0]),
    st.lists(entries.filter(lambda kind: not kind.startswith("link")), max_size=2),
    st.booleans(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_folder_ends_in_a_traceback(
    model: Path, content: list[tuple[str, list[str]]], loose: list[str], for_real: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, new = Path(place, "photos"), Path(place, "model")
        good = build(folder, content, loose)
        done = command("learn", new, folder, *([] if for_real else ["--dry-run"]), *TINY)
        if len(good) >= 2:
            assert (done.code, done.err) == (0, ""), done
            assert f"{len(good)} new classes with {good.total()} images" in done.out
        else:
            done.refused(str(folder))
            assert not new.exists()
        fine(command("learn", model, folder, "--dry-run"))
        measured = command("evaluate", model, folder)
        fine(measured)
        known = good["cat"] + good["dog"]
        assert (measured.code == 0) == (known > 0), measured
        if known:
            assert f"of {known} images" in measured.out
        asked = command("predict", model, folder, "--json", "--top", 1)
        if asked.code == 2:
            asked.refused()
        else:
            assert asked.err == ""
            lines = [json.loads(line) for line in asked.out.splitlines()]
            assert asked.code == any("error" in line for line in lines)
            assert all(len(line["predictions"]) == ("error" not in line) for line in lines)
