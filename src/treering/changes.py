"""Forgetting, renaming and merging classes, in a model and in every version of a model folder."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from treering import methods, model
from treering.core import memory
from treering.errors import TreeringError, nearest
from treering.model import Model
from treering.storage import rewrite
from treering.storage.folder import Folder
from treering.storage.manifest import Manifest
from treering.storage.model_folder import Content
from treering.words import shown

Labels = Sequence[Hashable]


class Change(ABC):
    """A change of a model's classes."""

    @abstractmethod
    def require(self, classes: Labels, method: str) -> None:
        """Raise if it cannot be done to a model of these classes that was learnt with this method."""

    def require_earlier(self, classes: Labels) -> None:  # noqa: B027  # optional
        """Raise if it cannot be done to an earlier version of these classes, which it `concerns`."""

    @abstractmethod
    def concerns(self, classes: Labels) -> bool:
        """Return whether it changes anything in an earlier version of these classes."""

    @abstractmethod
    def applied(self, before: Model) -> Model | None:
        """Return the model after the change, with the same method, which is changed; None if no class is left."""

    def to(self, before: Model) -> Model:
        """Return the current model after the change; if that fails, its method is as it was."""
        self.require(before.classes, before.method.recipe.method)
        snapshot = before.method.snapshot()
        try:
            after = self.applied(before)
            assert after is not None  # `require` sees to it
            return after
        except BaseException:
            before.method.restore(snapshot)
            raise


@dataclass(frozen=True)
class Forget(Change):
    """Takes classes out of a model."""

    labels: Labels

    def require(self, classes: Labels, method: str) -> None:
        for label in self.labels:
            require_known(label, classes)
        if not methods.find(method).forgets:
            raise TreeringError(f"{method} cannot forget a class, since its memory is of steps: train a model anew")
        if len(set(classes) - set(self.labels)) < 2:
            raise TreeringError("a model needs two classes or more: forget fewer, or remove the model's folder")

    def concerns(self, classes: Labels) -> bool:
        return not set(self.labels).isdisjoint(classes)

    def applied(self, before: Model) -> Model | None:
        gone = [label for label in dict.fromkeys(self.labels) if label in before.classes]
        classes, held_out = list(before.classes), before.held_out
        if len(gone) == len(classes):
            return None
        for label in gone:
            column = classes.index(label)
            before.method.forget(column)
            held_out = memory.moved_up(held_out, column)
            del classes[column]
        history = relabelled(before.history, dict.fromkeys(gone))
        return replace(before, classes=classes, held_out=held_out, history=history)


@dataclass(frozen=True)
class Rename(Change):
    """Gives a class another label."""

    old: Hashable
    new: Hashable

    def require(self, classes: Labels, method: str) -> None:
        require_known(self.old, classes)
        self.require_earlier(classes)
        if type(self.new) is not type(self.old):
            what = type(self.old).__name__, type(self.new).__name__
            raise TreeringError("labels must all be of one type: the classes' is {}, the new one's {}".format(*what))

    def require_earlier(self, classes: Labels) -> None:
        if self.new in classes:
            raise TreeringError(f"there is a class {shown(self.new)} already: give another name, or merge the two")

    def concerns(self, classes: Labels) -> bool:
        return self.old in classes

    def applied(self, before: Model) -> Model:
        classes = [self.new if label == self.old else label for label in before.classes]
        return replace(before, classes=classes, history=relabelled(before.history, {self.old: self.new}))


@dataclass(frozen=True)
class Merge(Change):
    """Makes the images of one class images of another."""

    kept: Hashable
    gone: Hashable

    def require(self, classes: Labels, method: str) -> None:
        for label in (self.kept, self.gone):
            require_known(label, classes)
        if self.kept == self.gone:
            raise TreeringError(f"{shown(self.kept)} is one class already: give two classes")
        if not methods.find(method).merges:
            others = " and ".join(name for name in methods.METHODS if methods.find(name).merges)
            raise TreeringError(f"{method} cannot merge classes, only {others} can: learn the photos as one class anew")
        if len(classes) < 3:
            raise TreeringError("a model needs two classes or more: merging would leave one")

    def concerns(self, classes: Labels) -> bool:
        return self.gone in classes

    def applied(self, before: Model) -> Model:
        if self.kept not in before.classes:
            return Rename(self.gone, self.kept).applied(before)
        place, other = sorted(before.classes.index(label) for label in (self.kept, self.gone))
        before.method.merge(place, other)
        classes = [self.kept if column == place else label for column, label in enumerate(before.classes)]
        del classes[other]
        quota = before.method.recipe.memory.held_out_quota(len(classes))
        held_out = memory.merged(before.held_out, place, other, quota)
        history = relabelled(before.history, {self.gone: self.kept})
        return replace(before, classes=classes, held_out=held_out, history=history)


