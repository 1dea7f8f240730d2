"""Runs: one method over one stream, resumable.

A run writes one result JSON when it ends. Until then its state lies beside it in `.unfinished/`, saved at the start of
each step and every `SAVE_EVERY` seconds at the end of an epoch, so a killed run goes on from there.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from treering import methods, session, words
from treering.core import metrics
from treering.core.trainer import EpochReport, InFlight, Watcher
from treering.data.stream import ResidentImages, Stream, StreamStep, class_order
from treering.errors import TreeringError
from treering.experiments import result, stored
from treering.experiments.result import method_label
from treering.experiments.state import SCORES, Record, StateFile
from treering.experiments.stored import Result
from treering.methods.base import Step
from treering.recipe import Recipe
from treering.runtime import file_lock, files
from treering.runtime.commit import current_commit
from treering.runtime.device import describe
from treering.version import __version__

logger = words.logger(__name__)

SAVE_EVERY = 60.0
"""The number of seconds between two saves of the state of a run."""


@dataclass(frozen=True)
class RunProgress:
    """How far a run has come after an epoch."""

    step: int
    """The number of the step, from 1."""
    steps: int
    stage: str
    epoch: int
    """The number of the epoch within the stage, from 1."""
    epochs: int
    image_passes: int
    """The number of image passes so far."""
    image_passes_planned: int
    """The number of image passes in the whole run."""
    seconds: float
    """The training time so far, including the earlier parts of an interrupted run."""
    images_per_second: float
    """The speed since training began or was resumed in this process."""
    accuracy_before: float | None
    """The accuracy in percent after the step before this one."""


def data_facts(images: ResidentImages, recipe: Recipe) -> dict[str, Any]:
    """Return what tells a dataset from another one of the same name."""
    order = class_order(len(images.class_names), recipe.run.order)
    return {
        "class_order": [images.class_names[label] for label in order],
        "images": {"train": len(images.train_labels), "test": len(images.test_labels)},
        "images_digest": images.digest,
    }


class StreamRun(Watcher):
    """One run, from its start or from where it was interrupted, to its result. It watches its own steps."""

    def __init__(self, recipe: Recipe, images: ResidentImages, results: Path) -> None:
        if recipe.memory.held_out:
            raise TreeringError("memory.held_out is for `treering learn`: a run has test images, so set it to 0")
        self.recipe, self.images, self.results = recipe, images, results
        self.watch: Callable[[RunProgress], None] = lambda progress: None
        self.stopping = False
        """Another thread sets this to end the run after the current epoch, with its state saved."""
        self.runs_at_once = 1
        self.stream = Stream(images, recipe.run.classes_per_step, recipe.run.order)
        if len(self.stream) > stored.MOST_STEPS:  # its result could not be read
            most = f"a run has {stored.MOST_STEPS:,} steps at most, not {len(self.stream):,}"
            raise TreeringError(f"{most}: set run.classes_per_step to more classes")
        counts = torch.bincount(images.train_labels, minlength=len(images.class_names)).tolist()
        planned = methods.find(recipe.method).plan(
            recipe, [{label: counts[label] for label in classes} for classes in self.stream.steps]
        )
        self.image_passes_planned = sum(stage.image_passes for step in planned for stage in step)
        self._largest_stage = max(stage.images for step in planned for stage in step)

        first = next(iter(self.stream)).images
        self.method = session.begin(recipe, first, recipe.run.seed, first.device)
        self.method.network.reserve(len(images.class_names))
        further = {name: getattr(self.method, readout) for name, readout in self.method.further_readouts.items()}
        self._readouts = {method_label(recipe): self.method.probabilities} | further
        sizes = torch.tensor([len(classes) for classes in self.stream.steps])
        self._task_of_class = torch.arange(len(sizes)).repeat_interleave(sizes).to(first.device)
        self._confusion: dict[str, list[list[int]]] = {}

        self.files = result.files_of(recipe, results)
        self.result_file = result.result_file(recipe, results)
        self._data = data_facts(images, recipe)
        self.state = StateFile(result.state_file(recipe, results), recipe, self._data)
        self.record = Record(
            devices=[describe(first.device)],
            commits=[current_commit()],
            torch_versions=[torch.__version__],
            scores={label: {score: [] for score in SCORES} for label in self._readouts},
        )
        self._clock = self._saved = 0.0
        self._start = self.method.snapshot()
        """The method as it was when the present step began."""
        self._passed = 0
        """The image passes of the present step outside of training, which a resumed step makes again."""
        self._taken_up = 0, 0.0
        """The image passes and seconds of earlier parts of the run."""

    def prepare(self) -> None:
        """Compile and capture once for the whole run, if the engine does and the run is not finished yet."""
        if not self.result_file.exists():
            self._clock = time.perf_counter()
            self.method.prepare(self._largest_stage)
            self._tick("set-up")

    def __call__(self) -> Result:
        """Run to the end, write the result files and return the method's own result."""
        lock = self.state.file.with_suffix(".lock")
        try:
            self.state.make_folder()
            with file_lock.held(lock, lock.with_suffix(".writer")):
                return result.finished(self.recipe, self.results, self._data) or self._run()
        except file_lock.HeldError as holder:
            raise TreeringError(f"{holder} is doing this run: wait for it, or choose another results folder") from None
        except OSError as error:
            raise TreeringError(files.why(self.results, error)) from None

    def _run(self) -> Result:
        self.prepare()
        in_flight = self._go_on()
        self.record.runs_at_once = max(self.record.runs_at_once, self.runs_at_once)
        self._taken_up = self.record.image_passes, self.record.seconds
        self._clock = self._saved = time.perf_counter()
        for number, step in enumerate(self.stream, 1):
            if number <= self.record.steps_done:
                continue
            self._start, self._passed = self.method.snapshot(), 0
            if in_flight is None:
                self._save(None)
            task, seed = Step(step.images, step.labels, len(step.classes)), self.recipe.run.seed
            session.learn(self.method, task, number, seed, resume=in_flight, watcher=self, before=self._start)
            in_flight = None
            self._evaluate(step)
            self.record.steps_done += 1
        # The method's own result comes last: once its file exists, the run is finished.
        for label in reversed(self._readouts):
            made = self._result(label)
            stored.write(self.files[label], made)
        self.state.remove()
        return made

    def _go_on(self) -> InFlight | None:
        """Restore the saved state, if there is one of this very run; return the step that was under way."""
        this_time = self.record
        taken_up = self.state.take_up(
            self.method, list(map(len, self.stream.steps)), this_time.devices[0], self.images.train_images
        )
        if taken_up is None:
            return None
        self.record, in_flight = taken_up
        self.record.commits = list(dict.fromkeys(self.record.commits + this_time.commits))
        self.record.torch_versions = list(dict.fromkeys(self.record.torch_versions + this_time.torch_versions))
        self.record.count(this_time.seconds, "set-up")
        return in_flight

    def _save(self, in_flight: InFlight | None) -> None:
        record = replace(self.record, image_passes=self.record.image_passes - self._passed)
        self.state.save(self._start, in_flight, record)
        self._saved = time.perf_counter()

    def _tick(self, what: str) -> None:
        """Count the time since the last tick as `what`."""
        now = time.perf_counter()
        spent, self._clock = now - self._clock, now
        self.record.count(spent, what)

    def ready(self) -> None:
        if self.method.generator.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._tick("construction of training sets")

    def passed(self, images: int) -> None:
        self._tick("features")
        self.record.image_passes += images
        self._passed += images

    def epoch(self, report: EpochReport) -> None:
        self._tick(report.stage)
        self.record.image_passes += report.image_passes
        if self.stopping or time.perf_counter() - self._saved >= SAVE_EVERY:
            self._save(report.state())
        if self.stopping:
            raise KeyboardInterrupt
        accuracy = self.record.scores[method_label(self.recipe)]["accuracy"]
        passes_before, seconds_before = self._taken_up
        seconds = max(self.record.seconds - seconds_before, 1e-9)
        self.watch(
            RunProgress(
                self.record.steps_done + 1,
                len(self.stream),
                report.stage,
                report.epoch,
                report.epochs,
                self.record.image_passes,
                self.image_passes_planned,
                self.record.seconds,
                (self.record.image_passes - passes_before) / seconds,
                accuracy[-1] if accuracy else None,
            )
        )

    def _evaluate(self, step: StreamStep) -> None:
        """Record the accuracy on the test images of all classes so far; nothing is chosen by it."""
        task_of_class = self._task_of_class[: self.method.network.classes]
        every_class = torch.arange(len(task_of_class), device=task_of_class.device)
        for label, readout in self._readouts.items():
            found, wanted = readout(step.test_images), step.test_labels
            scores = self.record.scores[label]
            scores["accuracy"].append(metrics.top_k(found, wanted))
            scores["top5"].append(metrics.top_k(found, wanted, 5))
            scores["class_accuracy"].append(_rounded(metrics.by_group(found, wanted, every_class)))
            scores["task_accuracy"].append(_rounded(metrics.by_known_task(found, wanted, task_of_class)))
            self._confusion[label] = metrics.confusion(found, wanted)
            logger.info("%s: step %d: %.2f %%", label, len(scores["accuracy"]), scores["accuracy"][-1])
        self._tick("selection and evaluation")

    def _result(self, label: str) -> Result:
        recipe, record, scores = self.recipe, self.record, self.record.scores[label]
        versions: dict[str, Any] = {"treering": __version__, "python": platform.python_version()}
        return {
            "method": label,
            "dataset": recipe.run.dataset,
            "classes_per_step": recipe.run.classes_per_step,
            "memory": {"kind": recipe.memory.kind, "size": recipe.memory.size if self.method.keeps_memory else 0},
            "selection": recipe.memory.selection,
            "order": recipe.run.order,
            "seed": recipe.run.seed,
            "accuracy": scores["accuracy"],
            "top5": scores["top5"],
            "average_without_first": metrics.average_without_first(scores["accuracy"]),
            "average": metrics.average(scores["accuracy"]),
            "task_aware_accuracy": [metrics.average(tasks) for tasks in scores["task_accuracy"]],
            "image_passes": record.image_passes,
            "seconds": record.seconds,
            "images_per_second": record.image_passes / record.seconds,
            "runs_at_once": record.runs_at_once,
            "seconds_by_stage": record.seconds_by_stage,
            "device": ", ".join(record.devices),
            "versions": versions | {"torch": ", ".join(record.torch_versions)},
            "commit": ", ".join(record.commits),
            "recipe": recipe.to_dict(),
            **self._data,
            "class_accuracy": scores["class_accuracy"],
            "task_accuracy": scores["task_accuracy"],
            "confusion": self._confusion[label],
        }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]
