"""Many runs in one process: finished ones are skipped, and on a GPU several of the others train at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from treering import data, words
from treering.data.stream import ResidentImages
from treering.errors import OUT_OF_MEMORY, TreeringError, is_out_of_memory
from treering.experiments import MOST_AT_ONCE
from treering.experiments.result import finished, is_of_other_images, result_file, run_name
from treering.experiments.run import StreamRun, data_facts
from treering.experiments.stored import Result
from treering.recipe import Recipe
from treering.runtime import interrupts

logger = words.logger(__name__)

Outcome = Result | Exception
"""The outcome of a run: its result, or the error that ended it."""


class Observer:
    """An observer of runs. This one ignores all that it is told; a subclass shows what it wants."""

    def done_before(self, name: str, file: Path) -> None:
        """Take note that a run already has its result."""

    def begins(self, name: str, run: StreamRun) -> None:
        """Take note that a run is ready; set `run.watch` to follow it."""


@dataclass(frozen=True)
class Place:
    """Where runs find their data, put their results and train."""

    data: Path
    results: Path
    device: torch.device
    download: bool = False
    """Whether a missing dataset may be fetched."""


def run_all(
    recipes: Sequence[Recipe], place: Place, at_once: int = 8, observer: Observer | None = None
) -> Mapping[str, Outcome]:
    """Run every recipe, up to `at_once` together on a GPU; return each run's outcome by the run's name."""
    observer = observer or Observer()
    by_name = {run_name(recipe): recipe for recipe in recipes}
    if len(by_name) < len(recipes):
        names = [run_name(recipe) for recipe in recipes]
        twice = next(name for name in names if names.count(name) > 1)
        raise TreeringError(f"two of the recipes have the same result file, {twice}.json: run them one after the other")
    wave = _Wave(place, observer, len(recipes))
    for name, recipe in by_name.items():
        wave.look_for_result(name, recipe)
    todo = [name for name in by_name if name not in wave.outcomes]
    for start in range(0, len(todo), MOST_AT_ONCE):  # all of these are captured before any of them trains
        ready = {name: wave.prepared(name, by_name[name]) for name in todo[start : start + MOST_AT_ONCE]}
        runs = {name: run for name, run in ready.items() if run}
        wave.outcomes |= zip(runs, run_many(list(runs.values()), at_once), strict=True)
    wave.compare_images(by_name)
    return {name: wave.outcomes[name] for name in by_name}


class _Wave:
    """What becomes of runs: what they came to so far, and the datasets that were loaded for them."""

    def __init__(self, place: Place, observer: Observer, count: int) -> None:
        self.place, self.observer, self.count = place, observer, count
        self.outcomes: dict[str, Outcome] = {}
        self._images: dict[tuple[str, int], ResidentImages | TreeringError] = {}

    def look_for_result(self, name: str, recipe: Recipe) -> None:
        """Take a run's result if it has one already."""
        try:
            done = finished(recipe, self.place.results)
        except TreeringError as error:
            self._fail(name, error)
            return
        if done:
            self.outcomes[name] = done
            self.observer.done_before(name, result_file(recipe, self.place.results))

    def prepared(self, name: str, recipe: Recipe) -> StreamRun | None:
        """Load the data, once for all runs, and build the run; None if it fails."""
        key = recipe.run.dataset, recipe.run.image_size
        try:
            if key not in self._images:
                try:
                    found = data.load(key[0], self.place.data, self.place.download, key[1])
                    self._images[key] = ResidentImages.of(found, self.place.device)
                except TreeringError as error:
                    self._images[key] = error
            images = self._images[key]
            if isinstance(images, TreeringError):
                raise images
            run = StreamRun(recipe, images, self.place.results)
        except TreeringError as error:
            self._fail(name, error)
            return None
        self.observer.begins(name, run)
        return run

    def compare_images(self, recipes: Mapping[str, Recipe]) -> None:
        """Refuse results found before if the dataset, where it was loaded for others, has other images than theirs."""
        for name, recipe in recipes.items():
            images, outcome = self._images.get((recipe.run.dataset, recipe.run.image_size)), self.outcomes[name]
            if not isinstance(images, ResidentImages) or not isinstance(outcome, dict):
                continue
            if is_of_other_images(outcome, data_facts(images, recipe)):
                file = result_file(recipe, self.place.results)
                self._fail(name, TreeringError(f"{file} holds a run on other images: choose another results folder"))

    def _fail(self, name: str, error: TreeringError) -> None:
        self.outcomes[name] = error
        if self.count > 1:  # told now, since the other runs may take hours
            logger.error("%s has failed: %s", name, error)


def failures(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return a line for each run that failed; raise an error that a user cannot put right."""
    errors = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Exception)}
    for error in errors.values():
        if not isinstance(error, TreeringError) and not is_out_of_memory(error):
            raise error
    return [f"{name}: {OUT_OF_MEMORY if is_out_of_memory(error) else error}" for name, error in errors.items()]


def run_many(runs: Sequence[StreamRun], at_once: int = 8) -> list[Outcome]:
    """Run all to the end; on a GPU up to `at_once` train together, each with a thread and a stream of its own.

    An error ends only its own run. After Ctrl-C, runs that train together end their epoch and save their state first.
    """
    outcomes: list[Outcome] = [TreeringError("the run was interrupted") for _ in runs]

    def guarded(index: int, action: Callable[[], Result | None]) -> bool:
        try:
            outcomes[index] = action() or outcomes[index]
        except Exception as error:
            outcomes[index] = error
            if len(runs) > 1:  # told now, since the other runs may take hours
                what = error if isinstance(error, TreeringError) else repr(error)
                logger.error("%s has failed: %s", runs[index].result_file.stem, what)
            return False
        except KeyboardInterrupt:
            if not runs[index].stopping:
                raise
        return True

    if all(run.method.generator.device.type == "cuda" for run in runs):
        _train_together(runs, at_once, guarded)
    else:
        for index, run in enumerate(runs):
            guarded(index, run)
    return outcomes


def _train_together(
    runs: Sequence[StreamRun], at_once: int, guarded: Callable[[int, Callable[[], Result | None]], bool]
) -> None:
    """Prepare the runs one after the other, then train each in a thread with a stream of its own."""
    slots = threading.Semaphore(at_once)

    def work(index: int, stream: torch.cuda.Stream) -> None:
        with slots, torch.cuda.stream(stream):
            if not runs[index].stopping:
                guarded(index, runs[index])

    def stop() -> None:
        if not any(run.stopping for run in runs):
            logger.warning("interrupted: each run ends its epoch and saves its state first")
        for run in runs:
            run.stopping = True

    most_passes = max((run.image_passes_planned for run in runs if not run.result_file.exists()), default=0)
    threads = []
    for index, run in enumerate(runs):
        run.runs_at_once = min(len(runs), at_once)
        # The longest of the runs to do have priority on the device, so that none is left to run alone in the end.
        stream = torch.cuda.Stream(priority=-1 if run.image_passes_planned == most_passes else 0)
        stream.wait_stream(torch.cuda.current_stream())  # it copied the images and weights
        with torch.cuda.stream(stream):
            # One after the other and before any run trains: captures and training do not mix.
            if guarded(index, run.prepare):
                threads.append(threading.Thread(target=work, args=(index, stream), daemon=True))
    with interrupts.deferred(stop):  # C++ aborts a Python that ends while its threads train
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
