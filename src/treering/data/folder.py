"""Any dataset in ImageNet's layout: DATA/<name>/train/<class>/<image> and DATA/<name>/val/<class>/<image>.

Without these two folders it is DATA/<name>/<class>/<image>, and one image in five of each class is for testing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from treering import words
from treering.data.stream import ONE_TEST_IMAGE_IN, Dataset
from treering.errors import TreeringError
from treering.images import folders
from treering.images.files import read_in_parts
from treering.runtime import files

logger = words.logger(__name__)

SPLIT_SEED = 0


def load(folder: Path, size: int) -> Dataset:
    """Return every image as a square of `size` pixels, and the classes in the order of their names."""
    train_folder, test_folder = _part(folder, ("train",)), _part(folder, folders.TEST_FOLDERS)
    if train_folder and test_folder and (_folders(train_folder) or _folders(test_folder)):
        train, test = _scanned(train_folder), _scanned(test_folder)
        unknown = [name for name in test if name not in train]
        if unknown:
            some = ", ".join(unknown) if len(unknown) < 10 else f"{', '.join(unknown[:5])}, … ({len(unknown)} in all)"
            logger.warning("classes of %s without training images are left out: %s", test_folder, some)
    elif train_folder and _folders(train_folder):
        name = train_folder.name
        raise TreeringError(f"{folder} has a folder {name} but none called val or test: add one, laid out like {name}")
    else:
        train, test = _split(_scanned(folder))
    for part, what in ((train, "training"), (test, "test")):
        missing = next((name for name in train if not part.get(name)), None)
        if missing is not None:
            raise TreeringError(f"class {missing} of {folder} has no {what} images: add some, or remove the class")
    names = tuple(train)
    _require_memory(folder, sum(len(part[name]) for part in (train, test) for name in names), size)
    return Dataset(folder.name, *_read(train, names, size), *_read(test, names, size), names)


def _part(folder: Path, names: Sequence[str]) -> Path | None:
    """Return the folder in `folder` with one of these names in upper or lower case, preferably one that has folders."""
    below = {path.name.lower(): path for path in _folders(folder)}
    found = [below[name] for name in names if name in below]
    return next((path for path in found if _folders(path)), found[0] if found else None)


def _folders(folder: Path) -> list[Path]:
    """Return the folders in `folder` that are not hidden; none if it cannot be read, which `scan` reports."""
    try:
        return sorted(path for path in folder.iterdir() if files.is_folder(path) and not path.name.startswith("."))
    except OSError:
        return []


def _scanned(folder: Path) -> dict[str, list[Path]]:
    found = folders.scan(folder)
    folders.warn_of(found.skipped)
    return found.classes


def _split(classes: dict[str, list[Path]]) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """Divide the files of each class into those for training and those for testing."""
    random = np.random.RandomState(SPLIT_SEED)
    train, test = {}, {}
    for name, paths in classes.items():
        chosen = set(random.permutation(len(paths))[: -(-len(paths) // ONE_TEST_IMAGE_IN)].tolist())
        train[name] = [path for index, path in enumerate(paths) if index not in chosen]
        test[name] = [path for index, path in enumerate(paths) if index in chosen]
    return train, test


def _read(classes: dict[str, list[Path]], names: Sequence[str], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels and labels of every file that can be read; each class must have one."""
    paths = [path for name in names for path in classes[name]]
    labels = np.repeat(np.arange(len(names)), [len(classes[name]) for name in names])
    pixels = np.empty((len(paths), size, size, 3), np.uint8)
    readable = np.ones(len(paths), bool)
    for index, image in enumerate(itertools.chain.from_iterable(read_in_parts(paths, size, 3, folders.AT_ONCE))):
        if isinstance(image, str):
            folders.warn_of([(paths[index], image)])
            readable[index] = False
        else:
            pixels[index] = image
    empty = next((name for label, name in enumerate(names) if not readable[labels == label].any()), None)
    if empty is not None:
        raise TreeringError(f"no image of class {empty} in {classes[empty][0].parent} can be read: add others")
    return (pixels, labels) if readable.all() else (pixels[readable], labels[readable])


def _require_memory(folder: Path, count: int, size: int) -> None:
    """Raise if the images, which are all held in memory, take more memory than the machine has."""
    needed = count * size * size * 3
    if hasattr(os, "sysconf") and needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise TreeringError(
            f"the {count:,} images of {folder} take {needed / 1e9:.0f} GB of memory at {size} x {size} pixels, "
            "more than this machine has: set run.image_size lower"
        )
