"""A run so tiny that it takes a fraction of a second, how to interrupt it, and a script that kills it again and again.

`python run_helper.py FOLDER SEED KILLS` first lets a run end in peace, then starts runs of the same recipe that are
killed with SIGKILL at random moments, half of them inside a save, and started again until they end. Moments are counted
in Python's calls and returns, so that they are the same on every machine. It prints what each run came to as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RECIPE, TinyFeatures, images_of
from rich.console import Console

from treering import Recipe
from treering.core import backbones
from treering.data.stream import Dataset, ResidentImages
from treering.experiments import run as runner
from treering.experiments import scheduler, stored
from treering.experiments.console import RunDisplay, show_results
from treering.experiments.result import run_name
from treering.methods import Method
from treering.recipe import Budget, Run, Schedule
from treering.runtime import files

TINY = replace(
    RECIPE,
    backbone="tiny",
    training=Schedule(epochs=2, lr=0.05),
    balanced=Schedule(epochs=2, lr=0.01),
    memory=Budget(size=14),
    run=Run("tiny", 2),
)
"""Three steps, ten epochs in all. Its backbone has to be registered: see `register`."""


def tiny_dataset(classes: int = 6, per_class: int | Sequence[int] = 6, tests_per_class: int = 4) -> Dataset:
    """Images of 8 x 8 pixels."""
    counts = [per_class] * classes if isinstance(per_class, int) else per_class
    train = np.random.RandomState(0).permutation([label for label in range(classes) for _ in range(counts[label])])
    test = np.random.RandomState(1).permutation([label for label in range(classes) for _ in range(tests_per_class)])
    names = tuple(f"class {label}" for label in range(classes))
    return Dataset("tiny", images_of(train, seed=2), train, images_of(test, seed=3), test, names)


def tiny_images(classes: int = 6, per_class: int | Sequence[int] = 6, tests_per_class: int = 4) -> ResidentImages:
    """The same, as runs take them."""
    return ResidentImages.of(tiny_dataset(classes, per_class, tests_per_class), torch.device("cpu"))


def register(backbone: dict[str, Any]) -> None:
    """Make `tiny` a backbone."""
    backbone["tiny"] = TinyFeatures


def digest(method: Method) -> str:
    """Of every bit a method has learnt: network, memory in its order, generator."""
    state = hashlib.sha256()
    for name, tensor in method.network.tensors().items():
        state.update(name.encode() + tensor.numpy().tobytes())
    for label, images in method.memory.exemplars.items():
        state.update(b"%d" % label + images.contiguous().numpy().tobytes())
    state.update(method.generator.get_state().numpy().tobytes())
    return state.hexdigest()


def child(recipe: Recipe, images: ResidentImages, results: Path, moment: int, in_saves: bool) -> None:
    """Run, or go on with a run, and die at `moment`; ends the process."""
    runner.SAVE_EVERY = 0.0
    count = {"now": 0}
    saving: list[Path] = []
    write = files.write

    def tick(frame: Any, event: str, argument: Any) -> None:
        if saving or not in_saves:
            count["now"] += 1
            if count["now"] == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    def watched_write(file: Path, content: bytes) -> None:
        if file.suffix == ".json":  # the run is over: what follows is only its result
            (results / "digest").write_text(digest(run.method))
        saving.append(file)
        write(file, content)
        saving.clear()

    runner.files.write = watched_write
    sys.setprofile(tick)
    run = runner.StreamRun(recipe, images, results)
    run()
    sys.setprofile(None)
    (results / "moments").write_text(str(count["now"]))
    os._exit(0)


def attempt(recipe: Recipe, images: ResidentImages, results: Path, moment: int = 0, in_saves: bool = False) -> bool:
    """A process of its own for `child`; returns whether it came to its end."""
    process = os.fork()
    if not process:
        try:
            child(recipe, images, results, moment, in_saves)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status not in (0, -signal.SIGKILL):
        sys.exit(f"the run ended with {status}")
    return status == 0


def outcome(results: Path, kills: int, in_flight: int) -> dict[str, Any]:
    """What a finished run left."""
    (file,) = results.glob("*.json")
    facts = {"result": stored.read(file), "digest": (results / "digest").read_text()}
    return facts | {"kills": kills, "resumed_in_flight": in_flight}


def saved_in_flight(results: Path) -> bool:
    """Whether the saved state is one from within a step."""
    return any(b'\\"current\\"' in file.read_bytes() for file in results.glob(".unfinished/*.safetensors"))


def main(folder: Path, seed: int, kills: int) -> None:
    torch.set_num_threads(1)
    register(backbones.BACKBONES)
    images, draw = tiny_images(), random.Random(seed)
    (folder / "peace").mkdir(parents=True)
    attempt(TINY, images, folder / "peace")
    moments = int((folder / "peace" / "moments").read_text())
    outcomes = [outcome(folder / "peace", 0, 0)]
    while sum(each["kills"] for each in outcomes) < kills:
        results = folder / str(len(outcomes))
        results.mkdir()
        killed = in_flight = 0
        while True:
            in_saves = draw.random() < 0.5
            moment = draw.randint(1, 80) if in_saves else draw.randint(1, moments // 2)
            if killed >= kills:
                moment = 0
            if attempt(TINY, images, results, moment, in_saves):
                break
            killed += 1
            in_flight += saved_in_flight(results)
        outcomes.append(outcome(results, killed, in_flight))
    sys.stdout.write(json.dumps(outcomes))


TIMES = ("seconds", "images_per_second", "seconds_by_stage")


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """What must be equal in two runs of one recipe, as JSON holds it."""
    return {key: value for key, value in json.loads(json.dumps(result)).items() if key not in TIMES}


def result_files(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder without what differs between two runs of one recipe."""
    return {file.name: without_times(stored.read(file)) for file in folder.glob("*.json")}


