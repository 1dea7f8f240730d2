"""Runs: one method over one stream, resumable.

A run writes one result JSON when it ends. Until then its state lies beside it in `.unfinished/`, saved at the start of
each step and every `SAVE_EVERY` seconds at the end of an epoch, so a killed run goes on from there. A state that cannot
be taken up is kept under another name.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import safetensors
import safetensors.torch
import torch

from treering import methods
from treering.core import backbones, metrics
from treering.core.trainer import EpochReport, InFlight
from treering.data.stream import ResidentImages, Stream, StreamStep
from treering.errors import TreeringError
from treering.experiments.result import method_label, run_name
from treering.methods.base import Step
from treering.recipe import Recipe
from treering.runtime import files, randomness
from treering.storage import resume as in_flight_files
from treering.storage.resume import prefixed, unprefixed
from treering.version import __version__

logger = logging.getLogger(__name__)

SAVE_EVERY = 60.0
"""Seconds between two saves of the state of a run."""


@dataclass(frozen=True)
class RunProgress:
    """Where a run is, after an epoch."""

    step: int
    """From 1."""
    steps: int
    stage: str
    epoch: int
    """From 1 within the stage."""
    epochs: int
    image_passes: int
    """So far."""
    image_passes_planned: int
    """Of the whole run."""
    seconds: float
    """So far, an interrupted run's earlier parts included."""
    images_per_second: float
    """Since training began, or went on, in this process."""
    accuracy_before: float | None
    """After the step before this one."""


