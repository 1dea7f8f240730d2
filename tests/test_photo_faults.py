"""`treering learn` as a transaction: no fault at any moment loses a model, and the same call goes on to its end."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import learn_helper
import numpy as np
import pytest
import safetensors.torch
from conftest import run_python
from learn_helper import CHANGES, FIRST, MEMORY, SECOND, learn, leftovers, make_folder, model_state

import treering
from treering import Learner, TreeringError
from treering.images import files as images
from treering.model import examine
from treering.photos import learn as photos
from treering.photos.plan import Plan
from treering.runtime import pixels
from treering.storage import model_folder as checkpoint
from treering.storage import names
from treering.storage import resume as in_flight
from treering.storage.folder import Folder

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
SAVES_OF_SECOND = 5
"""Epochs of the second step, each of which is saved."""


@pytest.fixture(autouse=True)
def saved_after_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "SAVE_EVERY", 0.0)


class Models:
    """A model before and after its second step, learnt in peace. Tests share it and copy what they change."""

    def __init__(self, folder: Path) -> None:
        self.first, self.second = make_folder(folder / "1", FIRST), make_folder(folder / "2", SECOND, seed=1)
        self.base, self.whole = folder / "base", folder / "whole"
        learn(self.base, self.first)
        shutil.copytree(self.base, self.whole)
        learn(self.whole, self.second)
        self.before, self.after = model_state(self.base), model_state(self.whole)
        self.shown = np.stack([images.read(file, learn_helper.SIDE) for file in sorted(self.second.rglob("*.jpg"))])
        self.answers = Learner.load(self.base, device="cpu").predict_proba(self.shown)

    def copy(self, path: Path) -> Path:
        shutil.copytree(self.base, path)
        return path

    def check_as_before(self, path: Path) -> None:
        """The model of one step is there and answers as it did."""
        assert model_state(path) == self.before
        assert np.array_equal(Learner.load(path, device="cpu").predict_proba(self.shown), self.answers)

    def check_goes_on(self, path: Path, resumed: bool = True) -> None:
        """The same call comes to the same end."""
        told: list[Plan] = []
        learn(path, self.second, tell=told.append)
        assert [plan.resumed for plan in told] == [resumed]
        assert model_state(path) == self.after
        assert leftovers(path) == []


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


class Fails:
    """Calls a function, but raises an error at the `at`-th call, or at that one and all later ones."""

    def __init__(self, function: Callable[..., Any], at: int, error: BaseException, forever: bool = False) -> None:
        self.function, self.at, self.error, self.forever = function, at, error, forever
        self.calls = 0

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        self.calls += 1
        if self.calls == self.at or (self.forever and self.calls > self.at):
            raise self.error
        return self.function(*arguments, **settings)


def interrupt_after(path: Path, folder: Path, epochs: int, error: BaseException | None = None, **settings: Any) -> None:
    """Begin to learn, and be interrupted after so many epochs."""
    error = error or KeyboardInterrupt()
    told = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else TreeringError
    watched = Fails(lambda: None, epochs, error)

    def progress(what: str, done: int, total: int) -> None:
        if what == "training":
            watched()

    # The watcher is told of an epoch before that epoch is saved, so it is the one before that can be gone on from.
    with pytest.raises(told, match=None if told is KeyboardInterrupt else "^out of memory; .* is as it was"):
        learn(path, folder, progress=progress, **settings)


# --- Killed -----------------------------------------------------------------------------------------------------------


def kill(folder: Path, kills: int, *changes: str) -> list[dict[str, Any]]:
    """Return what became of learns that were killed at so many moments."""
    path = os.pathsep.join([str(Path(treering.__file__).parents[1]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, learn_helper.__file__, folder, "0", str(kills), *changes],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return kill(tmp_path_factory.mktemp("killed"), 40)


def test_a_killed_learn_that_trains_beside_a_closed_form_goes_on_to_the_same_end(tmp_path: Path) -> None:
    outcomes = kill(tmp_path, 20, *learn_helper.TUNED)
    assert [one["digest"] for one in outcomes] == [one["wanted"] for one in outcomes]
    assert sum(one.get("resumed", False) for one in outcomes) >= 2
    assert sum(one["solved"] for one in outcomes) >= 4, "killed while it trained on classes that it knew already"
    assert all(not one.get("left over") for one in outcomes)


def test_the_moments_of_the_kills_are_spread_over_all_of_a_learn(killed: list[dict[str, Any]]) -> None:
    assert sum(one["kills"] for one in killed) >= 40
    for first in (True, False):
        some = [one for one in killed if one["first"] == first]
        assert sum(one["in writes"] for one in some) >= 6
        assert sum(not one["unfinished"] for one in some) >= 2, "before anything was saved"
        assert sum(one.get("resumed", False) for one in some) >= 5


def test_a_learn_killed_at_any_moment_leaves_the_model_and_goes_on_to_the_same_end(
    killed: list[dict[str, Any]],
) -> None:
    for one in killed:
        assert "error" not in one, one
        assert one["digest"] == one["wanted"], one


def test_a_learn_that_was_killed_leaves_no_file_behind_when_it_has_gone_on(killed: list[dict[str, Any]]) -> None:
    ended = [one for one in killed if not one["complete"]]
    assert len(ended) > 30
    for one in ended:
        assert [name for name in one["left over"] if not name.startswith("previous/.tmp-")] == [], one


# --- Interrupted, out of memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("out of memory")], ids=repr)
def test_a_learn_that_fails_after_any_epoch_leaves_the_model_and_goes_on(
    tmp_path: Path, models: Models, error: BaseException
) -> None:
    every = range(1, SAVES_OF_SECOND + 1)
    for epoch in every if isinstance(error, KeyboardInterrupt) else (2, SAVES_OF_SECOND):
        path = models.copy(tmp_path / str(epoch))
        interrupt_after(path, models.second, epoch, error)
        models.check_as_before(path)
        models.check_goes_on(path, resumed=epoch > 1)


def test_a_first_learn_that_fails_leaves_no_model_and_goes_on(tmp_path: Path, models: Models) -> None:
    for epoch in (1, 3):
        path = tmp_path / str(epoch)
        interrupt_after(path, models.first, epoch)
        assert path.exists() == (epoch > 1), "a folder without anything in it goes again"
        with pytest.raises(TreeringError):
            Learner.load(path, device="cpu")
        told: list[Plan] = []
        learn(path, models.first, tell=told.append)
        assert told[0].resumed == (epoch > 1)
        assert model_state(path) == models.before
        assert leftovers(path) == []


def test_a_learn_that_goes_on_trains_only_the_epochs_that_are_left(tmp_path: Path, models: Models) -> None:
    path = models.copy(tmp_path / "model")
    interrupt_after(path, models.second, 4)
    done: list[int] = []
    learn(path, models.second, progress=lambda what, now, total: done.append(now) if what == "training" else None)
    assert len(done) == SAVES_OF_SECOND - 3


def training_told(path: Path, folder: Path, saves: int = 0) -> list[tuple[int, int]]:
    """Learn; return what was done and how much there is, each time it was told. End it after so many saves, if any."""
    told, saved = list[tuple[int, int]](), 0

    def progress(what: str, done: int, total: int) -> None:
        nonlocal saved
        told.extend([(done, total)] * (what == "training"))
        saved += (path / ".learning").exists()
        if saves and saved == saves:
            raise KeyboardInterrupt

    learn(path, folder, progress=progress)
    return told


@pytest.mark.parametrize("epoch", [1, 2, 4])
def test_the_progress_of_a_learn_that_goes_on_ends_where_that_of_another_does(tmp_path: Path, epoch: int) -> None:
    first = make_folder(tmp_path / "1", {"cat": 10, "dog": 10})
    second = make_folder(tmp_path / "2", {"owl": 10}, seed=1)
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    for path in (whole, halted):
        learn(path, first, changes=(*learn_helper.CHANGES, *learn_helper.TUNED), memory=10)
    with pytest.raises(KeyboardInterrupt):
        training_told(halted, second, epoch)
    told = training_told(halted, second)
    assert told == sorted(told)
    done, total = told[-1]
    done_at_once, total_at_once = training_told(whole, second)[-1]
    assert total - done == total_at_once - done_at_once
    assert 0 < total < total_at_once, "what was solved is not solved again"


def test_a_learn_is_saved_now_and_then_and_not_in_each_epoch(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photos, "SAVE_EVERY", 1e9)
    path = models.copy(tmp_path / "model")
    interrupt_after(path, models.second, SAVES_OF_SECOND)
    assert not (path / ".learning").exists()
    models.check_goes_on(path, resumed=False)


def test_a_learn_killed_when_its_step_is_there_already_does_not_learn_it_again(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.copy(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "clean", Fails(checkpoint.clean, 1, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            learn(path, models.second)
    assert model_state(path) == models.after
    learn(path, models.second)
    assert model_state(path) == models.after


# --- Full disks -------------------------------------------------------------------------------------------------------

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("forever", [False, True], ids=["one write fails", "all later writes fail too"])
def test_a_full_disk_at_any_write_is_one_line_and_the_learn_goes_on_when_there_is_room(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch, forever: bool
) -> None:
    at, went_on = 0, 0
    while True:
        at += 2 if at < 8 else 6  # the first five writes save the unfinished step, the others are files of the model
        path = models.copy(tmp_path / str(at))
        failing = Fails(Folder.write, at, FULL, forever)
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "write", lambda *arguments, **settings: failing(*arguments, **settings))  # noqa: B023
            try:
                learn(path, models.second)
                assert model_state(path) == models.after
                if failing.calls < at:
                    break
                continue  # it has told that the unfinished step was not saved, or has saved the model in its room
            except TreeringError as error:
                assert str(error) == f"cannot save to {path}: No space left on device; what it held before is intact"
        models.check_as_before(path)
        assert not [file for file in path.rglob(".tmp-*") if file.is_file()]
        assert not (path / ".learning").exists(), "it made room for the model, and could not be put back"
        models.check_goes_on(path, resumed=False)
        went_on += 1
    assert at > SAVES_OF_SECOND
    assert went_on >= 3 if forever else went_on == 0


def test_a_disk_without_room_for_the_photos_is_one_line_and_leaves_the_model(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.copy(tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(pixels.PixelFile, "append", Fails(pixels.PixelFile.append, 1, FULL))
        with pytest.raises(TreeringError, match=r"^cannot save to .*: No space left on device"):
            learn(path, models.second)
    models.check_as_before(path)
    models.check_goes_on(path, resumed=False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty disk of 6 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # a file of a failed learn may still be open


def test_on_a_disk_that_is_really_full_the_model_stays_and_the_learn_goes_on_when_there_is_room(
    small_disk: Path, models: Models
) -> None:
    for room in (8, 64, 160, 320):
        path = models.copy(small_disk / "model")
        usage = shutil.disk_usage(small_disk)
        (small_disk / "filler").write_bytes(b"x" * (usage.free - room * 1024))
        with pytest.raises(TreeringError, match=r"^cannot save to .*: No space left on device"):
            learn(path, models.second)
        models.check_as_before(path)
        (small_disk / "filler").unlink()
        learn(path, models.second)
        assert model_state(path) == models.after
        shutil.rmtree(path)


# --- Damage -----------------------------------------------------------------------------------------------------------


def flipped(content: bytes, at: float = 0.5) -> bytes:
    changed = bytearray(content)
    changed[int(at * len(changed))] ^= 1
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {"truncated": lambda content: content[:-1], "a bit flipped": flipped}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_every_damaged_file_of_the_model_is_named_and_the_learn_does_not_begin(
    tmp_path: Path, models: Models, damage: Callable[[bytes], bytes]
) -> None:
    entries = json.loads((models.base / "manifest.json").read_bytes())["files"]
    parts = [entry for kind in ("memory", "held_out") for part in entries[kind] for entry in part]
    names = ["manifest.json", *(entry["name"] for entry in (entries["weights"], entries["history"], *parts))]
    assert sum(name.startswith("held-out/") for name in names) == 2
    path = models.copy(tmp_path / "model")
    for name in names:
        content = (path / name).read_bytes()
        (path / name).write_bytes(damage(content))
        for action in (lambda: Learner.load(path, device="cpu"), lambda: learn(path, models.second)):
            with pytest.raises(TreeringError, match=re.escape(str(path / name))):
                action()
        (path / name).write_bytes(content)
    models.check_goes_on(path, resumed=False)


def with_facts(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    """An unfinished step with other facts, and the checksum of them."""
    facts = json.loads(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["facts"])
    return in_flight.to_bytes(safetensors.torch.load(content), change(facts))


STATES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "text": lambda content: b"no state\n" * 20,
    "half": lambda content: content[: len(content) // 2],
    "last byte missing": lambda content: content[:-1],
    "no facts": lambda content: safetensors.torch.save(safetensors.torch.load(content)),
    "no checksum": lambda content: safetensors.torch.save(
        safetensors.torch.load(content), {"facts": '{"fingerprint": "", "fits": {}}'}
    ),
    "facts of nothing": lambda content: with_facts(content, lambda facts: {}),
    "facts as a list": lambda content: with_facts(content, lambda facts: []),
    "no trainings": lambda content: with_facts(content, lambda facts: {"fingerprint": facts["fingerprint"]}),
    "odd trainings": lambda content: with_facts(content, lambda facts: facts | {"fits": {"current": [0]}}),
}


@pytest.mark.parametrize("damage", [*STATES.values(), flipped], ids=[*STATES, "a bit flipped"])
def test_a_damaged_unfinished_step_starts_anew_with_a_warning(
    tmp_path: Path, models: Models, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = models.copy(tmp_path / "model")
    interrupt_after(path, models.second, 3)
    state = path / ".learning"
    state.write_bytes(damage(state.read_bytes()))
    models.check_as_before(path)
    with caplog.at_level(logging.WARNING):
        models.check_goes_on(path, resumed=False)
    (record,) = caplog.records
    assert "starts anew" in record.getMessage()


def test_a_damaged_unfinished_step_is_reported_by_name(
    tmp_path: Path, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    path = models.copy(tmp_path / "model")
    (path / ".learning").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        learn(path, models.second)
    assert str(path / ".learning") in caplog.text


# --- Other photos, other settings -------------------------------------------------------------------------------------


def more_photos(folder: Path) -> None:
    make_folder(folder, {"owl": 2}, seed=7)


def fewer_photos(folder: Path) -> None:
    sorted((folder / "owl").iterdir())[0].unlink()


def another_photo(folder: Path) -> None:
    files_of_class = sorted((folder / "owl").iterdir())
    files_of_class[0].write_bytes(sorted((folder / "cat").iterdir())[0].read_bytes())


def another_class(folder: Path) -> None:
    (folder / "owl").rename(folder / "hawk")


@pytest.mark.parametrize("change", [more_photos, fewer_photos, another_photo, another_class], ids=lambda f: f.__name__)
def test_other_photos_after_an_interruption_start_anew(
    tmp_path: Path, models: Models, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(models.second, folder)
    path, peace = models.copy(tmp_path / "model"), models.copy(tmp_path / "peace")
    interrupt_after(path, folder, 3)
    change(folder)
    told: list[Plan] = []
    with caplog.at_level(logging.WARNING):
        learn(path, folder, tell=told.append)
    assert not told[0].resumed
    assert "other images or settings" in caplog.text
    learn(peace, folder)
    assert model_state(path) == model_state(peace) != models.after
    assert leftovers(path) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"changes": [*CHANGES, "training.lr=0.01"]},
        {"memory": MEMORY + 4},
        {"seed": 1},
        {"validation": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_other_settings_after_an_interruption_start_anew(
    tmp_path: Path, models: Models, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    if "validation" in changes:
        changes = {"validation": models.second}
    path, peace = tmp_path / "model", tmp_path / "peace"
    interrupt_after(path, models.first, 3)
    told: list[Plan] = []
    with caplog.at_level(logging.WARNING):
        learn(path, models.first, tell=told.append, **changes)
    assert not told[0].resumed
    assert "other images or settings" in caplog.text
    learn(peace, models.first, **changes)
    assert model_state(path) == model_state(peace) != models.before


@pytest.mark.parametrize("begun", [MEMORY, MEMORY + 4])
def test_a_later_step_goes_on_with_the_same_memory_and_starts_anew_with_another(
    tmp_path: Path, models: Models, begun: int
) -> None:
    for size in (MEMORY, MEMORY + 4):
        path, peace = models.copy(tmp_path / f"model-{size}"), models.copy(tmp_path / f"peace-{size}")
        interrupt_after(path, models.second, 4, memory=begun)
        told: list[Plan] = []
        learn(path, models.second, tell=told.append, memory=size)
        assert told[0].resumed == (size == begun)
        learn(peace, models.second, memory=size)
        assert model_state(path) == model_state(peace)


def test_an_unfinished_step_of_a_version_that_was_undone_is_not_gone_on_with(tmp_path: Path, models: Models) -> None:
    path = models.copy(tmp_path / "model")
    learn(path, models.second)
    interrupt_after(path, models.first, 3)
    checkpoint.undo(path, examine)
    models.check_as_before(path)
    models.check_goes_on(path, resumed=False)


# --- Beside others ----------------------------------------------------------------------------------------------------

BESIDE = """
import os, sys
from pathlib import Path
import torch
from learn_helper import learn
from treering.photos import learn as photos

