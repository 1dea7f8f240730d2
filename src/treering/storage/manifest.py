"""The manifest of a model folder: what the model is, and every file of it with its checksum.

A manifest may come from a stranger. All that it says is checked against `Manifest` before anything is done with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL
import safetensors
import torch

from treering.checked import MOST_VALUES, Checked, brief, parse_json, require
from treering.errors import TreeringError, UnjudgedError
from treering.storage import names
from treering.storage.folder import Folder
from treering.version import __version__

NAME = names.MANIFEST
FORMAT = "treering model"
FORMAT_VERSION = 1
LARGEST, LARGEST_HISTORY = 2**26, 2**26
"""The most bytes of a manifest and of a history."""
MOST_CHANNELS, LONGEST_SIDE = 4, 4096
"""The bounds of a model's images."""
MOST_STEPS = MOST_CLASSES = 100_000
LONGEST_LABEL = 1000
MOST_EARLIER, HIGHEST = 100, 10**8
"""The most earlier versions, and what their numbers stay below."""
COPY = "restore it from a copy of the model folder"
Label = str | int | float | bool
"""The types of labels that JSON gives back as they were."""


@dataclass(frozen=True)
class Entry(Checked):
    """A file that the manifest names."""

    name: str
    sha256: str

    def _check_ranges(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise TreeringError(f"sha256 must be 64 hexadecimal digits, not {brief(self.sha256)}")

    def require_name(self, what: str, pattern: re.Pattern[str], start: str = "") -> None:
        """Raise unless treering gives such a name to such a file with this checksum."""
        fits = pattern.fullmatch(self.name) and self.name.startswith(start) and f"-{self.sha256[:12]}." in self.name
        if not fits:
            raise TreeringError(f"{what}.name is {brief(self.name)}, which treering does not name such a file")


@dataclass(frozen=True)
class Files(Checked):
    """The files of a model; exemplars and held-out images are listed by class, best first."""

    weights: Entry
    history: Entry
    memory: tuple[tuple[Entry, ...], ...]
    held_out: tuple[tuple[Entry, ...], ...]

    def _check_ranges(self) -> None:
        self.weights.require_name("weights", names.WEIGHTS)
        self.history.require_name("history", names.HISTORY)
        for what, folder in (("memory", "memory"), ("held_out", "held-out")):
            for label, ranked in enumerate(getattr(self, what)):
                for rank, entry in enumerate(ranked):
                    place = f"{what}[{label}][{rank}]"
                    entry.require_name(place, names.IMAGE, f"{folder}/{label:04d}-")
                    at_rank = entry.name.rpartition("/")[2].startswith(f"{rank:04d}-")  # so no file is named twice
                    require(at_rank, f"{place}.name is {brief(entry.name)}, which is a name of another rank")

    def __iter__(self) -> Iterator[Entry]:
        yield from (self.weights, self.history)
        for by_class in (self.memory, self.held_out):
            for ranked in by_class:
                yield from ranked


@dataclass(frozen=True)
class Drawn(Checked):
    """The state of a model's random generator."""

    device: str
    state: str

    def _check_ranges(self) -> None:
        require(
            re.fullmatch("(?:[0-9a-f]{2}){8,8192}", self.state) is not None, "state must be bytes as hexadecimal digits"
        )


@dataclass(frozen=True)
class Manifest(Checked):
    """What a model is. Later versions may tell more of it, which is ignored."""

    tolerant: ClassVar[bool] = True

    recipe: dict[str, Any]
    seed: int
    classes: tuple[Label, ...]
    head_sizes: tuple[int, ...]
    steps: int
    image_shape: tuple[int, ...]
    """C, H, W of the images as they were given."""
    generator: Drawn
    files: Files
    saved: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def _check_ranges(self) -> None:
        classes = len(self.classes)
        require(0 <= self.seed < 2**63, f"seed must be from 0 to 2^63 - 1, not {self.seed}")
        require(1 <= classes <= MOST_CLASSES, f"classes must be from 1 to {MOST_CLASSES:,} classes, not {classes:,}")
        require(len({type(label) for label in self.classes}) == 1, "classes must all be texts or all numbers")
        longest = max((len(label) for label in self.classes if isinstance(label, str)), default=0)
        require(longest <= LONGEST_LABEL, f"classes must have at most {LONGEST_LABEL:,} letters each, not {longest:,}")
        require(len(set(self.classes)) == classes, "classes has one class more than once")
        require(min(self.head_sizes, default=0) >= 1, "head_sizes must be 1 or more each")
        require(
            sum(self.head_sizes) == classes,
            f"head_sizes are of {sum(self.head_sizes)} classes in all, but classes has {classes}",
        )
        require(1 <= self.steps <= MOST_STEPS, f"steps must be from 1 to {MOST_STEPS:,}, not {self.steps}")
        good = len(self.image_shape) == 3 and 1 <= self.image_shape[0] <= MOST_CHANNELS
        require(
            good and all(1 <= side <= LONGEST_SIDE for side in self.image_shape[1:]),
            f"image_shape must be 1 to {MOST_CHANNELS} channels and two sides of 1 to {LONGEST_SIDE} pixels, "
            f"not {brief(self.image_shape)}",
        )
        for what, by_class in (("memory", self.files.memory), ("held_out", self.files.held_out)):
            require(len(by_class) == classes, f"files.{what} is of {len(by_class)} classes, but classes has {classes}")


@dataclass(frozen=True)
class Accuracy(Checked):
    """How well a model did after a step, in percent; None where no image measures it."""

    tolerant: ClassVar[bool] = True

    all: float | None = None
    old: float | None = None
    old_before: float | None = None
    new: float | None = None
    images: int = 0
    classes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """How many images of each class were told right, and of how many."""

    def _check_ranges(self) -> None:
        for name in ("all", "old", "old_before", "new"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 100.001, f"{name} must be from 0 to 100, not {value}")
        require(0 <= self.images < 2**53, f"images must be 0 or more, not {self.images}")
        for pair in self.classes.values():
            good = len(pair) == 2 and 0 <= pair[0] <= pair[1] < 2**53
            require(good, f"classes must hold pairs of numbers, not {brief(pair)}")


@dataclass(frozen=True)
class StepRecord(Checked):
    """A line of the history: what was learnt in a step, and how well. Later versions may tell more of it."""

    tolerant: ClassVar[bool] = True

    step: int
    time: str
    new_classes: tuple[Label, ...]
    images: tuple[tuple[Label, ...], ...]
    """Each class that was shown, and how many images of it."""
    accuracy: Accuracy | None = None
    files: str | None = None
    """The fingerprint of the photos that were learnt from."""
    unfinished: bool = False
    """Whether training on these photos was still to come."""

    def _check_ranges(self) -> None:
        for index, pair in enumerate(self.images):
            good = len(pair) == 2 and type(pair[1]) is int and 0 <= pair[1] < 2**53
            require(good, f"images[{index}] must be a class and a number of images, not {brief(pair)}")
        try:
            good = 1970 < datetime.fromisoformat(self.time).year < 9999
        except ValueError:
            good = False
        require(good, f"time must be a date and time of our days, not {brief(self.time)}")


def made(facts: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of these facts and files, with the time and the versions of the packages."""
    versions = {
        "treering": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "safetensors": safetensors.__version__,
    }
    head = {"format": FORMAT, "format_version": FORMAT_VERSION}
    return head | facts | {"files": entries, "saved": datetime.now(UTC).isoformat(), "versions": versions}


def sealed(manifest: dict[str, Any]) -> bytes:
    """Return the manifest as JSON with a checksum of itself."""
    return utf8(json.dumps({"checksum": _seal(manifest), **manifest}, indent=1, ensure_ascii=False))


def opened(path: Path) -> Folder:
    """Open a model folder; raise in one line if it cannot be."""
    try:
        return Folder(path)
    except (NotADirectoryError, FileNotFoundError) as error:
        what = "is a file" if isinstance(error, NotADirectoryError) else "does not exist"
        raise TreeringError(f"{path} {what}: give the folder that a learner was saved to") from None
    except (OSError, ValueError) as error:  # a ValueError if the path holds a null character
        raise TreeringError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def is_there(path: Path) -> bool:
    """Return whether a folder has something under a manifest's name, even if it is a link that leads nowhere."""
    return os.path.lexists(path / NAME)


def read(folder: Folder) -> Manifest:
    """Return the manifest of a model folder, after checking it."""
    return parsed(_content(folder), folder.path / NAME)


def of(path: Path) -> Manifest:
    """Return the manifest of the model folder at `path`, after checking it."""
    with opened(path) as folder:
        return read(folder)


def _content(folder: Folder) -> bytes:
    try:
        return folder.read(NAME, LARGEST)
    except FileNotFoundError:
        if folder.exists(names.LEARNING) or folder.exists(names.NOTE):
            what = "has no model yet: its first step is under way, or was interrupted"
            raise TreeringError(f"{folder.path} {what}") from None
        what = f"has no {NAME}: it is not a treering model folder"
        raise TreeringError(f"{folder.path} {what}; give the folder that a learner was saved to") from None
    except OSError as error:
        raise UnjudgedError(f"cannot read {folder.path / NAME}: {error.strerror}") from None


def parsed(content: bytes, file: Path) -> Manifest:
    """Return the manifest in a file's `content`."""
    try:
        manifest = parse_json(content)
    except ValueError as error:
        reason = "not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else str(error)
        raise TreeringError(f"{file} is damaged ({reason}): {COPY}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TreeringError(f"{file} was not written by treering: give the folder that a learner was saved to")
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UnjudgedError(
            f"{file.parent} was written by a newer treering (format {version}; this one reads up to {FORMAT_VERSION}): "
            "upgrade treering"
        )
    if manifest.pop("checksum", None) != _seal(manifest):
        raise TreeringError(f"{file} was changed after treering wrote it: {COPY}")
    return checked(manifest, file)


def checked(manifest: dict[str, Any], file: Path) -> Manifest:
    """Return what the manifest in a file says, if a model can be so."""
    try:
        return Manifest.of(manifest)
    except TreeringError as error:
        raise TreeringError(f"{file} describes no model, since {error}: {COPY}") from None


def history(content: bytes, manifest: Manifest, file: Path) -> list[dict[str, Any]]:
    """Return the records in the content of a history file, one for each step, after checking them."""
    require_bounded(content, file)
    count = content.count(b"\n")
    if count != manifest.steps or not content.endswith(b"\n"):
        raise TreeringError(f"{file} has {count} whole lines, but the model has {manifest.steps} steps: {COPY}")
    records, known = [], {one.name for one in fields(StepRecord)}
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            record = parse_json(line)
            require(StepRecord.of(record).step == number, f"step must be {number}")
        except ValueError as error:  # a TreeringError is one
            reason = error if isinstance(error, TreeringError) else "it is not JSON"
            raise TreeringError(f"{file} cannot be read in line {number}, since {reason}: {COPY}") from None
        records.append({name: value for name, value in record.items() if name in known})
    if [label for record in records for label in record["new_classes"]] != list(manifest.classes):
        raise TreeringError(f"{file} tells of other classes than the model's: {COPY}")
    return records


def require_bounded(history: bytes, file: Path) -> None:
    """Raise if the history of a model has more values than are worth their memory."""
    if sum(history.count(letter) for letter in (b",", b"[", b"{")) > MOST_VALUES:
        raise TreeringError(f"{file} would tell of too many classes in too many steps: begin a new model")


def earlier(folder: Folder) -> list[str]:
    """Return the names of the manifests of earlier versions, oldest first."""
    listed = [item.name for item in folder.items("previous") if names.EARLIER.fullmatch(item.name)]
    ours = (name for name in listed if number(name) < HIGHEST and name == earlier_name(number(name)))
    found = sorted(ours, key=number)
    if len(found) > MOST_EARLIER:
        what = f"holds {len(found)} earlier versions, but a model has {MOST_EARLIER} at most"
        raise TreeringError(f"{folder.path / 'previous'} {what}: remove those with the lowest numbers")
    return found


def earlier_name(number: int) -> str:
    """Return the name of the manifest of the earlier version with this number."""
    return f"previous/{number:04d}.json"


def number(name: str) -> int:
    """Return the number in the name of an earlier version's manifest."""
    return int(name[len("previous/") : -len(".json")])


def read_earlier(folder: Folder, name: str) -> tuple[Manifest, bytes]:
    """Return the manifest of an earlier version, and the content of its file."""
    try:
        content = folder.read(name, LARGEST)
    except FileNotFoundError as error:
        raise TreeringError(f"cannot read {folder.path / name}: {error.strerror}") from None
    except OSError as error:
        raise UnjudgedError(f"cannot read {folder.path / name}: {error.strerror}") from None
    return parsed(content, folder.path / name), content


def earlier_than(folder: Folder, current: Manifest) -> list[str]:
    """Return those of `earlier` without the current version, which a killed writer may have put there already."""

    def is_current(name: str) -> bool:
        try:
            return read_earlier(folder, name)[0] == current
        except TreeringError:
            return False

    return [name for name in earlier(folder) if not is_current(name)]


def utf8(text: str) -> bytes:
    """Encode a text as UTF-8; lone surrogates pass, by which Python represents file names in other encodings."""
    return text.encode("utf-8", "surrogatepass")


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
