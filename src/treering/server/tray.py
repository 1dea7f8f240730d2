"""The photos of a model that wait to be learnt, and those of its jobs, in a folder of the user's own.

They lie outside the model's folder, which may come from a stranger. Each is a PNG file of the model's size under a
name of the tray's own; `index.json` tells their classes. A crash leaves the tray as it was before or after a change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from treering import words
from treering.errors import TreeringError
from treering.images.folders import ImageFolder
from treering.runtime import files
from treering.storage import manifest, pictures, user_key

logger = words.logger(__name__)

MOST_PHOTOS = 2000
"""The most photos that wait at the same time for one model."""
PRIVATE = 0o700
INDEX, OWNER = "index.json", "model.json"
LARGEST_INDEX = 2**26
PHOTO = re.compile("[0-9a-f]{32}")
"""The names of photos."""


def place_of(model: Path) -> Path:
    """Return the folder that holds what waits for the model at this path."""
    name = hashlib.sha256(str(model.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return user_key.place().parent / "serve" / name


def waiting_in(folder: Path) -> list[str]:
    """Return the names of models in a folder of models for which photos wait, though they have learnt nothing yet."""
    found = []
    with contextlib.suppress(OSError):
        for owner in sorted((user_key.place().parent / "serve").glob(f"*/{OWNER}")):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                model = Path(json.loads(files.read(owner, LARGEST_INDEX))["path"])
                if model.parent == folder.resolve() and not manifest.is_there(model):
                    found.append(model.name)
    return found


class Tray:
    """The photos that wait for one model; `photos` gives the class of each, in the order in which they came."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.photos = read_index(place)

    @classmethod
    def of(cls, model: Path) -> Tray:
        """Return the tray of the model at this path, which is made if there is none."""
        around = place_of(model)
        around.parent.mkdir(PRIVATE, parents=True, exist_ok=True)
        for folder in (around, around / "tray"):
            folder.mkdir(PRIVATE, exist_ok=True)
        owner = around / OWNER
        if not owner.exists():
            files.write(owner, json.dumps({"path": str(model.resolve())}).encode())
        return cls(around / "tray")

    @property
    def room(self) -> int:
        """How many more photos fit."""
        return max(0, MOST_PHOTOS - len(self.photos))

    def add(self, class_name: str, images: Sequence[np.ndarray]) -> list[str]:
        """Put photos N x N x 3 into the tray; return their names."""
        begin = time.time_ns()  # photos are learnt in the order in which they came
        names = [f"{begin + number:016x}{secrets.token_hex(8)}" for number in range(len(images))]
        self.place.mkdir(PRIVATE, parents=True, exist_ok=True)
        for name, image in zip(names, images, strict=True):
            files.write(self.place / f"{name}.png", pictures.encode(torch.tensor(image).movedim(-1, 0)), flushed=False)
        files.flush([self.place / f"{name}.png" for name in names])
        self._change(self.photos | dict.fromkeys(names, class_name))
        return names

    def remove(self, names: Sequence[str]) -> None:
        """Take photos out."""
        self._change({name: kept for name, kept in self.photos.items() if name not in names})
        for name in names:
            (self.place / f"{name}.png").unlink(missing_ok=True)

    def relabel(self, becomes: Mapping[str, str | None]) -> None:
        """Have photos of a class wait as those of another; those of a class that becomes None go."""
        gone = [name for name, kept in self.photos.items() if becomes.get(kept, kept) is None]
        self._change({name: becomes.get(kept) or kept for name, kept in self.photos.items()})
        self.remove(gone)

    def read(self, name: str) -> bytes | None:
        """Return the PNG file of a photo; None if it is not in the tray."""
        if name not in self.photos:
            return None
        try:
            return files.read(self.place / f"{name}.png", 2**24, through_links=False)
        except OSError:
            return None

    def move_to(self, place: Path) -> None:
        """Make all photos those of a job, whose folder this becomes."""
        self.place.rename(place)
        self.place.mkdir(PRIVATE)
        self.photos = {}

    def put_back(self, place: Path) -> None:
        """Take the photos of a job that was not learnt back into the tray."""
        returned = {}
        for name, class_name in read_index(place).items():
            with contextlib.suppress(FileNotFoundError):  # an earlier call has moved it, and was killed
                (place / f"{name}.png").replace(self.place / f"{name}.png")
            if (self.place / f"{name}.png").exists():
                returned[name] = class_name
        self._change(returned | self.photos)

    def _change(self, photos: Mapping[str, str]) -> None:
        files.write(self.place / INDEX, json.dumps(photos).encode())
        self.photos = dict(photos)


def read_index(place: Path) -> dict[str, str]:
    """Return the class of each photo in a folder; what is damaged is told of and left alone."""
    try:
        found = json.loads(files.read(place / INDEX, LARGEST_INDEX, through_links=False))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read, so its photos are left out: %s", place / INDEX, error)
        return {}
    return {
        name: kept
        for name, kept in (found.items() if isinstance(found, dict) else ())
        if PHOTO.fullmatch(name) and isinstance(kept, str) and (place / f"{name}.png").is_file()
    }


def folder_of(place: Path) -> ImageFolder:
    """Return the photos of a job as `learn` takes them."""
    classes: dict[str, list[Path]] = {}
    for name, class_name in read_index(place).items():
        classes.setdefault(class_name, []).append(place / f"{name}.png")
    if not classes:
        raise TreeringError("the photos of this job are gone: put them into the tray again")
    return ImageFolder({name: sorted(classes[name]) for name in sorted(classes)}, name="the tray")


def counts(photos: Mapping[str, str]) -> dict[str, int]:
    """Return how many photos each class has."""
    return dict(sorted(Counter(photos.values()).items()))


def discard(place: Path) -> None:
    """Remove the photos of a job that is over."""
    for name in read_index(place):
        (place / f"{name}.png").unlink(missing_ok=True)
    (place / INDEX).unlink(missing_ok=True)


def remove(place: Path) -> None:
    """Remove the folder of a job that nobody asks for any more."""
    shutil.rmtree(place, ignore_errors=True)