torch.set_num_threads(1)
photos.SAVE_EVERY = 0.0

def wait(plan):
    sys.stdout.write("learning\\n")
    sys.stdout.flush()
    sys.stdin.readline()

learn(Path(sys.argv[1]), Path(sys.argv[2]), tell=wait)
"""


def test_a_second_learn_names_the_process_of_the_first_and_readers_get_the_last_model(
    tmp_path: Path, models: Models
) -> None:
    path = models.copy(tmp_path / "model")
    paths = os.pathsep.join([str(Path(treering.__file__).parents[1]), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, "-c", BESIDE, str(path), str(models.second)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "learning\n"
        for action in (lambda: learn(path, models.second), lambda: checkpoint.undo(path, examine)):
            with pytest.raises(TreeringError) as error:
                action()
            assert f"process {process.pid}" in str(error.value)
            assert str(path) in str(error.value)
            assert "\n" not in str(error.value)
        models.check_as_before(path)
        told: list[Plan] = []
        learn(path, models.second, dry_run=True, tell=told.append)
        assert len(told) == 1
        process.communicate("go on\n", timeout=600)
        assert process.returncode == 0
    assert model_state(path) == models.after
    assert leftovers(path) == []


def test_predicting_at_any_moment_of_a_learn_gives_the_last_complete_model(tmp_path: Path, models: Models) -> None:
    path = models.copy(tmp_path / "model")
    seen: list[str] = []

    def progress(what: str, done: int, total: int) -> None:
        models.check_as_before(path)
        seen.append(what)

    learn(path, models.second, progress=progress)
    assert seen == ["reading"] + ["training"] * SAVES_OF_SECOND
    assert model_state(path) == models.after


def test_predicting_at_any_write_gives_the_older_model_or_the_newer_one(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.copy(tmp_path / "model")
    write, seen = Folder.write, []

    def meanwhile(folder: Folder, name: str, content: bytes, flushed: bool = True) -> None:
        write(folder, name, content, flushed)
        state = model_state(path)
        assert state in (models.before, models.after)
        seen.append((name, state == models.after))

    monkeypatch.setattr(Folder, "write", meanwhile)
    learn(path, models.second)
    assert seen[-1] == ("manifest.json", True)
    assert not any(newer for _, newer in seen[:-1])


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import json, os, shutil, signal, sys
from pathlib import Path
import torch
from learn_helper import Ticks, digest, in_child
from treering import cli
from treering.photos import console, learn as photos

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
torch.set_num_threads(1)
photos.SAVE_EVERY = 0.0
folder, base, path, log = map(Path, sys.argv[1:5])

def command(ticks):
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    sys.argv = ["treering", "learn", str(path), str(folder), "--device", "cpu"]
    learn, code = photos.learn, 0

    def watched(*arguments, **settings):
        with ticks.counting():
            return learn(*arguments, **settings)

    photos.learn = watched
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    return {"code": code, "ticks": ticks.now}

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

shutil.copytree(base, path)
_, peace = in_child(lambda: command(Ticks(0, False, interrupt)))
wanted, found = digest(path), []
for share in map(float, sys.argv[5:]):
    shutil.rmtree(path)
    shutil.copytree(base, path)
    status, facts = in_child(lambda: command(Ticks(int(share * peace["ticks"]), False, interrupt)))
    said, same = log.read_text(), digest(path) == digest(base)
    in_child(lambda: command(Ticks(0, False, interrupt)))
    found.append({"status": status, "facts": facts, "said": said, "same": same, "end": digest(path) == wanted})
sys.stdout.write(json.dumps(found))
"""


