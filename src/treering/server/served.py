"""The models that are served: each is loaded when it is first asked, and anew when its folder has a new version."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import re
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from treering import evaluation, words
from treering.core.metrics import interval
from treering.errors import TreeringError
from treering.images import arrays
from treering.learner import Learner
from treering.photos import accuracies, overview, settings
from treering.photos.outcome import Score as Counted
from treering.photos.sorting import folder_name
from treering.prediction import Teller
from treering.runtime import file_lock, pixels
from treering.runtime.device import find_device
from treering.server.schemas import Lost, Measured, ModelClass, ModelStep, Score
from treering.server.tray import Tray, waiting_in
from treering.storage import lock, manifest, model_folder, pictures
from treering.storage.folder import Folder
from treering.storage.manifest import Entry, Manifest

logger = words.logger(__name__)

MOST_SHOWN = 12
"""The most exemplars of a class that are shown, and that a photo is compared with."""
MOST_LOADED = 4
"""The most models that are loaded at the same time; the one that was not asked for longest goes first."""
MOST_MODELS = 200
"""The most models that are served from one folder."""
PLAIN_NAME = re.compile(r"[^\W_](?:[\w -]{0,62}[\w])?")
"""The names that new models may have: folders are called so."""
Version = tuple[int, int, int]


@dataclass
class Facts:
    """What a version of a model's folder tells, without its network."""

    version: str
    backbone: str
    size: int
    classes: list[ModelClass]
    steps: list[ModelStep]
    photos: int
    bytes: int
    undo: int
    exemplars: dict[str, Entry]
    """The files of the exemplars that are shown, by their checksums."""
    shape: tuple[int, ...]
    labels: list[Hashable]


