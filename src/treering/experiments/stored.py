"""Reading and writing a result file, whoever it comes from: what is read was checked, and can be reported."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from treering.checked import Checked, parse_json, require
from treering.errors import TreeringError
from treering.runtime import files

Result = dict[str, Any]

LARGEST = 64 * 2**20
"""The most bytes of a result file; one of a thousand classes in a hundred steps has about 3 million."""
MOST_STEPS, MOST_CLASSES, MOST_ACCURACIES = 1000, 10_000, 1_000_000
"""The most steps of a run, classes, and accuracies of a class after a step."""
MOST_IMAGES, LONGEST = 10**12, 10**12
"""The most images in a memory, and seconds."""
TEXT = 500
"""The most letters of a name in a result."""


@dataclass(frozen=True)
class Kept(Checked):
    """The memory of a run."""

    tolerant = True
    kind: Literal["total", "per-class", "per-step"]
    size: int

    def _check_ranges(self) -> None:
        require(0 <= self.size <= MOST_IMAGES, f"size must be from 0 to {MOST_IMAGES:,}, not {self.size}")


@dataclass(frozen=True)
class Facts(Checked):
    """The facts in a result that reports use. Accuracies are percentages, one per step, or one per class in each."""

    tolerant = True
    method: str
    dataset: str
    classes_per_step: int | tuple[int, ...]
    memory: Kept
    selection: str
    order: int
    seed: int
    accuracy: tuple[float, ...]
    average: float
    average_without_first: float | None
    seconds: float
    top5: tuple[float, ...] | None = None
    task_aware_accuracy: tuple[float, ...] | None = None
    images_per_second: float = 1.0
    image_passes: int = 0
    runs_at_once: int = 1
    seconds_by_stage: dict[str, float] | None = None
    device: str = ""
    commit: str = ""
    versions: dict[str, str] | None = None
    recipe: dict[str, Any] | None = None
    images: dict[str, int] | None = None
    images_digest: str = ""
    class_order: tuple[str, ...] | None = None
    class_accuracy: Any = None
    task_accuracy: Any = None
    confusion: Any = None
    """The number of test images of each class, one row, that the model took for each class, one column."""

    def _check_ranges(self) -> None:
        self._check_counts()
        steps = len(self.accuracy)
        require(0 < steps <= MOST_STEPS, f"accuracy must have one number per step, and {MOST_STEPS:,} at most")
        for name in ("accuracy", "top5", "task_aware_accuracy"):
            values = getattr(self, name)
            require(not values or len(values) == steps, f"{name} must have {steps} numbers, as accuracy has")
            require(_are_percentages(values or ()), f"{name} must be percentages, from 0 to 100")
        for name in ("average", "average_without_first"):
            require(_are_percentages([getattr(self, name) or 0.0]), f"{name} must be a percentage, from 0 to 100")
        for name in ("class_accuracy", "task_accuracy"):
            rows = getattr(self, name)
            require(not rows or _are_rows(rows, (int, float)), f"{name} must be lists of numbers, one list per step")
            require(not rows or len(rows) == steps, f"{name} must have {steps} lists, as accuracy has numbers")
            require(all(map(_are_percentages, rows or ())), f"{name} must be percentages, from 0 to 100")
        self._check_classes()

    def _check_counts(self) -> None:
        sizes = self.classes_per_step if isinstance(self.classes_per_step, tuple) else (self.classes_per_step,)
        require(bool(sizes) and all(0 < size <= 10**6 for size in sizes), "classes_per_step must be 1 to 1,000,000")
        fits = isinstance(self.classes_per_step, int) or len(sizes) == len(self.accuracy)
        require(fits, f"classes_per_step must have {len(self.accuracy)} numbers, as accuracy has")
        for name, most in (("order", 2**63), ("seed", 2**64), ("image_passes", 2**63), ("runs_at_once", 10**6)):
            value = getattr(self, name)
            require(0 <= value < most, f"{name} must be from 0 to {most - 1:,}, not {value}")
        for name in ("seconds", "images_per_second"):
            value = getattr(self, name)
            require(0 <= value <= LONGEST, f"{name} must be from 0 to {LONGEST:,}, not {value}")
        for name in ("method", "dataset", "selection", "device", "images_digest"):
            require(len(getattr(self, name)) <= TEXT, f"{name} must not have more than {TEXT} letters")

    def _check_classes(self) -> None:
        """Raise unless the classes are as many in all that is said of them."""
        known = [len(row) for row in self.class_accuracy or ()]
        grows = all(before < after for before, after in itertools.pairwise([0, *known]))
        require(grows, "class_accuracy must have more numbers for each step than for the step before")
        require(sum(known) <= MOST_ACCURACIES, f"class_accuracy must not have more than {MOST_ACCURACIES:,} numbers")
        classes = len(self.class_order or ())
        most = max([classes, *known[-1:]])
        require(
            most <= MOST_CLASSES, f"class_order and class_accuracy must not have more than {MOST_CLASSES:,} classes"
        )
        names = "class_order must have a name for each class in class_accuracy"
        require(not known or not classes or known[-1] == classes, names)
        counts = self.confusion or []
        require(_are_rows(counts, (int,)), "confusion must be lists of whole numbers")
        square = not counts or [len(row) for row in counts] == [classes] * classes
        require(square, f"confusion must have {classes} rows of {classes} numbers, as class_order has names")
        positive = all(0 <= count <= MOST_IMAGES for row in counts for count in row)
        require(positive, f"confusion must have numbers of images, from 0 to {MOST_IMAGES:,}")


def _are_percentages(values: Sequence[float]) -> bool:
    return all(0 <= value <= 100.001 for value in values)  # a mean may be a little above 100


def _are_rows(rows: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether this is a list of lists of numbers; there may be millions, so each is only asked for its type."""
    return isinstance(rows, list) and all(
        isinstance(row, list) and {type(value) for value in row} <= set(kinds) for row in rows
    )


def read(file: Path) -> Result:
    """Return the result in a file, once it was checked."""
    try:
        result = parse_json(files.read(file, LARGEST, through_links=False))
        own = result.pop("checksum", None) if isinstance(result, dict) else None
        Facts.of(result)
        if own is not None and own != checksum(result):  # those of earlier versions have none
            raise TreeringError("it was changed after it was written")
    except OSError as error:
        raise TreeringError(f"cannot read {file}: {error.strerror or error}") from None
    except ValueError as error:  # TreeringErrors are ValueErrors too
        raise TreeringError(f"{file} is not a result of `treering run` ({error}): move it out of this folder") from None
    return result


def write(file: Path, result: Result) -> None:
    """Write a result as JSON with one line for each key."""
    sealed = {**result, "checksum": checksum(result)}
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sealed.items())
    write_bytes(file, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file into a folder that somebody may have removed while the run trained."""
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, content)


def checksum(result: Result) -> str:
    """Return a digest of a result, by which an accidental change is noticed."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()