def require_known(label: Hashable, classes: Labels) -> None:
    """Raise if a model does not know a class."""
    if label not in classes:
        raise TreeringError(f"no class is called {shown(label)}; {nearest(str(label), map(str, classes))}")


def relabelled(history: Sequence[Mapping[str, Any]], becomes: Mapping[Hashable, Hashable]) -> list[dict[str, Any]]:
    """Return the history with other labels, None for a class that is forgotten; what gets one label adds up."""
    texts = {str(label): None if other is None else str(other) for label, other in becomes.items()}
    known, records = set[Hashable](), []
    for record in history:
        new = [becomes.get(label, label) for label in record["new_classes"]]
        new = [label for label in dict.fromkeys(new) if label is not None and label not in known]
        known.update(new)
        images = _added_up(((label, [count]) for label, count in record["images"]), becomes)
        changed = {**record, "new_classes": new, "images": [[label, *counts] for label, counts in images.items()]}
        changed.pop("unfinished", None)  # training would go on with the labels of before
        accuracy = record.get("accuracy") or {}
        if "classes" in accuracy:
            both = {texts[name] for name in texts if texts[name] in accuracy["classes"] and name in accuracy["classes"]}
            measured = {name: pair for name, pair in accuracy["classes"].items() if texts.get(name, name) not in both}
            pairs = _added_up(measured.items(), texts)  # nobody knows how many of two classes are right as one
            changed["accuracy"] = {**accuracy, "classes": pairs}
            if len(pairs) < len(accuracy["classes"]):
                changed["accuracy"] |= _totals(pairs, {str(label) for label in new}, accuracy)
        if None in becomes.values() and changed != record:
            changed.pop("files", None)  # it is a digest of photos of the forgotten class too
        records.append(changed)
    return records


def _added_up(counts: Any, becomes: Mapping[Any, Any]) -> dict[Any, list[int]]:
    """Return numbers by label, under other labels."""
    found: dict[Any, list[int]] = {}
    for label, numbers in counts:
        other = becomes.get(label, label)
        if other is not None:
            found[other] = [sum(both) for both in zip(found.get(other, [0] * len(numbers)), numbers, strict=True)]
    return found


def _totals(pairs: Mapping[str, Sequence[int]], new: set[str], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accuracies over all these classes, the old and the new ones, where they were known."""

    def percent(chosen: Sequence[Sequence[int]]) -> float | None:
        images = sum(pair[1] for pair in chosen)
        return 100 * sum(pair[0] for pair in chosen) / images if images else None

    parts = {
        "all": percent(list(pairs.values())),
        "old": percent([pair for name, pair in pairs.items() if name not in new]),
        "new": percent([pair for name, pair in pairs.items() if name in new]),
    }
    found = {name: value for name, value in parts.items() if before.get(name) is not None}
    return found | {"images": sum(pair[1] for pair in pairs.values())}


# In a model folder


def in_folder(path: Path, change: Change) -> int:
    """Change every version of the model at `path` that has the classes; return how many there were."""
    return rewrite.every_version(path, _InFolder(change))


class _InFolder:
    """A change of the versions in a model folder."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def require(self, folder: Folder, manifest: Manifest, is_current: bool) -> None:
        recipe = model.recipe_of(folder, manifest)
        if recipe.backbone == "custom":
            raise TreeringError(
                f"{folder.path} was learnt with a module of your own: change it in Python with "
                "Learner.load(folder, backbone=module), and save it with keep=0"
            )
        if is_current:
            self.change.require(manifest.classes, recipe.method)
        else:
            self.change.require_earlier(manifest.classes)

    def concerns(self, manifest: Manifest) -> bool:
        return self.change.concerns(manifest.classes)

    def content(self, folder: Folder, manifest: Manifest) -> Content | None:
        after = self.change.applied(model.read(None, torch.device("cpu"), folder, manifest))
        return after.content() if after else None

    def examine(self, folder: Folder, manifest: Manifest) -> None:
        model.examine(folder, manifest)


def label_of(text: str, classes: Labels) -> Hashable:
    """Return the class that is written so or, if there is none, whose letters look so; else the text itself."""
    written = {str(label): label for label in classes}
    name = unicodedata.normalize("NFC", text)
    alike = {unicodedata.normalize("NFC", known): label for known, label in written.items()}
    return written.get(text, alike.get(name, name))


def new_label(text: str, classes: Labels) -> str:
    """Return the name of a class as folders of photos give it; raise if no folder can be called so."""
    name = unicodedata.normalize("NFC", text)
    if not all(isinstance(label, str) for label in classes):
        raise TreeringError("the classes of this model are numbers: rename them in Python, with Learner.rename")
    if (
        not name
        or Path(name).name != name
        or name.startswith(".")
        or "\0" in name
        or len(name.encode(errors="replace")) > 255
    ):
        raise TreeringError(f"{shown(name)} cannot be the name of a folder of photos: give another name")
    return name