class StreamRun:
    """One run, from its start or from where it was interrupted, to its result."""

    def __init__(self, recipe: Recipe, images: ResidentImages, results: Path) -> None:
        if recipe.memory.held_out:
            raise TreeringError("memory.held_out is for `treering learn`: a run has test images, so set it to 0")
        self.recipe, self.images = recipe, images
        self.watch: Callable[[RunProgress], None] = lambda progress: None
        self.stopping = False
        """Set from another thread, it ends the run after the epoch that is under way, with its state saved."""
        self.runs_at_once = 1
        self.stream = Stream(images, recipe.run.classes_per_step, recipe.run.order)
        counts = torch.bincount(images.train_labels, minlength=len(images.class_names)).tolist()
        planned = methods.find(recipe.method).plan(
            recipe, [{label: counts[label] for label in classes} for classes in self.stream.steps]
        )
        self.image_passes_planned = sum(stage.image_passes for step in planned for stage in step)

        first = next(iter(self.stream))
        features = backbones.build(recipe.backbone, first.images.shape[1], recipe.run.seed)
        mean = backbones.input_mean(features, first.images, recipe.augmentation, recipe.pixel_scale).cpu()
        device = first.images.device
        self.method = methods.create(recipe, features, mean, recipe.run.seed, device)
        self.method.network.reserve(len(images.class_names))
        self._largest_stage = max(stage.images for step in planned for stage in step)
        self.method.trainer.on_start = self._ready
        self.method.trainer.on_epoch = self._epoch

        self.result_file = results / f"{run_name(recipe)}.json"
        self.state_file = results / ".unfinished" / f"{run_name(recipe)}.safetensors"
        further = {name: getattr(self.method, readout) for name, readout in self.method.further_readouts.items()}
        self._readouts = {method_label(recipe): self.method.probabilities} | further
        self._files = {label: results / f"{run_name(recipe, label)}.json" for label in self._readouts}
        self._device = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        self.record: dict[str, Any] = {"steps_done": 0, "image_passes": 0, "seconds": 0.0, "seconds_by_stage": {}}
        self.record |= {"devices": [self._device], "runs_at_once": 1}
        self.record |= {"commits": [current_commit()], "torch_versions": [torch.__version__]}
        self._data = {
            "class_order": [images.class_names[label] for label in self.stream.order],
            "images": {"train": len(images.train_labels), "test": len(images.test_labels)},
            "images_digest": images.digest,
        }
        """What tells another dataset of the same name."""
        scores = ("accuracy", "top5", "class_accuracy", "task_accuracy")
        self.record["scores"] = {label: {score: [] for score in scores} for label in self._readouts}
        sizes = torch.tensor([len(classes) for classes in self.stream.steps])
        self._task_of_class = torch.arange(len(sizes)).repeat_interleave(sizes).to(device)
        self._confusion: dict[str, list[list[int]]] = {}

    def prepare(self) -> None:
        """Compile and capture once for the whole run, where the device does and the run is not finished yet."""
        if not self.result_file.exists():
            self._clock = time.perf_counter()
            self.method.prepare(self._largest_stage)
            self._tick("set-up")

    def __call__(self) -> dict[str, Any]:
        """Run to the end; returns the result, which is in the result file then."""
        try:
            self.state_file.parent.mkdir(parents=True, exist_ok=True)
            files.remove_abandoned(self.state_file.parent)
            with filelock.FileLock(self.state_file.with_suffix(".lock"), timeout=0):
                return self._finished() or self._run()
        except filelock.Timeout:
            raise TreeringError(
                "another process is at this run: wait for it, or choose another results folder"
            ) from None
        except OSError as error:
            raise TreeringError(f"cannot write to {self.result_file.parent}: {error.strerror or error}") from None

    def _run(self) -> dict[str, Any]:
        self.prepare()
        in_flight = self._resume()
        self.record["runs_at_once"] = max(self.record["runs_at_once"], self.runs_at_once)
        self._taken_up = self.record["image_passes"], self.record["seconds"]
        self._clock = self._saved = time.perf_counter()
        for number, step in enumerate(self.stream):
            if number < self.record["steps_done"]:
                continue
            self._start = self.method.snapshot()
            self.method.trainer.start_step(in_flight, randomness.dropout_seed(self.recipe.run.seed, number + 1))
            if in_flight is None:
                self._save(None)
            in_flight = None
            self.method.learn_step(Step(step.images, step.labels, len(step.classes)))
            self._evaluate(step)
            self.record["steps_done"] += 1
        # The method's own result comes last: where that file is, the run is finished.
        for label in reversed(self._readouts):
            result = self._result(label)
            lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
            _write(self._files[label], ("{\n" + ",\n".join(lines) + "\n}\n").encode())
        self.state_file.unlink(missing_ok=True)
        return result

    def _finished(self) -> dict[str, Any] | None:
        """The result, if the run is done already; raises where a file of other settings or images has its name."""
        found = {file: self._own_result(file) for file in self._files.values() if file.exists()}
        missing = next((file for file in self._files.values() if file not in found), None)
        if self.result_file in found and missing:
            logger.warning("%s is gone: to have it made again, remove %s too", missing, self.result_file)
        return found.get(self.result_file)

    def _own_result(self, file: Path) -> dict[str, Any]:
        try:
            result: dict[str, Any] = json.loads(file.read_bytes())
            recipe = Recipe.from_dict(result["recipe"])  # settings newer than the result have their defaults
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TreeringError(f"{file} is not a result: remove it, or choose another folder") from None
        if recipe != self.recipe:
            raise TreeringError(f"{file} holds a run with other settings: choose another results folder")
        if self._differs(result):
            raise TreeringError(f"{file} holds a run on other images: choose another results folder")
        return result

    def _differs(self, facts: Mapping[str, Any]) -> bool:
        """Whether `facts` are of a run on other images; earlier versions wrote fewer of them."""
        return any(facts.get(fact, wanted) != wanted for fact, wanted in self._data.items())

    def _tick(self, what: str) -> None:
        """Count the time since the last tick as `what`."""
        now = time.perf_counter()
        spent, self._clock = now - self._clock, now
        self._count(spent, what)

    def _count(self, seconds: float, what: str) -> None:
        self.record["seconds"] += seconds
        stages = self.record["seconds_by_stage"]
        stages[what] = stages.get(what, 0.0) + seconds

    def _ready(self) -> None:
        if self.method.generator.device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        self._tick("construction of training sets")

    def _epoch(self, report: EpochReport) -> None:
        self._tick(report.stage)
        self.record["image_passes"] += report.image_passes
        accuracy = self.record["scores"][method_label(self.recipe)]["accuracy"]
        passes_before, seconds_before = self._taken_up
        seconds = max(self.record["seconds"] - seconds_before, 1e-9)
        if self.stopping or time.perf_counter() - self._saved >= SAVE_EVERY:
            self._save(report.state())
        if self.stopping:
            raise KeyboardInterrupt
        self.watch(
            RunProgress(
                self.record["steps_done"] + 1,
                len(self.stream),
                report.stage,
                report.epoch,
                report.epochs,
                self.record["image_passes"],
                self.image_passes_planned,
                self.record["seconds"],
                (self.record["image_passes"] - passes_before) / seconds,
                accuracy[-1] if accuracy else None,
            )
        )

    def _evaluate(self, step: StreamStep) -> None:
        """Accuracy on the test images of all classes so far. It is only recorded: nothing is chosen by it."""
        task_of_class = self._task_of_class[: self.method.network.classes]
        every_class = torch.arange(len(task_of_class), device=task_of_class.device)
        for label, readout in self._readouts.items():
            found, wanted = readout(step.test_images), step.test_labels
            scores = self.record["scores"][label]
            scores["accuracy"].append(metrics.top_k(found, wanted))
            scores["top5"].append(metrics.top_k(found, wanted, 5))
            scores["class_accuracy"].append(_rounded(metrics.by_group(found, wanted, every_class)))
            scores["task_accuracy"].append(_rounded(metrics.by_known_task(found, wanted, task_of_class)))
            self._confusion[label] = metrics.confusion(found, wanted)
            logger.info("%s: step %d: %.2f %%", label, len(scores["accuracy"]), scores["accuracy"][-1])
        self._tick("selection and evaluation")

    def _result(self, label: str) -> dict[str, Any]:
        recipe, record, scores = self.recipe, self.record, self.record["scores"][label]
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
            "image_passes": record["image_passes"],
            "seconds": record["seconds"],
            "images_per_second": record["image_passes"] / record["seconds"],
            "runs_at_once": record["runs_at_once"],
            "seconds_by_stage": record["seconds_by_stage"],
            "device": ", ".join(record["devices"]),
            "versions": {
                "treering": __version__,
                "python": platform.python_version(),
                "torch": ", ".join(record["torch_versions"]),
            },
            "commit": ", ".join(record["commits"]),
            "recipe": recipe.to_dict(),
            **self._data,
            "class_accuracy": scores["class_accuracy"],
            "task_accuracy": scores["task_accuracy"],
            "confusion": self._confusion[label],
        }

    def _save(self, in_flight: InFlight | None) -> None:
        """Write the state: how the step began and, within the step, where its training is."""
        start = self._start
        tensors = prefixed("start", start["tensors"]) | {"start.generator": start["generator"]}
        tensors |= {f"memory.{label}": images for label, images in start["exemplars"].items()}
        facts = self.record | {"recipe": self.recipe.to_dict(), "data": self._data, "head_sizes": start["head_sizes"]}
        training, facts["fits"] = in_flight_files.pack(in_flight)
        _write(self.state_file, in_flight_files.to_bytes(tensors | training, facts))
        self._saved = time.perf_counter()

    def _resume(self) -> InFlight | None:
        """Take up the saved state, if there is one of this very run; returns the training it was in."""
        if not self.state_file.exists():
            return None
        before = self.method.snapshot()
        try:
            tensors, facts = in_flight_files.read(self.state_file)
            if Recipe.from_dict(facts.pop("recipe")) != self.recipe:
                raise ValueError("it is of a run with other settings")
            if self._differs(facts.pop("data", {})):
                raise ValueError("it is of a run on other images")
            head_sizes, fits = facts.pop("head_sizes"), facts.pop("fits")
            in_flight = in_flight_files.unpack(tensors, fits)
            start, device = unprefixed("start", tensors), self.method.generator.device
            stored = {int(label): images.to(device) for label, images in unprefixed("memory", tensors).items()}
            memory = dict(sorted(stored.items()))  # the file has them in the order of their names: 0, 1, 10, 2
            begun = {"head_sizes": head_sizes, "exemplars": memory, "generator": start.pop("generator")}
            if in_flight:
                self._check(in_flight, [*head_sizes, len(self.stream.steps[facts["steps_done"]])])
            elsewhere = facts["devices"][-1] != self._device
            if not elsewhere and len(begun["generator"]) != len(before["generator"]):
                raise ValueError("its random state is damaged")
            self.method.restore(before | begun | {"tensors": start})
        except torch.OutOfMemoryError:
            raise
        except (
            safetensors.SafetensorError,
            OSError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            names = (self.state_file.with_suffix(f".set-aside-{number}") for number in itertools.count(1))
            kept = next(name for name in names if not name.exists())
            self.state_file.replace(kept)
            logger.warning(
                "%s cannot be taken up, the run starts anew: %s. It is kept as %s", self.state_file, error, kept
            )
            self.method.restore(before)
            return None
        if elsewhere:
            logger.warning("%s was saved on %s: other random draws follow here", self.state_file, facts["devices"][-1])
            facts["devices"].append(self._device)
        this_time = self.record
        self.record = {"commits": [], "torch_versions": ["unknown"], "runs_at_once": 1} | facts
        for name in ("commits", "torch_versions"):
            self.record[name] = list(dict.fromkeys(self.record[name] + this_time[name]))
        self._count(this_time["seconds"], "set-up")
        return in_flight

    def _check(self, in_flight: InFlight, head_sizes: list[int]) -> None:
        """That the trainings of a step fit the network; it has their weights then."""
        momenta = sum(part.numel() for part in self.method.network.parameters() if part.requires_grad)
        for state in (in_flight.current, in_flight.previous):
            if state:
                self.method.network.load_tensors(head_sizes, state.tensors)
                if len(state.momentum) != momenta:
                    raise ValueError("its momentum is of another network")


def current_commit() -> str:
    """The commit of the code that runs: TREERING_COMMIT where it is set, else that of the git checkout it lies in.

    With "+" where files of the package have been changed since; "unknown" where it is installed, even below another
    project.
    """
    return os.environ.get("TREERING_COMMIT") or _commit_of(Path(__file__).parents[1])


@functools.cache  # of the code as it was loaded, whatever is committed later
def _commit_of(package: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=environment)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _write(file: Path, content: bytes) -> None:
    """Into its folder, which somebody may have removed while the run trained."""
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, content)


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]
