"""Folders of images: one folder per class, FOLDER/<class>/<image>, with more folders within a class if you like.

A class folder may be a link, and so may an image; no other link to a folder is followed.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from treering import words
from treering.errors import TreeringError
from treering.images.files import IS_LINK, read_in_parts
from treering.runtime import files

if TYPE_CHECKING:
    from treering.runtime.pixels import StoredImages

logger = words.logger(__name__)

AT_ONCE = 256
"""How many decoded images wait to be put away: this bounds the memory."""
LOOPS_BACK = "a link back to a folder already read"
IS_MODEL = "a model, not a class"
TEST_FOLDERS = ("val", "test", "validation")
"""What people call the folder of test images beside the one called train."""


@dataclass
class ImageFolder:
    """What is in a folder of images, before any is decoded."""

    classes: dict[str, list[Path]] = field(default_factory=dict)
    """Class -> its files, both sorted by name."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """What was left out and why."""
    name: str = "the folder"
    """What messages call it."""


def scan(folder: Path) -> ImageFolder:
    """Find every class of the folder and the files that may be its images."""
    try:
        places = sorted(map(Path, os.scandir(folder)))
        wrong = "is a model" if is_model(folder) else ""
    except FileNotFoundError:
        wrong = "does not exist"
    except NotADirectoryError:
        wrong = "is a file"
    except OSError as error:
        raise TreeringError(f"cannot read {folder}: {error.strerror}") from None
    if wrong:
        raise TreeringError(f"{folder} {wrong}: give a folder with one folder of images per class")
    found, loose = ImageFolder(), []
    for path in places:
        if not files.is_folder(path):
            loose += [] if files.is_clutter(path.name) else [path]
        elif path.name.startswith("."):
            found.skipped.append((path, "hidden folder"))
        elif is_model(path):
            found.skipped.append((path, IS_MODEL))
        else:
            own = sorted(_files(path, found.skipped, folder))
            if own:
                name = unicodedata.normalize("NFC", path.name)  # one name however a file system spells its accents
                found.classes[name] = found.classes.get(name, []) + own
            elif path not in dict(found.skipped):
                found.skipped.append((path, "no files in this class folder"))
    if not found.classes:
        what = f"holds {len(loose)} files but no class folders" if loose else "has no class folders with images"
        raise TreeringError(f"{folder} {what}: put the images of each class into a folder of their own")
    _require_classes(folder, found.classes)
    found.skipped += [(path, "not in a class folder") for path in loose]
    return found


def _require_classes(folder: Path, classes: dict[str, list[Path]]) -> None:
    """Raise if the folder holds training and test images, so that its classes are one level further down."""
    parts = {name.lower() for name in classes}
    if "train" not in parts or not parts <= {"train", *TEST_FOLDERS}:
        return
    if len(classes) > 1:
        raise TreeringError(f"{folder} has the folders {' and '.join(classes)}, not classes: give one of them")
    ((name, paths),) = classes.items()
    if not any(path.parent.name == name for path in paths):  # else it may be a class, of locomotives
        raise TreeringError(f"{folder} has one folder, {name}, with folders in it, not classes: give {folder / name}")


def is_model(folder: Path) -> bool:
    """Return whether this is a model's folder rather than one of images."""
    return files.exists(folder / "manifest.json") and any(folder.glob("weights-*.safetensors"))


def files_below(folder: Path) -> list[Path]:
    """Return every file in a folder and the folders below it, and the folders that are not looked into."""
    skipped: list[tuple[Path, str]] = []
    found = sorted(_files(folder, skipped))
    return found + [place for place, reason in skipped if reason not in (LOOPS_BACK, IS_MODEL)]


def _files(folder: Path, skipped: list[tuple[Path, str]], inside: Path | None = None) -> Iterator[Path]:
    """Yield the files below a class folder, which lies `inside` the folder of all classes if that is given.

    Folders that cannot be read, models, and links to folders are not looked into, but noted in `skipped`.
    """

    def note(error: OSError) -> None:
        skipped.append((Path(error.filename), error.strerror or "cannot be read"))

    above = [*folder.resolve().parents]
    if inside:
        above += [inside.resolve(), *inside.resolve().parents]
    seen = {_identity(parent) for parent in above}
    for place, folders, names in os.walk(folder, onerror=note):
        back = _identity(Path(place)) in seen
        if back or (place != str(folder) and is_model(Path(place))):
            skipped.append((Path(place), LOOPS_BACK if back else IS_MODEL))
            folders.clear()
            continue
        seen.add(_identity(Path(place)))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [path for path in (Path(place, name) for name in folders) if path.is_symlink()]
        skipped += [(path, LOOPS_BACK if _identity(path) in seen else IS_LINK) for path in links]
        yield from (Path(place, name) for name in names if not files.is_clutter(name))


def _identity(folder: Path) -> tuple[int, int]:
    """Return what tells this folder from others, by whatever name it is reached."""
    status = folder.stat()
    return status.st_dev, status.st_ino


@dataclass
class LoadedFolder:
    """The images of a folder, decoded."""

    images: StoredImages
    labels: list[str]
    skipped: list[tuple[Path, str]]
    """What was left out and why."""
    files: list[Path]
    """The file of each image."""


def load(
    found: ImageFolder,
    size: int,
    channels: int = 3,
    place: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LoadedFolder:
    """Decode every image into a temporary file in `place`, a few at a time; what cannot be read is skipped.

    The caller decides what to do with `skipped`: list it, or `warn_of` it.
    """
    import torch  # here, since an exported model's photos are found without PyTorch, which takes seconds to load

    from treering.runtime.pixels import PixelFile

    stored = PixelFile((channels, size, size), place)
    skipped, labels, files_read = list(found.skipped), [], []
    images = [(name, path) for name, paths in found.classes.items() for path in paths]
    done = 0
    for part in read_in_parts([path for _, path in images], size, channels, AT_ONCE):
        good = []
        for (name, path), result in zip(images[done : done + len(part)], part, strict=True):
            if isinstance(result, str):
                skipped.append((path, result))
            else:
                good.append(result)
                labels.append(name)
                files_read.append(path)
        if good:
            stored.append(torch.from_numpy(np.stack(good)).movedim(-1, 1))
        done += len(part)
        progress(done, len(images))
    seen = set(labels)
    empty = [paths[0].parent for name, paths in found.classes.items() if name not in seen]
    skipped += [(folder, "no image of this class can be read") for folder in empty]
    return LoadedFolder(stored.images(), labels, skipped, files_read)


def warn_of(skipped: Iterable[tuple[Path, str]]) -> None:
    """Log a warning for each thing that was left out."""
    for path, reason in skipped:
        logger.warning("%s is left out: %s", path, reason)