def run_in_console(screen: Console, recipes: Sequence[Recipe], data: Path, results: Path) -> list[str]:
    """Run these recipes on the CPU as `treering run` does; returns what it says of those that failed."""
    with RunDisplay(screen, [run_name(recipe) for recipe in recipes]) as display:
        outcomes = scheduler.run_all(recipes, scheduler.Place(data, results, torch.device("cpu")), observer=display)
    show_results(screen, outcomes, results)
    return scheduler.failures(outcomes)


class Interruptible:
    """A recipe, its images, and what an uninterrupted run of them comes to."""

    def __init__(self, recipe: Recipe, folder: Path, images: ResidentImages) -> None:
        self.recipe, self.folder, self.images = recipe, folder, images
        whole = self.start("whole")
        epochs: list[runner.RunProgress] = []
        whole.watch = epochs.append
        whole()
        self.digest, self.epochs, self.results = digest(whole.method), len(epochs), result_files(folder / "whole")

    def start(self, results: str) -> runner.StreamRun:
        return runner.StreamRun(self.recipe, self.images, self.folder / results)

    def interrupt(self, results: str, epochs: int) -> runner.StreamRun:
        """A run that is interrupted after so many epochs of its own."""
        run = self.start(results)
        seen: list[runner.RunProgress] = []

        def watch(now: runner.RunProgress) -> None:
            seen.append(now)
            if len(seen) == epochs:
                raise KeyboardInterrupt

        run.watch = watch
        with pytest.raises(KeyboardInterrupt):
            run()
        assert not result_files(self.folder / results)
        assert run.state.file.exists()
        return run

    def check_the_end(self, results: str, epochs_left: int | None = None) -> None:
        """Start once more: the run must come to what the uninterrupted one came to, bit for bit."""
        run = self.start(results)
        seen: list[runner.RunProgress] = []
        run.watch = seen.append
        assert without_times(run()) == self.results[run.result_file.name]
        assert result_files(self.folder / results) == self.results
        assert digest(run.method) == self.digest, "network, memory and generator"
        assert not run.state.file.exists()
        if epochs_left is not None:
            assert len(seen) == epochs_left


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
