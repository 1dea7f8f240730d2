"""Photos that show the same, although one of them was compressed again, made smaller, brightened or cropped a little.

A photo is compared by a small picture of its brightness, 32 x 32, of which only the contrasts within a few points
count: the light, and large areas of one grey, look alike in many photos. Photos whose small pictures look roughly
alike, and whose colours are about the same, are compared more closely, one of them cropped in each of several ways.

Measured by `benchmarks/photo_copies.py`: `MOST_DIFFERENT` was chosen on photos of birds and checked on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from treering.runtime import pixels
from treering.runtime.pixels import Images

SIDE, CELLS, REACH = 32, 16, 5
"""The sides of the small picture, of what of it is compared, and of the area that a contrast is with."""
MOST_DIFFERENT = 0.03
"""The greatest distance, 1 less the cosine, of two photos that show the same."""
TINTS, MOST_TINTED = 4, 10.0
"""The side of the areas whose colours are compared, and the most levels, of 255, by which these differ."""
CANDIDATE = 0.4
"""The greatest distance, as they are, of two photos that are compared more closely."""
MOST_CANDIDATES = 8
"""The number of earlier photos that one is compared with more closely."""
LEAST_CONTRAST = 1.0
"""A photo whose contrasts are less than this, of 255 levels, has nothing to be recognised by."""
CROPS = ((0.0, 1.0), (0.0, 0.97), (0.03, 1.0), (0.015, 0.985), (0.03, 0.97))
"""The parts of a photo, along one side, that a crop may leave."""
BLOCK = 1024


@dataclass(frozen=True)
class Shown:
    """A photo in a folder or, without a file, one that the model keeps."""

    name: str
    """Its class."""
    file: Path | None = None

    def __str__(self) -> str:
        return f"{self.file} (class {self.name})" if self.file else f"a kept photo of class {self.name}"


class Album:
    """Photos in the order in which they came, and whether one has come before."""

    def __init__(self) -> None:
        self.photos: list[Shown] = []
        self.digests: list[bytes] = []
        """A digest of each photo's pixels."""
        self._small: list[Small] = []

    def __len__(self) -> int:
        return len(self.photos)

    def add(self, images: Images, photos: Sequence[Shown], digests: Sequence[bytes] | None = None) -> None:
        """Put photos behind those that are there, with the digests of their pixels if these are known."""
        self.photos += photos
        self.digests += digests or ()
        for part in images.split(256):
            self.digests += pixels.digests(part) if digests is None else ()
            self._small.append(small(part))

    def come_before(self, first: int, among_themselves: bool = True) -> dict[int, int]:
        """Return, for each photo from the `first` on that shows the same as one before it, the earliest of these.

        Without `among_themselves`, only those before the first count.
        """
        if first == len(self):
            return {}
        found = _near(Small(*map(torch.cat, zip(*self._small, strict=True))), first, among_themselves)
        at: dict[bytes, int] = {}
        for number, digest in enumerate(self.digests):
            if number >= first and digest in at:
                found[number] = min(at[digest], found.get(number, number))
            if among_themselves or number < first:
                at.setdefault(digest, number)
        return found

    def is_exact(self, one: int, other: int) -> bool:
        """Return whether two photos have the same pixels."""
        return self.digests[one] == self.digests[other]


class Small(NamedTuple):
    """What images are compared by."""

    grey: Tensor
    """The brightness, N x SIDE x SIDE, uint8."""
    tint: Tensor
    """By how much blue and red are brighter than that, N x 2 x TINTS x TINTS."""


def small(images: Tensor) -> Small:
    """Return what images N x C x H x W are compared by."""
    planes = images.cpu().contiguous().numpy()
    if images.shape[1] == 1:
        planes = planes.repeat(3, 1)
    reduced = np.empty((*planes.shape[:2], SIDE, SIDE), np.float32)
    for place in np.ndindex(planes.shape[:2]):
        reduced[place] = Image.fromarray(planes[place]).resize((SIDE, SIDE), Image.Resampling.BOX)
    colours = torch.from_numpy(reduced)
    grey = torch.einsum("nchw,c->nhw", colours, torch.tensor([0.299, 0.587, 0.114]))
    tint = F.avg_pool2d(colours[:, [2, 0]] - grey[:, None], SIDE // TINTS)
    return Small(grey.round().to(torch.uint8), tint)


def _averages(start: float, end: float, side: int, cells: int) -> Tensor:
    """Return what makes `cells` averages of a part of `side` points, each of an equal share of it."""
    edges = torch.linspace(start * side, end * side, cells + 1, dtype=torch.float64)
    points = torch.arange(side, dtype=torch.float64)
    shares = (torch.minimum(edges[1:, None], points + 1) - torch.maximum(edges[:-1, None], points)).clamp_min(0)
    return (shares / shares.sum(1, keepdim=True)).float()


def _contrasts(small_NSS: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return N x CELLS² of length 1, or 0 where there is no contrast; `rows` and `columns` choose a part."""
    cells = (rows @ small_NSS.float() @ columns.T)[:, None]
    around = F.avg_pool2d(F.pad(cells, (REACH // 2,) * 4, mode="reflect"), REACH, stride=1)
    flat = (cells - around).flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    length = flat.norm(dim=1, keepdim=True)
    return torch.where(length > CELLS * LEAST_CONTRAST, flat / length, torch.zeros(()))


def _near(photos: Small, first: int, among_themselves: bool) -> dict[int, int]:
    """Return what `Album.come_before` does, as far as looks tell."""
    whole = _averages(0, 1, SIDE, CELLS)
    contrasts = torch.cat([_contrasts(part, whole, whole) for part in photos.grey.split(BLOCK)])
    found: dict[int, int] = {}
    for start in range(first, len(contrasts), BLOCK):
        end = min(start + BLOCK, len(contrasts))
        likeness = contrasts[start:end] @ contrasts[: end if among_themselves else first].T
        if among_themselves:
            likeness[:, start:].tril_(-1)
        best = likeness.topk(min(MOST_CANDIDATES, likeness.shape[1]), 1)
        row, place = (best.values > 1 - CANDIDATE).nonzero(as_tuple=True)
        later, earlier = row + start, best.indices[row, place]
        tinted = (photos.tint[later] - photos.tint[earlier]).square().flatten(1).mean(1).sqrt() > MOST_TINTED
        later, earlier = later[~tinted], earlier[~tinted]
        for part in torch.arange(len(later)).split(BLOCK):
            same = _distances(photos.grey[later[part]], photos.grey[earlier[part]]) < MOST_DIFFERENT
            for one, other in zip(later[part][same].tolist(), earlier[part][same].tolist(), strict=True):
                found[one] = min(other, found.get(one, other))
    return found


def _distances(one_NSS: Tensor, other_NSS: Tensor) -> Tensor:
    """Return how different the two photos of each pair are, if one of them may be a part of the other."""
    parts = [_averages(*crop, SIDE, CELLS) for crop in CROPS]
    one, other = (_contrasts(each, parts[0], parts[0]) for each in (one_NSS, other_NSS))
    likeness = (one * other).sum(1)
    for rows in parts:
        for columns in parts:
            for part, whole in ((one_NSS, other), (other_NSS, one)):
                likeness = torch.maximum(likeness, (_contrasts(part, rows, columns) * whole).sum(1))
    return 1 - likeness
