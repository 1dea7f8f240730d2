"""The division of a step's photos into those to train on and those that only measure: no photo or copy does both.

Copies of a photo are recognised by a digest of its pixels, and by their looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from treering import words
from treering.errors import TreeringError
from treering.images.folders import LoadedFolder
from treering.model import Model
from treering.photos.copies import Album, Shown
from treering.runtime import pixels
from treering.runtime.pixels import Images

logger = words.logger(__name__)

ONE_HELD_OUT_IN = 10
"""One image in this many of a new class is held out of training, if the class has `ENOUGH_TO_HOLD_OUT` images."""
ENOUGH_TO_HOLD_OUT = 5
MOST_EXEMPLARS = 3000
"""The most exemplars among which copies of photos are looked for: more would cost a step time by the old photos."""


@dataclass(frozen=True)
class Division:
    """The use of each photo of a folder."""

    trained: list[int]
    """The indices of the photos that are trained on."""
    held_out: int
    copies: int
    """The number of photos that are left out because they show the same as others of their class or held-out ones."""
    measured: dict[str, Images]
    """The photos of each class to measure the accuracy on, those of earlier steps included."""
    same: list[tuple[Shown, Shown]]
    """Each photo that shows the same as another before it, after that one, which may be one that the model keeps."""
    album: Album
    """The photos that the model keeps, and those of the folder."""

    def names(self, loaded: LoadedFolder) -> list[str]:
        """Return the class of each photo that is trained on."""
        return [loaded.labels[index] for index in self.trained]


def divide(loaded: LoadedFolder, digests: Sequence[bytes], model: Model | None, quota: int) -> Division:
    """Hold out one in ten of each new class, at most `quota`; photos of known classes may have been trained on."""
    random = np.random.RandomState(len(model.history) if model else 0)
    known = {str(name) for name in model.classes} if model else set()
    album = _kept_by(model)
    kept, hidden = len(album), _hidden(model)
    secret = set(album.digests[:hidden])
    seen = set(album.digests)  # in a new class they come from another class
    exemplars = {(photo.name, one) for photo, one in zip(album.photos[hidden:], album.digests[hidden:], strict=True)}
    labelled = list(zip(loaded.labels, digests, strict=True))
    album.add(loaded.images, list(map(Shown, loaded.labels, loaded.files)), digests)
    before = album.come_before(kept)
    alike = {row - kept for pair in before.items() if not album.is_exact(*pair) for row in pair}
    free: dict[str, dict[bytes, int]] = {}
    for index, (name, digest) in enumerate(labelled):
        if digest not in seen and name not in known and index not in alike:
            free.setdefault(name, {})[digest] = index
    held_out: list[int] = []
    for name in sorted(free):
        own = list(free[name].values())
        count = min(max(1, len(own) // ONE_HELD_OUT_IN), quota) if len(own) >= ENOUGH_TO_HOLD_OUT else 0
        held_out += random.permutation(own)[:count].tolist()
    secret |= {digests[index] for index in held_out}
    out = {index for index, one in enumerate(labelled) if one[1] in secret or one in exemplars}
    # A photo that shows the same as a held-out one measures nothing, and one that shows the same as another of its
    # class would be told by it.
    one_class = {row for row, earlier in before.items() if album.photos[row].name == album.photos[earlier].name}
    out |= {row - kept for row, earlier in before.items() if earlier < hidden or row in one_class}
    trained = [index for index in range(len(labelled)) if index not in out]
    lost = set(loaded.labels) - known - {loaded.labels[index] for index in trained}
    if lost:
        raise TreeringError(f"every image of {min(lost)} is held out already, in another class: add other images")
    earlier = {str(model.classes[column]): part for column, part in model.held_out.items()} if model else {}
    measured = _by_class(loaded, held_out) | earlier
    copies = len(out) - len(held_out)
    return Division(trained, len(held_out), copies, measured, _pairs(album, before), album)


def for_validation(
    loaded: LoadedFolder, classes: Sequence[str], division: Division, model: Model | None
) -> tuple[dict[str, Images], list[tuple[Shown, Shown]]]:
    """Return the photos of `classes` in a validation folder that show none that the model learns from.

    Those that do are returned too, each after the photo that it shows.
    """
    own = [index for index, name in enumerate(loaded.labels) if name in classes]
    if not own:
        raise TreeringError("the validation folder has no readable image of a class that the model is going to know")
    others = sorted(set(loaded.labels) - set(classes))
    if others:
        logger.warning("the validation folder has classes that the model does not know: %s", ", ".join(others))
    images, album = loaded.images[torch.tensor(own)], division.album
    first = len(album)
    album.add(images, [Shown(loaded.labels[index], loaded.files[index]) for index in own])
    found = album.come_before(first, among_themselves=False)
    learnt = {row: earlier for row, earlier in found.items() if earlier >= _hidden(model)}
    unseen = [index for row, index in enumerate(own, first) if row not in learnt]
    if not unseen:
        raise TreeringError("the model learns from every image of the validation folder: give others to measure it on")
    if learnt:
        logger.warning("%d of the images for validation are left out: the model learns from them", len(learnt))
    return _by_class(loaded, unseen), _pairs(album, learnt)


def _kept_by(model: Model | None) -> Album:
    """Return photos that the model keeps: those that are held out, then its exemplars, the best of each class."""
    album = Album()
    if model is None:
        return album
    each = max(1, MOST_EXEMPLARS // len(model.classes))
    for images, most in ((model.held_out, None), (model.method.memory.exemplars, each)):
        best = {column: part[:most] for column, part in images.items()}
        if best:
            names = [str(model.classes[column]) for column, part in best.items() for _ in range(len(part))]
            album.add(pixels.join(list(best.values())), list(map(Shown, names)))
    return album


def _hidden(model: Model | None) -> int:
    """Return how many photos of earlier steps are held out."""
    return sum(map(len, model.held_out.values())) if model else 0


def _pairs(album: Album, before: dict[int, int]) -> list[tuple[Shown, Shown]]:
    return [(album.photos[earlier], album.photos[row]) for row, earlier in sorted(before.items())]


def _by_class(loaded: LoadedFolder, chosen: Sequence[int]) -> dict[str, Images]:
    """Return the chosen images of each class."""
    rows: dict[str, list[int]] = {}
    for index in chosen:
        rows.setdefault(loaded.labels[index], []).append(index)
    return {name: loaded.images[torch.tensor(own)] for name, own in rows.items()}
