"""The state of an unfinished run: a file beside its result, from which the run goes on."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from treering import model, words
from treering.checked import Checked, require
from treering.core.trainer import InFlight
from treering.errors import TreeringError
from treering.experiments import result
from treering.experiments.result import is_of_other_images
from treering.methods.base import Method, Snapshot
from treering.recipe import Recipe
from treering.runtime import files, pixels
from treering.storage import resume
from treering.storage.resume import prefixed, unprefixed
from treering.storage.tensors import LARGEST_HEADER

logger = words.logger(__name__)

UNREADABLE = (
    safetensors.SafetensorError,
    OSError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
)
"""The errors that a damaged or foreign file may raise."""


SCORES = ("accuracy", "top5", "class_accuracy", "task_accuracy")
"""The scores that are recorded of each readout after each step."""
LISTS = ("class_accuracy", "task_accuracy")
"""The scores that are one for each class, or each task."""
MOST_ROWS = 2**20
"""The most rows of a tensor whose number of rows nothing tells, besides one for each image."""
MOST_OF_GENERATOR = 2**14
"""The most bytes of the state of a random generator."""


@dataclass
class Record:
    """What a run has done so far. Most of it becomes part of its result."""

    steps_done: int = 0
    image_passes: int = 0
    seconds: float = 0.0
    seconds_by_stage: dict[str, float] = field(default_factory=dict)
    devices: list[str] = field(default_factory=list)
    """The devices that it ran on, one after the other."""
    runs_at_once: int = 1
    """The most runs that trained at the same time, including this one."""
    commits: list[str] = field(default_factory=list)
    torch_versions: list[str] = field(default_factory=list)
    scores: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    """The scores of each readout by name, one per step."""

    def count(self, seconds: float, what: str) -> None:
        """Add the time that was spent on `what`."""
        self.seconds += seconds
        self.seconds_by_stage[what] = self.seconds_by_stage.get(what, 0.0) + seconds


@dataclass(frozen=True)
class _Facts(Checked):
    """What a state file says besides its tensors, and a check that it can be."""

    recipe: dict[str, Any]
    data: dict[str, Any]
    head_sizes: tuple[int, ...]
    fits: dict[str, tuple[int, ...]]
    steps_done: int
    image_passes: int
    seconds: float
    seconds_by_stage: dict[str, float]
    devices: tuple[str, ...]
    scores: dict[str, dict[str, tuple[Any, ...]]]
    runs_at_once: int = 1
    commits: tuple[str, ...] = ()
    torch_versions: tuple[str, ...] = ()

    def _check_ranges(self) -> None:
        for name in ("steps_done", "image_passes", "seconds", "runs_at_once"):
            require(0 <= getattr(self, name) < 2**63, f"{name} must not be negative or huge")
        require(all(0 <= seconds < 2**63 for seconds in self.seconds_by_stage.values()), "seconds_by_stage is no time")
        require(len(self.devices) > 0, "devices must name one")

    def require_fits(self, step_sizes: Sequence[int], readouts: Collection[str]) -> None:
        """Raise unless this is of a run of these steps, with these methods' scores after each step that is done."""
        done = self.steps_done
        require(done < len(step_sizes), f"steps_done must be less than {len(step_sizes)}, not {done}")
        right = sum(self.head_sizes) == sum(step_sizes[:done]) and all(size > 0 for size in self.head_sizes)
        require(right, "head_sizes must be those of the steps done")
        require(self.scores.keys() == set(readouts), f"scores must be of {', '.join(readouts)}")
        for scores in self.scores.values():
            require(scores.keys() == set(SCORES), f"scores must have {', '.join(SCORES)}")
            for name, values in scores.items():
                of_each = [value if name in LISTS else [value] for value in values]
                sound = all(isinstance(row, list) and all(map(_is_percentage, row)) for row in of_each)
                require(len(values) == done and sound, f"{name} in scores must be percentages for each step done")