@dataclass(eq=False)
class Loaded:
    """A version of a model that answers."""

    version: Version
    name: str
    """What the version is called outside."""
    learner: Learner
    teller: Teller
    exemplars: Mapping[str, Sequence[str]]
    """The checksums of the exemplars of each class that are shown."""
    features: dict[str, torch.Tensor] = field(default_factory=dict)
    """Those of the exemplars of each class that a photo was compared with."""

    def answers(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the probabilities N x classes of images, and their distances where the model measures them."""
        return self.teller.answers(images)

    def limit(self, share: float | None) -> float | None:
        """Return the distance beyond which a photo is unknown, if this share of known ones is to be; None for none."""
        try:
            return self.teller.refusing(share).threshold
        except TreeringError:  # the model cannot tell
            return None

    def likeness(self, image: np.ndarray, names: Sequence[str]) -> list[tuple[str, str, float]]:
        """Return class, checksum and cosine of the shown exemplars of these classes, the most alike first."""
        model = self.learner.learnt_model()
        asked = F.normalize(model.method.features(arrays.as_images(image[None].copy())))[0]
        found = []
        for label, name in enumerate(map(str, model.classes)):
            kept = model.method.memory.exemplars.get(label)
            if name not in names or kept is None or not len(kept):
                continue
            if name not in self.features:
                self.features[name] = F.normalize(model.method.features(pixels.tensor(kept[:MOST_SHOWN])))
            values = (self.features[name] @ asked).tolist()
            found += [(name, digest, value) for digest, value in zip(self.exemplars[name], values, strict=True)]
        return sorted(found, key=lambda one: -one[2])


class Served:
    """A model's folder that is served, which may not exist yet."""

    def __init__(self, name: str, path: Path, device: str) -> None:
        self.name, self.path, self.device = name, path, device
        self.changing = asyncio.Lock()
        """Held while the tray or the model's classes change."""
        self._loaded: Loaded | None = None
        self._facts: tuple[Version | None, Facts] | None = None
        self._failed: tuple[Version, str] | None = None
        """A version that cannot be read, and why."""
        self._loading = threading.Lock()
        self._held = contextlib.ExitStack()

    @functools.cached_property
    def tray(self) -> Tray:
        """The photos that wait to be learnt; only one server at a time has them."""
        found = Tray.of(self.path)
        around = found.place.parent
        try:
            self._held.enter_context(file_lock.held(around / ".serving", around / ".server"))
        except file_lock.HeldError as holder:
            raise TreeringError(f"{holder} serves {self.name} already: end it first") from None
        return found

    def close(self) -> None:
        """Let another server have the photos that wait."""
        self._held.close()

    @property
    def version(self) -> Version | None:
        """What tells the model as it is now from any other; None if it has learnt nothing yet."""
        return lock.version(self.path)

    @property
    def ready(self) -> Loaded | None:
        """What answers just now, which may be the version before a new one that is being loaded."""
        return self._loaded

    def current(self) -> Loaded | None:
        """Return the newest version that can be read, loading it if need be; None if there is none."""
        with self._loading:
            version = self.version
            if version is None:
                self._loaded = None
            elif self._loaded is None or self._loaded.version != version:
                if self._failed is None or self._failed[0] != version:
                    self._load(version)
                if self._loaded is None and self._failed:
                    raise TreeringError(self._failed[1])
            return self._loaded

    def _load(self, version: Version) -> None:
        try:
            learner, facts = Learner.load(self.path, device=self.device), self.facts()
        except TreeringError as error:
            self._failed = version, str(error)
            if self._loaded:
                logger.warning("%s as it was before still answers: %s", self.name, error)
            return
        assert facts is not None
        teller = evaluation.teller(learner.learnt_model())
        teller.answers(np.zeros((1, teller.size, teller.size, teller.channels), np.uint8))  # the first answer is slow
        exemplars = {known.name: known.exemplars for known in facts.classes}
        self._loaded = Loaded(version, facts.version, learner, teller, exemplars)

    def unload(self) -> None:
        """Let the network go; it is loaded again when it is asked."""
        self._loaded = None

    def size(self) -> int:
        """Return the side in pixels at which the model holds photos."""
        found = self.facts()
        if found:
            return found.size
        backbone = settings.default_backbone()
        return settings.recipe_for(backbone, find_device(self.device)).run.image_size

    def facts(self) -> Facts | None:
        """Return what the folder tells of the model; None if it has learnt nothing yet."""
        version = self.version
        if version is None:
            return None
        if self._facts is None or self._facts[0] != version:
            found = model_folder.consistently(self.path, _facts)
            self._facts = (version, found)
        return self._facts[1]

    def labels(self) -> list[Hashable]:
        """Return the classes that the model knows."""
        found = self.facts()
        return found.labels if found else []

    def exemplar(self, digest: str) -> bytes | None:
        """Return the PNG file of an exemplar that is shown; None if there is none."""
        found = self.facts()
        entry = found.exemplars.get(digest) if found else None
        if found is None or entry is None:
            return None
        try:
            with manifest.opened(self.path) as folder:
                content = folder.read(entry.name, pictures.most_bytes(found.shape))
            pictures.require_decodable(content, found.shape)
        except (OSError, ValueError):  # a newer version has replaced it
            return None
        return content if hashlib.sha256(content).hexdigest() == digest else None


def _facts(folder: Folder, found: Manifest) -> Facts:
    """Read what a version tells of itself."""
    seen = overview.read(folder, found)
    courses = {course.name: course for course in accuracies.courses(seen.steps)}
    labels = [str(label) for label in found.classes]
    first = {
        str(name): number for number, step in reversed([*enumerate(seen.steps, 1)]) for name in step["new_classes"]
    }
    photos: dict[str, int] = dict.fromkeys(labels, 0)
    for step in seen.steps:
        for name, count in step["images"]:
            photos[str(name)] = photos.get(str(name), 0) + count
    shown = {name: entries[:MOST_SHOWN] for name, entries in zip(labels, found.files.memory, strict=True)}
    classes = []
    for name in labels:
        course = courses.get(name)
        measured = course.counts.items() if course else ()
        steps = [Measured.of_step(step, Counted(*counts)) for step, counts in measured]
        classes.append(
            ModelClass(
                name=name,
                step=first.get(name, 1),
                photos=photos[name],
                kept=seen.memory[name],
                course=steps,
                lost=_lost(course),
                exemplars=[entry.sha256 for entry in shown[name]],
            )
        )
    return Facts(
        version=found.files.weights.sha256[:12] + found.files.history.sha256[:12],
        backbone=seen.recipe["backbone"],
        size=found.image_shape[1],
        classes=classes,
        steps=_steps(seen.steps),
        photos=sum(seen.memory.values()),
        bytes=sum(seen.bytes_by_kind.values()),
        undo=seen.earlier_versions,
        exemplars={entry.sha256: entry for entries in shown.values() for entry in entries},
        shape=found.image_shape,
        labels=list(found.classes),
    )


def _lost(course: accuracies.Course | None) -> Lost | None:
    """Return the best score of a class and its last one, if it has lost more than chance explains."""
    if course is None or course.fall() is None:
        return None
    measured = [Counted(*course.counts[step]) for step in sorted(course.counts)]
    best = max(measured[:-1], key=lambda one: one.percent)
    before, after = Score.of(best), Score.of(measured[-1])
    return Lost(before=before, after=after) if before and after else None


def _steps(history: Sequence[Mapping[str, Any]]) -> list[ModelStep]:
    """Return the steps of a model's history, with how many photos of old and new classes were told right."""
    found = []
    for number, record in enumerate(history, 1):
        accuracy = record.get("accuracy") or {}
        counts: dict[str, Sequence[int]] = accuracy.get("classes") or {}
        new = [str(name) for name in record["new_classes"]]
        old = _sum([count for name, count in counts.items() if name not in new])
        before = accuracy.get("old_before")
        found.append(
            ModelStep(
                step=number,
                time=str(record["time"]),
                new_classes=new,
                images=sum(count for _, count in record["images"]),
                all=_sum(counts.values()),
                new=_sum([count for name, count in counts.items() if name in new]) if number > 1 else None,
                old=old if number > 1 else None,
                old_before=_share(before, old.images) if before is not None and old and number > 1 else None,
            )
        )
    return found


def _sum(counts: Any) -> Score | None:
    right, images = (sum(part) for part in zip(*counts, strict=True)) if counts else (0, 0)
    return Score.of(Counted(right, images)) if images else None


def _share(percent: float, images: int) -> Score:
    low, high = interval(percent, images)
    return Score(right=round(percent * images / 100), images=images, percent=percent, low=low, high=high)


class Models:
    """The models that are served: one folder, or all in a folder of models."""

    def __init__(self, path: Path, device: str, many: bool = False) -> None:
        self.path, self.device = path, device
        self.can_add = many or (not manifest.is_there(path) and any(_models_in(path)))
        self._served: dict[str, Served] = {}
        self._asked: list[str] = []
        if not self.can_add:
            name = path.resolve().name or "model"
            self._served[name] = Served(name, path, device)
        for name in waiting_in(path) if self.can_add else ():
            self._served[name] = Served(name, path / name, device)

    def all(self) -> list[Served]:
        """Return the models, sorted by name."""
        if self.can_add:
            there = {path.name: path for path in _models_in(self.path)}
            for name, path in there.items():
                self._served.setdefault(name, Served(name, path, self.device))
        return [self._served[name] for name in sorted(self._served)]

    def known(self, name: str) -> Served | None:
        """Return the model of this name, without a look at the disk."""
        return self._served.get(name)

    def find(self, name: str) -> Served | None:
        """Return the model of this name; names are compared with those of the models, never made into paths."""
        return next((one for one in self.all() if one.name == name), None)

    def add(self, name: str) -> Served:
        """Serve a model that has learnt nothing yet."""
        if not self.can_add:
            raise TreeringError("this server serves one model: start it with a folder of models to add others")
        if len(self.all()) >= MOST_MODELS:
            raise TreeringError(f"this server has {MOST_MODELS} models already: remove the folder of one first")
        if not PLAIN_NAME.fullmatch(name) or folder_name(name) != name:
            raise TreeringError("a model's name has up to 64 letters, digits, spaces, - and _: give another name")
        taken = {one.name.casefold() for one in self.all()} | {path.name.casefold() for path in self.path.iterdir()}
        if name.casefold() in taken:
            raise TreeringError(f"there is a model or folder called {words.shown(name)} already: give another name")
        self._served[name] = Served(name, self.path / name, self.device)
        return self._served[name]

    def close(self) -> None:
        """Let another server have the photos that wait."""
        for served in self._served.values():
            served.close()

    def used(self, served: Served) -> None:
        """Take note that a model is asked; let go of the one that was not asked for longest if many are loaded."""
        self._asked = [name for name in self._asked if name != served.name] + [served.name]
        unasked = [name for name in self._served if name not in self._asked]
        loaded = [name for name in (*unasked, *self._asked) if name in self._served and self._served[name].ready]
        for name in loaded[:-MOST_LOADED]:
            self._served[name].unload()


def _models_in(path: Path) -> list[Path]:
    """Return the folders of models in a folder."""
    try:
        return [
            place for place in sorted(path.iterdir()) if not place.name.startswith(".") and manifest.is_there(place)
        ]
    except OSError:
        return []
