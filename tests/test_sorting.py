"""Photos that are sorted: every one is copied whole, into the folder of its class, and nothing else is touched."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photo_helper import command
from PIL import Image

from treering.photos import answers, sorting
from treering.photos.sorting import Copy, Sorter, folder_name
from treering.prediction import Teller
from treering.runtime import files

COLOURS = {"red fox": (200, 40, 40), "tree": (40, 200, 40), "sea": (40, 40, 200)}


def by_colour(images: np.ndarray) -> tuple[np.ndarray, None]:
    """Which of the three colours an image has most of."""
    means = images.reshape(len(images), -1, 3).mean(1)
    return means / means.sum(1, keepdims=True), None


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A model that tells colours answers, and the working folder is a new one."""
    monkeypatch.setattr(answers.Source, "_load", lambda source: Teller(list(COLOURS), 8, 3, by_colour))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inbox").mkdir()


def write(file: Path, name: str, shade: int = 0) -> Path:
    colour = [value + shade for value in COLOURS[name]]
    Image.fromarray(np.full((8, 8, 3), colour, np.uint8)).save(file)
    return file


def sort(*more: object) -> Any:
    return command("predict", "model", "inbox", "--sort-into", "sorted", "--top", "1", *more)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_each_photo_is_copied_to_the_folder_of_its_class() -> None:
    for name, photo in (("red fox", "a.png"), ("tree", "b.png"), ("red fox", "c.PNG")):
        write(Path("inbox", photo), name)
    os.utime("inbox/a.png", (1_000_000_000, 1_000_000_000))
    before = contents(Path("inbox"))
    done = sort()
    assert (done.code, done.err) == (0, "")
    assert contents(Path("sorted")) == {
        "red fox/a.png": before["a.png"],
        "tree/b.png": before["b.png"],
        "red fox/c.PNG": before["c.PNG"],
    }
    assert done.out.splitlines()[0] == "inbox/a.png: red fox 71.4 %; copied to sorted/red fox/a.png"
    assert contents(Path("inbox")) == before
    assert Path("sorted/red fox/a.png").stat().st_mtime == 1_000_000_000


def test_a_photo_that_is_there_already_is_not_copied_again() -> None:
    write(Path("inbox/a.png"), "tree")
    sort()
    times = Path("sorted/tree/a.png").stat()
    done = sort()
    assert done.out == "inbox/a.png: tree 71.4 %; already in sorted/tree/a.png\n"
    assert list(contents(Path("sorted"))) == ["tree/a.png"]
    assert Path("sorted/tree/a.png").stat().st_ino == times.st_ino


def test_a_different_photo_of_the_same_name_gets_a_number() -> None:
    expected = {}
    for shade, name in enumerate(["a.png", "a-2.png", "a-3.png"]):
        write(Path("inbox/a.png"), "tree", shade)
        expected[f"tree/{name}"] = Path("inbox/a.png").read_bytes()
        for _ in range(2):
            assert sort().code == 0
            assert contents(Path("sorted")) == expected


def test_json_lines_name_the_copy() -> None:
    write(Path("inbox/a.png"), "sea")
    (record,) = map(json.loads, sort("--json").out.splitlines())
    assert record == {
        "file": "inbox/a.png",
        "predictions": [{"class": "sea", "probability": 0.714286}],
        "copy": "sorted/sea/a.png",
    }


def test_what_cannot_be_read_is_told_and_not_copied() -> None:
    write(Path("inbox/a.png"), "sea")
    Path("inbox/b.png").write_bytes(b"no image")
    done = sort()
    assert done.code == 1
    assert done.err.startswith("inbox/b.png: ")
    assert list(contents(Path("sorted"))) == ["sea/a.png"]


