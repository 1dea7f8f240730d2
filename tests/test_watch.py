"""A watched folder: each new photo is told once, when it is complete, and by the newest version of the model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples, tiny_learner
from photo_helper import command, encoded

from treering import TreeringError, prediction
from treering.photos import answers, watch
from treering.photos.watch import Watch
from treering.prediction import Teller

PHOTO = encoded("PNG")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the watch sees, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def later(watched: Watch, clock: list[float], seconds: float = 2.0) -> list[str]:
    """The photos that have become complete after this time."""
    clock[0] += seconds
    return [path.name for path in watched.complete()]


def put(file: Path, content: bytes = PHOTO) -> Path:
    file.write_bytes(content)
    return file


def test_only_new_photos_are_told_and_each_once(tmp_path: Path, clock: list[float]) -> None:
    put(tmp_path / "old.png")
    watched = Watch(tmp_path)
    assert later(watched, clock) == []
    put(tmp_path / "new.png")
    put(tmp_path / "another.png")
    assert later(watched, clock) == []
    assert later(watched, clock) == ["another.png", "new.png"]
    assert later(watched, clock) == later(watched, clock) == []


def test_a_photo_that_still_grows_is_not_told(tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(tmp_path)
    for size in range(0, 500, 100):
        put(tmp_path / "a.png", PHOTO[:size])
        assert later(watched, clock) == []
    put(tmp_path / "a.png")
    assert later(watched, clock) == []
    assert later(watched, clock, watch.SETTLED / 2) == []
    assert later(watched, clock) == ["a.png"]


def test_a_file_of_constant_size_that_is_still_written_is_not_told(tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(tmp_path)
    put(tmp_path / "a.png", bytes(len(PHOTO)))
    later(watched, clock)
    put(tmp_path / "a.png")
    os.utime(tmp_path / "a.png", (1, 1))
    assert later(watched, clock) == []
    assert later(watched, clock) == ["a.png"]


def test_an_empty_file_waits_for_its_content(tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(tmp_path)
    put(tmp_path / "a.png", b"")
    assert [later(watched, clock) for _ in range(3)] == [[]] * 3
    put(tmp_path / "a.png")
    assert later(watched, clock) + later(watched, clock) == ["a.png"]


@pytest.mark.parametrize("name", [".a.png", "a.png.part", "a.crdownload", "a.tmp", "Thumbs.db"])
def test_unfinished_downloads_wait_until_they_are_renamed(tmp_path: Path, clock: list[float], name: str) -> None:
    watched = Watch(tmp_path)
    put(tmp_path / name)
    assert [later(watched, clock) for _ in range(3)] == [[]] * 3
    (tmp_path / name).rename(tmp_path / "a.png")
    assert later(watched, clock) + later(watched, clock) == ["a.png"]


def test_another_photo_under_the_same_name_is_a_new_one(tmp_path: Path, clock: list[float]) -> None:
    put(tmp_path / "a.png")
    watched = Watch(tmp_path)
    put(tmp_path / ".hidden", encoded("PNG", 1)).replace(tmp_path / "a.png")
    assert later(watched, clock) + later(watched, clock) == ["a.png"]


def test_folders_and_what_is_gone_again_are_left_out(tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(tmp_path)
    put(tmp_path / "a.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.png").symlink_to("nowhere")
    later(watched, clock)
    (tmp_path / "a.png").unlink()
    assert later(watched, clock) + later(watched, clock) == []


def test_a_photo_that_could_not_be_read_is_told_again_once_it_has_changed(tmp_path: Path, clock: list[float]) -> None:
    watched = Watch(tmp_path)
    put(tmp_path / "a.png", PHOTO[:100])
    later(watched, clock)
    assert later(watched, clock) == ["a.png"]
    watched.unreadable(tmp_path / "a.png")
    assert [later(watched, clock) for _ in range(3)] == [[]] * 3
    put(tmp_path / "a.png")
    assert later(watched, clock) == []
    assert later(watched, clock) == ["a.png"]
    assert later(watched, clock) == []


def test_a_folder_of_ten_thousand_files_takes_a_small_share_of_the_time(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"{number:05d}.jpg").touch()
    watched = Watch(tmp_path)
    began = time.process_time()
    for _ in range(5):
        assert watched.complete() == []
    taken = (time.process_time() - began) / 5
    assert taken < 0.25 * watched.pause, "no file is looked at but the new ones"


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    command("predict", tmp_path / "model", "--watch", tmp_path / "nowhere").refused()
    (tmp_path / "folder").mkdir()
    watched = Watch(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    with pytest.raises(TreeringError, match=r"cannot watch .*folder: No such file"):
        watched.complete()


# The command


def run_until(monkeypatch: pytest.MonkeyPatch, steps: Iterator[None], clock: list[float]) -> None:
    """Have each pause of the command do the next step; after the last one Ctrl-C comes."""

    def pause(seconds: float) -> None:
        clock[0] += 2.0
        try:
            next(steps)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(answers.time, "sleep", pause)


def fixed(name: str) -> Teller:
    """What takes every photo for one class."""
    return Teller([name, "other"], 8, 3, lambda images: (np.tile([0.75, 0.25], (len(images), 1)), None))


def test_the_command_tells_photos_as_they_come_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(answers.Source, "_load", lambda source: fixed("cat"))
    monkeypatch.chdir(tmp_path)
    Path("inbox").mkdir()
    put(Path("inbox/old.png"))

    def steps() -> Iterator[None]:
        yield
        put(Path("inbox/new.png"))
        put(Path("inbox/bad.png"), b"no image")
        yield
        yield
        put(Path("inbox/bad.png"))
        yield
        yield

    run_until(monkeypatch, steps(), clock)
    done = command("predict", "model", "--watch", "inbox", "--top", "1")
    assert done.code == 130
    assert done.out == "inbox/new.png: cat 75.0 %\ninbox/bad.png: cat 75.0 %\n"
    assert done.err.splitlines()[0].startswith("inbox/bad.png: ")
    assert done.err.splitlines()[1:] == ["treering: no longer watching inbox"]


def test_photos_that_are_given_are_told_first_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(answers.Source, "_load", lambda source: fixed("cat"))
    monkeypatch.chdir(tmp_path)
    Path("inbox").mkdir()
    put(Path("inbox/a.png"))

    def steps() -> Iterator[None]:
        put(Path("inbox/b.png"))
        yield
        yield
        yield

    run_until(monkeypatch, steps(), clock)
    done = command("predict", "model", "inbox", "--watch", "inbox", "--sort-into", "sorted", "--json")
    assert done.code == 130
    assert [json.loads(line)["copy"] for line in done.out.splitlines()] == ["sorted/cat/a.png", "sorted/cat/b.png"]
    assert sorted(file.name for file in Path("sorted/cat").iterdir()) == ["a.png", "b.png"]


def test_a_photo_that_comes_while_the_given_ones_are_listed_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    monkeypatch.setattr(answers.Source, "_load", lambda source: fixed("cat"))
    files_in = prediction.files_in
    monkeypatch.setattr(prediction, "files_in", lambda places: (put(tmp_path / "a.png"), files_in(places))[1])
    run_until(monkeypatch, iter([None] * 4), clock)
    done = command("predict", "model", tmp_path, "--watch", tmp_path)
    assert (done.code, done.out.count("a.png")) == (130, 1)


def test_a_new_version_of_the_model_answers_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    learner = tiny_learner(backbone="small").partial_fit(*examples({"cat": 4, "dog": 4}))
    learner.save(tmp_path / "model")
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    loaded: list[None] = []
    load = answers.Source._load
    monkeypatch.setattr(answers.Source, "_load", lambda source: (loaded.append(None), load(source))[1])

    def steps() -> Iterator[None]:
        put(inbox / "a.png")
        yield
        yield
        put(inbox / "b.png")
        yield
        yield
        learner.partial_fit(*examples({"owl": 4})).save(tmp_path / "model")
        put(inbox / "c.png")
        yield
        yield
        (tmp_path / "model" / "manifest.json").write_bytes(b"damaged")
        put(inbox / "d.png")
        put(inbox / "e.png")
        yield
        yield

    run_until(monkeypatch, steps(), clock)
    done = command("predict", tmp_path / "model", "--watch", inbox, "--json", "--top", "9", "--device", "cpu")
    assert done.code == 130
    known = [len(json.loads(line)["predictions"]) for line in done.out.splitlines()]
    assert known == [2, 2, 3, 3, 3], "a version that cannot be read leaves the one before it"
    assert len(loaded) == 3
    assert "still answers" in caplog.text


def test_nothing_to_tell_of_is_one_line(tmp_path: Path) -> None:
    command("predict", tmp_path / "model").refused("no photo is given", "--watch")


def wait_for(condition: Callable[[], Any]) -> None:
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    pytest.fail("it takes too long")


@pytest.mark.skipif(os.name == "nt", reason="the signal is another one there")
def heeds_interruptions() -> None:
    """Heed SIGINT, which a shell has its background jobs ignore, and all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_real_watch_ends_with_the_exit_code_of_an_interruption(tmp_path: Path) -> None:
    tiny_learner(backbone="small").partial_fit(*examples({"cat": 4, "dog": 4})).save(tmp_path / "model")
    (tmp_path / "inbox").mkdir()
    asked = ["predict", str(tmp_path / "model"), "--watch", str(tmp_path / "inbox"), "--json", "--device", "cpu"]
    with (tmp_path / "out").open("w") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "treering", *asked],
            stdout=out,
            stderr=subprocess.PIPE,
            preexec_fn=heeds_interruptions,
        )
        try:
            for number in range(300):  # until the watch has begun
                put(tmp_path / "inbox" / f"{number}.png")
                time.sleep(0.2)
                if (tmp_path / "out").stat().st_size:
                    break
            put(tmp_path / "inbox" / "last.png")
            wait_for(lambda: "last.png" in (tmp_path / "out").read_text())
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=30)
        finally:
            child.kill()
    assert (child.returncode, said) == (130, f"treering: no longer watching {tmp_path / 'inbox'}\n".encode())
