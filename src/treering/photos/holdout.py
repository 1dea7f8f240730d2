"""The division of a step's photos into those to train on and those that only measure: no photo or copy does both.

Copies of a photo are recognised by a digest of its pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treering.errors import TreeringError
from treering.images.folders import LoadedFolder
from treering.model import Model
from treering.runtime import pixels
from treering.runtime.pixels import Images

logger = logging.getLogger(__name__)

ONE_HELD_OUT_IN = 10
"""One image in this many of a new class is held out of training, if the class has `ENOUGH_TO_HOLD_OUT` images."""
ENOUGH_TO_HOLD_OUT = 5


@dataclass(frozen=True)
class Division:
    """The use of each photo of a folder."""

    trained: list[int]
    """The indices of the photos that are trained on."""
    held_out: int
    copies: int
    """The number of photos that are left out because they are copies of held-out photos or of exemplars."""
    measured: dict[str, Images]
    """The photos of each class to measure the accuracy on, those of earlier steps included."""
    in_two_classes: list[tuple[str, str]]
    """Two classes of each photo that has more than one, in the folder or among the images that the model keeps."""

    def names(self, loaded: LoadedFolder) -> list[str]:
        """Return the class of each photo that is trained on."""
        return [loaded.labels[index] for index in self.trained]


def divide(loaded: LoadedFolder, digests: Sequence[bytes], model: Model | None, quota: int) -> Division:
    """Hold out one in ten of each new class, at most `quota`; photos of known classes may have been trained on."""
    random = np.random.RandomState(len(model.history) if model else 0)
    known = {str(name) for name in model.classes} if model else set()
    exemplars, secrets = _kept_by(model)
    secret = {digest for _, digest in secrets}
    seen = secret | {digest for _, digest in exemplars}  # in a new class they come from another class
    labelled = list(zip(loaded.labels, digests, strict=True))
    free: dict[str, dict[bytes, int]] = {}
    for index, (name, digest) in enumerate(labelled):
        if digest not in seen and name not in known:
            free.setdefault(name, {})[digest] = index
    held_out: list[int] = []
    for name in sorted(free):
        own = list(free[name].values())
        count = min(max(1, len(own) // ONE_HELD_OUT_IN), quota) if len(own) >= ENOUGH_TO_HOLD_OUT else 0
        held_out += random.permutation(own)[:count].tolist()
    secret |= {digests[index] for index in held_out}
    out = {index for index, one in enumerate(labelled) if one[1] in secret or one in exemplars}
    trained = [index for index in range(len(labelled)) if index not in out]
    lost = set(loaded.labels) - known - {loaded.labels[index] for index in trained}
    if lost:
        raise TreeringError(f"every image of {min(lost)} is held out already, in another class: add other images")
    earlier = {str(model.classes[column]): part for column, part in model.held_out.items()} if model else {}
    measured = _by_class(loaded, held_out) | earlier
    copies = len(out) - len(held_out)
    return Division(trained, len(held_out), copies, measured, _in_two_classes(labelled, exemplars | secrets))


def for_validation(
    loaded: LoadedFolder, classes: Sequence[str], step: Sequence[bytes], model: Model | None
) -> dict[str, Images]:
    """Return the photos of `classes` in a validation folder, without copies of exemplars and of the step's photos.

    `step` has the digests of the step's photos.
    """
    trained = {*step, *(digest for _, digest in _kept_by(model)[0])}
    own = [index for index, name in enumerate(loaded.labels) if name in classes]
    if not own:
        raise TreeringError("the validation folder has no readable image of a class that the model is going to know")
    digests = pixels.digests(loaded.images)
    unseen = [index for index in own if digests[index] not in trained]
    if not unseen:
        raise TreeringError("the model learns from every image of the validation folder: give others to measure it on")
    if len(unseen) < len(own):
        count = len(own) - len(unseen)
        logger.warning("%d of the images for validation are left out: the model learns from them", count)
    return _by_class(loaded, unseen)


def _kept_by(model: Model | None) -> tuple[set[tuple[str, bytes]], set[tuple[str, bytes]]]:
    """Return class and digest of every exemplar, and of every held-out image."""
    if model is None:
        return set(), set()
    names = [str(name) for name in model.classes]

    def named(images: Mapping[int, Tensor]) -> set[tuple[str, bytes]]:
        return {(names[column], digest) for column, part in images.items() for digest in pixels.digests(part)}

    return named(model.method.memory.exemplars), named(model.held_out)


def _by_class(loaded: LoadedFolder, chosen: Sequence[int]) -> dict[str, Images]:
    """Return the chosen images of each class."""
    rows: dict[str, list[int]] = {}
    for index in chosen:
        rows.setdefault(loaded.labels[index], []).append(index)
    return {name: loaded.images[torch.tensor(own)] for name, own in rows.items()}


def _in_two_classes(labelled: Sequence[tuple[str, bytes]], kept: set[tuple[str, bytes]]) -> list[tuple[str, str]]:
    classes: dict[bytes, set[str]] = {digest: set() for _, digest in labelled}
    for name, digest in [*labelled, *kept]:
        if digest in classes:
            classes[digest].add(name)
    return [(first, second) for first, second, *_ in (sorted(names) for names in classes.values() if len(names) > 1)]
