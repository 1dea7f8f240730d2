"""Many runs in one process: finished ones are skipped, and on a GPU several of the others train at once."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from treering import data
from treering.data.stream import ResidentImages
from treering.errors import OUT_OF_MEMORY, TreeringError, is_out_of_memory
from treering.experiments import MOST_AT_ONCE
from treering.experiments.result import Result, files_of, finished, run_name
from treering.experiments.run import StreamRun
from treering.recipe import Recipe
from treering.runtime import interrupts

logger = logging.getLogger(__name__)

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
    outcomes: dict[str, Outcome] = {}
    for name, recipe in by_name.items():
        try:
            done = finished(recipe, place.results)
        except TreeringError as error:
            outcomes[name] = error
            continue
        if done:
            outcomes[name] = done
            observer.done_before(name, next(iter(files_of(recipe, place.results).values())))
    todo = [name for name in by_name if name not in outcomes]
    prepared = functools.cache(functools.partial(_resident, place))
    for start in range(0, len(todo), MOST_AT_ONCE):  # all of these are captured before any of them trains
        ready: dict[str, StreamRun] = {}
        for name in todo[start : start + MOST_AT_ONCE]:
            recipe = by_name[name]
            try:
                images = prepared(recipe.run.dataset, recipe.run.image_size)
                if isinstance(images, TreeringError):
                    raise images
                ready[name] = StreamRun(recipe, images, place.results)
            except TreeringError as error:
                outcomes[name] = error
                continue
            observer.begins(name, ready[name])
        outcomes |= zip(ready, run_many(list(ready.values()), at_once), strict=True)
    return {name: outcomes[name] for name in by_name}


def _resident(place: Place, dataset: str, image_size: int) -> ResidentImages | TreeringError:
    """Load a dataset onto the device once, or fail once."""
    try:
        return ResidentImages.of(data.load(dataset, place.data, place.download, image_size), place.device)
    except TreeringError as error:
        return error


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
