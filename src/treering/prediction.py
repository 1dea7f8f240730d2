"""What a model says of image files, one by one; a model folder and an exported file answer by the same code.

Nothing here loads PyTorch, which takes seconds and which an exported file does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from treering.errors import TreeringError
from treering.images import folders
from treering.images.files import read_in_parts
from treering.runtime import files

BATCH = 32
"""The number of images that are decoded and predicted at once, if they are not large."""
MOST_PIXELS = BATCH * 256 * 256
"""The most pixels that are decoded and predicted at once, unless a single image has more."""
LONGEST_SIDE = 1024
"""The longest side of images that an exported file answers for here."""
SHARE = 0.05
"""The share of images of known classes that are called unknown, unless the user wishes another."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image, best first, or the reason why it could not be read."""

    file: Path
    classes: list[tuple[str, float]]
    """The classes with their probabilities."""
    error: str | None = None
    unknown: bool | None = None
    """Whether it resembles none of the classes; None if that was not asked."""


@dataclass(frozen=True)
class Teller:
    """What answers: it says how large images have to be, and gives a probability to each class."""

    names: list[str]
    """The classes."""
    size: int
    """The side of the squares that image files are read as."""
    channels: int
    answers: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray | None]]
    """Maps images N x size x size x channels, uint8, to probabilities N x classes, and to distances if it can."""
    usual: np.ndarray | None = None
    """Quantiles of the distances of images of known classes, if it can tell unknown ones."""
    threshold: float | None = None
    """The distance beyond which an image is unknown; None if that is not asked."""

    def refusing(self, share: float | None = None) -> Teller:
        """Return a copy that calls an image unknown if it is farther away than all but this share of known images.

        The default is the usual share where unknown images can be told, and elsewhere 0, which is not to ask at all.
        """
        if share is None:
            share = 0.0 if self.usual is None else SHARE
        limit = threshold(self.usual, share)
        return replace(self, threshold=limit if share else None)

    def predictions(self, paths: Sequence[Path], top: int) -> Iterator[Prediction]:
        """Yield the `top` classes of each file; files are read in parts, so any number takes the same memory."""
        names_of_files = iter(paths)
        at_once = max(1, min(BATCH, MOST_PIXELS // self.size**2))
        for decoded in read_in_parts(paths, self.size, self.channels, at_once):
            good = [result for result in decoded if not isinstance(result, str)]
            rows = self._rows(np.stack(good)) if good else iter(())
            for result in decoded:
                file = next(names_of_files)
                if isinstance(result, str):
                    yield Prediction(file, [], result, None if self.threshold is None else False)
                    continue
                row, unknown = next(rows)
                best = np.argsort(-row, kind="stable")[:top]
                classes = [(self.names[index], float(row[index])) for index in best]
                yield Prediction(file, classes, unknown=unknown)

    def _rows(self, images: np.ndarray) -> Iterator[tuple[np.ndarray, bool | None]]:
        """Return the probabilities of each image, and whether it is unknown."""
        probabilities, distances = self.answers(images)
        if self.threshold is None or distances is None:
            return zip(probabilities, [None] * len(images), strict=True)
        return zip(probabilities, (distances > self.threshold).tolist(), strict=True)


def threshold(usual: np.ndarray | None, share: float) -> float:
    """Return the distance beyond which this share of the usual ones lies; infinite for none."""
    if not 0 <= share <= 1:
        raise TreeringError(f"the share of known images to call unknown must be from 0 to 1, not {share}")
    if not share:
        return float("inf")
    if usual is None:
        raise TreeringError(
            "this model cannot tell unknown images: use a pretrained network, give two images of a class or more, and "
            "export the model again if it was exported by an earlier version"
        )
    return float(np.quantile(usual, 1 - share))


def files_in(places: Sequence[Path]) -> list[Path]:
    """Return every file that is named, and every file below a folder that is named."""
    found: list[Path] = []
    for place in places:
        found += folders.files_below(place) if files.is_folder(place) else [place]
    if not found:
        raise TreeringError(f"no files in {', '.join(map(str, places))}: give images, or folders of images")
    return found