def test_ctrl_c_at_any_moment_is_one_line_and_exit_code_130_and_the_learn_can_go_on(
    tmp_path: Path, models: Models
) -> None:
    shares = (0.1, 0.4, 0.6, 0.75, 0.85)
    run = run_python(INTERRUPTED, models.second, models.base, tmp_path / "model", tmp_path / "log", *shares)
    assert run.returncode == 0, run.stderr
    for one in json.loads(run.stdout):
        assert (one["status"], one["facts"]["code"]) == (0, 130), one
        errors = [line for line in one["said"].splitlines() if line.startswith("treering:")]
        assert len(errors) == 1, one
        assert "interrupted" in errors[0]
        assert "run the same command again" in errors[0]
        assert one["said"].endswith(errors[0] + "\n")
        assert "Traceback" not in one["said"]
        assert one["same"], one
        assert one["end"], one


COMMAND = """
import signal, sys, torch
from treering import cli
from treering.photos import learn as photos
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
torch.set_num_threads(1)
photos.SAVE_EVERY = 0.0
sys.argv[0] = "treering"
cli.main()
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_is_not_blamed_on_the_model(tmp_path: Path, models: Models) -> None:
    arguments = ["learn", str(tmp_path / "model"), str(models.first), "--backbone", "small"]
    paths = os.pathsep.join([str(Path(treering.__file__).parents[1]), str(Path(__file__).parent)])
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *arguments],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
        )
    assert (done.returncode, done.stderr) == (2, "treering: the output cannot be written: No space left on device\n")


def test_ctrl_c_stops_the_command_and_the_same_command_goes_on(tmp_path: Path, models: Models) -> None:
    settings = [part for change in [*CHANGES, "training.epochs=100"] for part in ("--set", change)]
    path = tmp_path / "model"
    arguments = ["learn", path, models.first, "--backbone", "small", "--memory", MEMORY, "--device", "cpu", *settings]
    paths = os.pathsep.join([str(Path(treering.__file__).parents[1]), str(Path(__file__).parent)])
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        end = time.monotonic() + 600
        while not (path / ".learning").exists() and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert err.startswith(f"treering: interrupted; {path} is as it was")
    assert "Traceback" not in out
    told: list[Plan] = []
    photos.learn(
        path,
        models.first,
        backbone="small",
        memory=MEMORY,
        changes=[*CHANGES, "training.epochs=100"],
        device="cpu",
        tell=told.append,
    )
    assert told[0].resumed
    assert leftovers(path) == []


# --- A file system without unnamed files ------------------------------------------------------------------------------


def test_a_first_learn_killed_while_it_opens_its_temporary_file_can_be_begun_again(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where O_TMPFILE is not to be had, the file has a name for a moment."""
    path = tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "_O_TMPFILE_WORKS", False)
        patch.setattr(tempfile._os, "unlink", lambda *arguments, **settings: learn_helper.kill_myself())
        status, _ = learn_helper.in_child(lambda: learn(path, models.first))
    assert status == -signal.SIGKILL
    learn(path, models.first)
    assert model_state(path) == models.before


def test_no_photo_is_left_in_the_model_folder_as_a_temporary_file(tmp_path: Path, models: Models) -> None:
    path = models.copy(tmp_path / "model")
    seen: set[str] = set()

    def look(what: str, done: int, total: int) -> None:
        seen.update(file.name for file in path.iterdir() if not names.is_ours(file.name))

    learn(path, models.second, progress=look)
    assert seen == set()