def _is_percentage(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 100.001  # a mean may be a little above 100


class StateFile:
    """The file that keeps the state of one run."""

    def __init__(self, file: Path, recipe: Recipe, data: dict[str, Any]) -> None:
        self.file, self.recipe, self.data = file, recipe, data

    def save(self, start: Snapshot, in_flight: InFlight | None, record: Record) -> None:
        """Write the method's state before the step and, during the step, the state of its training."""
        tensors = prefixed("start", start.tensors) | {"start.generator": start.generator}
        tensors |= {f"memory.{label}": pixels.tensor(images) for label, images in start.exemplars.items()}
        facts = asdict(record) | {"recipe": self.recipe.to_dict(), "data": self.data, "head_sizes": start.head_sizes}
        training, facts["fits"] = resume.pack(in_flight)
        self.make_folder()
        files.write(self.file, resume.to_bytes(tensors | training, facts))

    def make_folder(self) -> None:
        """Make the file's folder, open to its owner alone, since states hold images of the run.

        Raise if a link is in its place, since what it leads to is not ours to write to.
        """
        folder = self.file.parent
        if os.path.lexists(folder) and not stat.S_ISDIR(folder.lstat().st_mode):
            raise TreeringError(f"{folder} is a link or a file: remove it, or choose another results folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take_up(
        self, method: Method, step_sizes: list[int], device: str, train_images: Tensor
    ) -> tuple[Record, InFlight | None] | None:
        """Restore the method from the saved state; return the record so far, and the step that was under way.

        A state that cannot be restored is kept under another name, and the method stays as it was.
        """
        if not self.file.exists():
            return None
        before = method.snapshot()
        try:
            tensors, facts = resume.read(self.file, _most_bytes(method, sum(step_sizes), train_images))
            _Facts.of(facts).require_fits(step_sizes, result.files_of(self.recipe, self.file.parent))
            if Recipe.from_dict(facts.pop("recipe")) != self.recipe:
                raise ValueError("it is of a run with other settings")
            if is_of_other_images(facts.pop("data"), self.data):
                raise ValueError("it is of a run on other images")
            head_sizes, in_flight = facts.pop("head_sizes"), resume.unpack(tensors, facts.pop("fits"))
            record = Record(**facts)
            start = unprefixed("start", tensors)
            generator = start.pop("generator")
            if record.devices[-1] == device and len(generator) != len(before.generator):
                raise ValueError("its random state is damaged")
            exemplars = {
                label: images.to(method.generator.device)
                for label, images in _exemplars(tensors, sum(head_sizes), tuple(train_images.shape[1:]))
            }
            begun = {"head_sizes": head_sizes, "tensors": start, "exemplars": exemplars, "generator": generator}
            method.restore(replace(before, **begun))
            if in_flight:
                model.require_fits(in_flight, method, self.recipe, sum(step_sizes[: record.steps_done + 1]))
        except torch.OutOfMemoryError:
            raise
        except UNREADABLE as error:
            self._set_aside(error)
            method.restore(before)
            return None
        if record.devices[-1] != device:
            logger.warning("%s was saved on %s: random draws are others from here on", self.file, record.devices[-1])
            record.devices.append(device)
        return record, in_flight

    def remove(self) -> None:
        """Remove the file, since the run is finished."""
        self.file.unlink(missing_ok=True)

    def _set_aside(self, reason: object) -> None:
        names = (self.file.with_suffix(f".set-aside-{number}") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        self.file.replace(kept)
        logger.warning("%s cannot be restored, so the run starts anew: %s. It is kept as %s", self.file, reason, kept)


def _most_bytes(method: Method, classes: int, images: Tensor) -> int:
    """Return the most bytes of a state of a run of a new method that leads to so many classes."""
    tables = [model.specs_of(table, classes) for table in (method.tensors(), *method.further_tensors())]
    specs = {name: spec for table in tables for name, spec in table.items()}
    start = sum(spec.bytes for spec in specs.values())
    start += sum((len(images) + MOST_ROWS) * specs[name].bytes_of_row for name in method.any_number_of_rows)
    network = sum(spec.bytes for spec in model.trained_specs(method, classes).values())
    fit = network + 4 * model.momenta_of(method, classes) + MOST_OF_GENERATOR
    return 8 + LARGEST_HEADER + start + MOST_OF_GENERATOR + images.nbytes + 2 * fit


def _exemplars(tensors: Mapping[str, Tensor], classes: int, shape: tuple[int, ...]) -> Iterator[tuple[int, Tensor]]:
    """Yield each class and its exemplars in the order of the classes; the file has them in that of their names."""
    kept = unprefixed("memory", tensors)
    if not kept.keys() <= {str(label) for label in range(classes)}:
        raise ValueError("it has exemplars of classes that were not learnt yet")
    for label in sorted(map(int, kept)):
        images = kept[str(label)]
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1:] != shape:
            raise ValueError("its exemplars are not images like those of the run")
        yield label, images
