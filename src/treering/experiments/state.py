"""The state of an unfinished run: a file beside its result, from which the run goes on."""

from __future__ import annotations

import itertools
import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch

from treering.core.trainer import InFlight
from treering.experiments import stored
from treering.experiments.result import is_of_other_images
from treering.methods.base import Method, Snapshot
from treering.recipe import Recipe
from treering.storage import resume
from treering.storage.resume import prefixed, unprefixed

logger = logging.getLogger(__name__)

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


class StateFile:
    """The file that keeps the state of one run."""

    def __init__(self, file: Path, recipe: Recipe, data: dict[str, Any]) -> None:
        self.file, self.recipe, self.data = file, recipe, data

    def save(self, start: Snapshot, in_flight: InFlight | None, record: Record) -> None:
        """Write the method's state before the step and, during the step, the state of its training."""
        tensors = prefixed("start", start.tensors) | {"start.generator": start.generator}
        tensors |= {f"memory.{label}": images for label, images in start.exemplars.items()}
        facts = asdict(record) | {"recipe": self.recipe.to_dict(), "data": self.data, "head_sizes": start.head_sizes}
        training, facts["fits"] = resume.pack(in_flight)
        stored.write_bytes(self.file, resume.to_bytes(tensors | training, facts))

    def take_up(self, method: Method, step_sizes: list[int], device: str) -> tuple[Record, InFlight | None] | None:
        """Restore the method from the saved state; return the record so far, and the step that was under way.

        A state that cannot be restored is kept under another name, and the method stays as it was.
        """
        if not self.file.exists():
            return None
        before = method.snapshot()
        try:
            tensors, facts = resume.read(self.file)
            if Recipe.from_dict(facts.pop("recipe")) != self.recipe:
                raise ValueError("it is of a run with other settings")
            if is_of_other_images(facts.pop("data"), self.data):
                raise ValueError("it is of a run on other images")
            head_sizes, in_flight = facts.pop("head_sizes"), resume.unpack(tensors, facts.pop("fits"))
            record = Record(**facts)
            if in_flight:
                _check(in_flight, method, [*head_sizes, step_sizes[record.steps_done]])
            start = unprefixed("start", tensors)
            generator = start.pop("generator")
            if record.devices[-1] == device and len(generator) != len(before.generator):
                raise ValueError("its random state is damaged")
            stored = {int(label): images for label, images in unprefixed("memory", tensors).items()}
            # The file has the exemplars in the order of their names: 0, 1, 10, 2.
            exemplars = {label: stored[label].to(method.generator.device) for label in sorted(stored)}
            begun = {"head_sizes": head_sizes, "tensors": start, "exemplars": exemplars, "generator": generator}
            method.restore(replace(before, **begun))
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


def _check(in_flight: InFlight, method: Method, head_sizes: list[int]) -> None:
    """Raise unless the saved states of a step fit the network, which this loads them into."""
    momenta = sum(part.numel() for part in method.network.parameters() if part.requires_grad)
    for state in (in_flight.current, in_flight.previous):
        if state:
            method.network.load_tensors(head_sizes, state.tensors)
            if len(state.momentum) != momenta:
                raise ValueError("its momentum is of another network")
