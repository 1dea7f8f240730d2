"""Several runs in one process: none disturbs another, and Ctrl-C loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import run_helper
import torch
from run_helper import TINY, tiny_images, without_times

from treering import TreeringError
from treering.core import backbones
from treering.experiments import MOST_AT_ONCE
from treering.experiments.run import StreamRun
from treering.experiments.scheduler import run_many
from treering.recipe import Run


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREERING_COMMIT", "of the tests")  # somebody may commit while they run
    monkeypatch.setitem(backbones.BACKBONES, "tiny", run_helper.TinyFeatures)


@pytest.mark.parametrize("failure", [TreeringError("no"), RuntimeError("no"), MemoryError("no")], ids=repr)
def test_an_error_in_one_run_does_not_lose_the_others_and_is_told_at_once(
    tmp_path: Path, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    images = tiny_images()
    runs = [StreamRun(replace(TINY, run=Run("tiny", 3, order=order)), images, tmp_path) for order in range(3)]

    def fail(*args: Any) -> None:
        raise failure

    told_before_the_last: list[str] = []
    runs[1].method.learn_step = fail  # type: ignore[method-assign]
    runs[2].watch = lambda progress: told_before_the_last.extend(caplog.messages)
    outcomes = run_many(runs)
    assert outcomes[1] is failure
    told = [message for message in caplog.messages if "failed" in message]
    what = "no" if isinstance(failure, TreeringError) else repr(failure)
    assert told == [f"{runs[1].result_file.stem} has failed: {what}"]
    assert told[0] in told_before_the_last
    for order in (0, 2):
        assert outcomes[order]["order"] == order  # type: ignore[index]
        assert json.loads(runs[order].result_file.read_text())["order"] == order
    assert not runs[1].result_file.exists()
    assert run_many([]) == []


def test_runs_in_one_process_do_not_disturb_each_other(tmp_path: Path) -> None:
    images = tiny_images()
    recipes = [replace(TINY, run=Run("tiny", 2, seed=seed)) for seed in (0, 1)]
    together = run_many([StreamRun(recipe, images, tmp_path / "together") for recipe in recipes])
    alone = [StreamRun(recipe, images, tmp_path / recipe.run.dataset)() for recipe in recipes[::-1]][::-1]
    for one, other in zip(together, alone, strict=True):
        assert without_times(one) == without_times(other)  # type: ignore[arg-type]
    assert without_times(alone[0])["confusion"] != without_times(alone[1])["confusion"]


class Epochs:
    """Stands in for a run on a GPU: it trains until it is told to stop, and saves when no more signals are to come."""

    def __init__(self, quiet: threading.Event) -> None:
        self.method = SimpleNamespace(generator=SimpleNamespace(device=torch.device("cuda")))
        self.image_passes_planned = self.runs_at_once = 1
        self.result_file = Path("none yet")
        self.stopping = self.saved = False
        self.training = threading.Event()
        self.quiet = quiet

    def prepare(self) -> None:
        pass

    def __call__(self) -> None:
        self.training.set()
        deadline = time.monotonic() + 10
        while not self.stopping and time.monotonic() < deadline:
            time.sleep(0.01)
        self.saved = self.stopping and self.quiet.wait(10)
        raise KeyboardInterrupt


def no_streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have runs at once go without a GPU; returns the priorities of the streams that they ask for."""
    priorities = []

    def stream(priority: int) -> SimpleNamespace:
        priorities.append(priority)
        return SimpleNamespace(wait_stream=lambda other: None)

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    return priorities


def test_the_longest_runs_that_are_not_finished_go_first_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    priorities = no_streams(monkeypatch)
    runs = [Epochs(threading.Event()) for _ in range(5)]
    for run, passes in zip(runs, (3, 7, 5, 7, 9), strict=True):
        run.image_passes_planned, run.stopping = passes, True
    runs[4].result_file = Path(__file__)  # any file: where it is, the run is finished
    run_many(runs)  # type: ignore[arg-type]
    assert priorities == [0, -1, 0, -1, 0]


@pytest.mark.parametrize("moment", ["while they are started", "while they train"])
def test_runs_at_once_save_their_states_however_often_they_are_interrupted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    no_streams(monkeypatch)
    quiet = threading.Event()
    runs = [Epochs(quiet) for _ in range(3)]
    heard = []
    start = threading.Thread.start

    def interrupt() -> None:
        for run in runs:
            run.training.wait(10)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        quiet.set()

    def start_and_interrupt(thread: threading.Thread) -> None:
        start(thread)
        signal.raise_signal(signal.SIGINT)
        quiet.set()

    before = signal.signal(signal.SIGINT, lambda *_: heard.append([run.saved for run in runs]))
    interrupter = threading.Thread(target=interrupt)
    try:
        if moment == "while they train":
            interrupter.start()
        else:
            monkeypatch.setattr(threading.Thread, "start", start_and_interrupt)
        outcomes = run_many(runs)  # type: ignore[arg-type]
    finally:
        monkeypatch.undo()
        if interrupter.ident:
            interrupter.join()
        signal.signal(signal.SIGINT, before)
    # Whoever handled the signal before hears of it once, when all that had begun is saved.
    started = [run.training.is_set() for run in runs]
    assert started[0]
    assert heard == [started]
    assert all(isinstance(outcome, TreeringError) for outcome in outcomes)
    assert caplog.text.count("ends its epoch and saves its state") == 1


def test_no_two_runs_that_are_captured_together_share_a_stream() -> None:
    """Torch hands out 32 of them in turn; a run of GEM takes three."""
    assert 3 * MOST_AT_ONCE < 32