def test_what_cannot_be_copied_is_told_and_the_others_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        write(Path(f"inbox/{name}.png"), "sea")
    original = files.write

    def full(file: Path, *rest: Any, **named: Any) -> None:
        if file.name == "b.png":
            raise OSError(errno.ENOSPC, "No space left on device")
        original(file, *rest, **named)

    monkeypatch.setattr(files, "write", full)
    done = sort()
    assert (done.code, done.err) == (1, "inbox/b.png: cannot be copied into sorted: No space left on device\n")
    assert sorted(contents(Path("sorted"))) == ["sea/a.png", "sea/c.png"]


def test_an_interrupted_copy_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch) -> None:
    write(Path("inbox/a.png"), "sea")

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        assert sort().code == 130
    assert contents(Path("sorted")) == {}
    assert sort().code == 0
    assert list(contents(Path("sorted"))) == ["sea/a.png"]


def test_what_stands_in_the_way_is_left_as_it_is() -> None:
    """A folder, a link that leads nowhere and one that leads to another file are no equal photos."""
    write(Path("inbox/a.png"), "sea")
    for there in ("folder", "dangling", "linked"):
        place = Path(there, "sea")
        place.mkdir(parents=True)
        if there == "folder":
            (place / "a.png").mkdir()
        else:
            Path("other.png").write_bytes(b"other")
            (place / "a.png").symlink_to("nowhere" if there == "dangling" else Path("../../other.png"))
        done = command("predict", "model", "inbox", "--sort-into", there)
        assert (done.code, done.err) == (0, "")
        assert (place / "a-2.png").read_bytes() == Path("inbox/a.png").read_bytes()
    assert Path("other.png").read_bytes() == b"other"


