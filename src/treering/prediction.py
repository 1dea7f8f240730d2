"""What a model says of image files, one by one; a model folder and an exported file answer by the same code.

Nothing here loads PyTorch, which takes seconds and which an exported file does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treering.errors import TreeringError
from treering.images import folders
from treering.images.files import read_in_parts
from treering.runtime import files

BATCH = 32
"""The number of images that are decoded and predicted at once."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of an image, best first, or the reason why it could not be read."""

    file: Path
    classes: list[tuple[str, float]]
    """The classes with their probabilities."""
    error: str | None = None


@dataclass(frozen=True)
class Teller:
    """What answers: it says how large images have to be, and gives a probability to each class."""

    names: list[str]
    """The classes."""
    size: int
    """The side of the squares that image files are read as."""
    channels: int
    probabilities: Callable[[np.ndarray], np.ndarray]
    """Maps images N x size x size x channels, uint8, to probabilities N x classes."""

    def predictions(self, paths: Sequence[Path], top: int) -> Iterator[Prediction]:
        """Yield the `top` classes of each file; files are read in parts, so any number takes the same memory."""
        names_of_files = iter(paths)
        for decoded in read_in_parts(paths, self.size, self.channels, BATCH):
            good = [result for result in decoded if not isinstance(result, str)]
            rows = iter(self.probabilities(np.stack(good)) if good else ())
            for result in decoded:
                file = next(names_of_files)
                if isinstance(result, str):
                    yield Prediction(file, [], result)
                    continue
                row = next(rows)
                best = np.argsort(-row, kind="stable")[:top]
                yield Prediction(file, [(self.names[index], float(row[index])) for index in best])


def files_in(places: Sequence[Path]) -> list[Path]:
    """Return every file that is named, and every file below a folder that is named."""
    found: list[Path] = []
    for place in places:
        found += folders.files_below(place) if files.is_folder(place) else [place]
    if not found:
        raise TreeringError(f"no files in {', '.join(map(str, places))}: give images, or folders of images")
    return found