@pytest.mark.parametrize("folder", ["inbox", "inbox/sorted", "inbox/deep/sorted", "link/sorted"])
def test_a_folder_inside_the_inputs_is_refused(folder: str) -> None:
    write(Path("inbox/a.png"), "sea")
    Path("link").symlink_to("inbox")
    before = sorted(Path().rglob("*"))
    command("predict", "model", "inbox", "--sort-into", folder).refused("cannot sort into", "choose a folder outside")
    command("predict", "model", "--watch", "inbox", "--sort-into", folder).refused("cannot sort into")
    assert sorted(Path().rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_one_line() -> None:
    write(Path("inbox/a.png"), "sea")
    command("predict", "model", "inbox", "--sort-into", "no/where").refused("cannot sort into no/where")
    command("predict", "model", "inbox", "--sort-into", "inbox/a.png").refused("cannot sort into inbox/a.png")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_a_new_folder_is_private_and_one_that_is_there_stays_as_open_as_it_is() -> None:
    write(Path("inbox/a.png"), "sea")
    mask = os.umask(0o022)
    try:
        assert sort().code == 0
        write(Path("inbox/b.png"), "tree")
        assert sort().code == 0
        Path("open").mkdir()
        assert command("predict", "model", "inbox", "--sort-into", "open").code == 0
    finally:
        os.umask(mask)
    modes = {
        str(path): path.stat().st_mode & 0o777
        for top in ("sorted", "open")
        for path in [Path(top), *Path(top).rglob("*")]
    }
    assert modes == {
        **dict.fromkeys(("sorted", "sorted/sea", "sorted/tree"), 0o700),
        **dict.fromkeys(("sorted/sea/a.png", "sorted/tree/b.png"), 0o600),
        **dict.fromkeys(("open", "open/sea", "open/tree"), 0o755),
        **dict.fromkeys(("open/sea/a.png", "open/tree/b.png"), 0o644),
    }


@pytest.mark.parametrize("name", ["fox", "Red fox", "Bär", "猫", "a.b", "it's", "x" * 100])
def test_plain_class_names_stay(name: str) -> None:
    assert folder_name(name) == name


PATHS = [
    "",
    ".",
    "..",
    "../up",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "C:",
    "nul",
    "NUL.txt",
    "com1",
    "a ",
    " a",
    "a.",
    ".hidden",
]
LETTERS = ["a\0b", "a\nb", "a\x1b[31mb", "a\u202eb", "-rf", "~", "x" * 5000, "猫" * 200, "a?b", "\udce9", "." * 300]
HOSTILE = PATHS + LETTERS


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_other_class_names_become_safe_ones(tmp_path: Path, name: str) -> None:
    safe = folder_name(name)
    assert safe == Path(safe).name
    assert safe not in ("", ".", "..")
    assert safe.isprintable()
    assert not set('\\/:*?"<>|') & set(safe)
    assert not safe.startswith((".", "-", " "))
    assert not safe.endswith((".", " "))
    assert safe.split(".")[0].lower() not in ("nul", "com1")
    (tmp_path / "sorted" / safe).mkdir(parents=True)
    assert [path.name for path in (tmp_path / "sorted").iterdir()] == [safe]


def test_different_class_names_have_different_folders() -> None:
    names = [*HOSTILE, "a_b", "_", "__up", "x" * 100, "x" * 101, "a"]
    assert len({folder_name(name) for name in names}) == len(names)


def test_a_name_that_another_program_takes_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo, sorter, original = write(tmp_path / "a.png", "sea"), Sorter(tmp_path / "sorted", []), files.write

    def raced(file: Path, *rest: Any, **named: Any) -> None:
        if file.name == "a.png":
            file.write_bytes(b"of another program")
        original(file, *rest, **named)

    monkeypatch.setattr(files, "write", raced)
    assert sorter.copy(photo, "sea") == Copy(tmp_path / "sorted/sea/a-2.png", is_new=True)
    assert (tmp_path / "sorted/sea/a.png").read_bytes() == b"of another program"
    assert (tmp_path / "sorted/sea/a-2.png").read_bytes() == photo.read_bytes()


@pytest.mark.parametrize("at", [0, 2**20 - 1, 2**20, 8 * 2**20])
def test_large_photos_are_copied_and_compared_in_pieces(tmp_path: Path, at: int) -> None:
    """A copy that is there already is told from another photo of its size, and no photo is in memory as a whole."""
    photo, sorter = tmp_path / "a.png", Sorter(tmp_path / "sorted", [])
    content = bytearray(8 * 2**20 + 1)
    photo.write_bytes(content)
    tracemalloc.start()
    try:
        assert sorter.copy(photo, "sea").is_new
        assert sorter.copy(photo, "sea") == Copy(tmp_path / "sorted/sea/a.png", is_new=False)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()
    content[at] = 1
    photo.write_bytes(content)
    assert sorter.copy(photo, "sea") == Copy(tmp_path / "sorted/sea/a-2.png", is_new=True)
    assert (tmp_path / "sorted/sea/a-2.png").read_bytes() == content


def test_a_photo_that_is_too_large_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo, sorter = write(tmp_path / "a.png", "sea"), Sorter(tmp_path / "sorted", [])
    monkeypatch.setattr(sorting, "LARGEST_PHOTO", photo.stat().st_size - 1)
    with pytest.raises(OSError, match="bytes"):
        sorter.copy(photo, "sea")
    assert contents(tmp_path / "sorted") == {}


def test_a_photo_that_grows_without_end_meanwhile_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo, sorter = write(tmp_path / "a.png", "sea"), Sorter(tmp_path / "sorted", [])
    monkeypatch.setattr(sorting, "LARGEST_PHOTO", 2**22)
    size = os.fstat

    def grown(handle: int) -> os.stat_result:
        found = size(handle)
        if found.st_ino == photo.stat().st_ino:
            with photo.open("ab") as stream:
                stream.truncate(2**22 + 1)
        return found

    monkeypatch.setattr(os, "fstat", grown)
    with pytest.raises(OSError, match="bytes"):
        sorter.copy(photo, "sea")
    monkeypatch.undo()
    assert contents(tmp_path / "sorted") == {}
