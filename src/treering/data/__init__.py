"""Datasets by name, and the streams of steps made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treering.data import cifar, digits, folder
from treering.data.stream import Dataset
from treering.errors import TreeringError, nearest

DATASETS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": lambda data, download: digits.load(),
    "cifar100": cifar.load,
    "cifar100-vehicles": cifar.load_vehicles,
}
"""The loader of each built-in dataset by name: it takes the data folder and whether it may download."""


@dataclass(frozen=True)
class Facts:
    """The facts about a dataset of the paper that are known without its files."""

    classes: int
    images_per_class: int
    """About how many training images each class has."""
    side: int
    """The side of the images that the network sees, in pixels."""


PAPER: dict[str, Facts] = {
    "cifar100": Facts(100, 500, 32),
    "cifar100-vehicles": Facts(10, 500, 32),
    "imagenet100": Facts(100, 1281, 224),
    "imagenet1000": Facts(1000, 1281, 224),
    "stanford-dogs": Facts(120, 100, 224),
}
"""The facts about each of the paper's datasets."""


def load(name: str, data: Path, download: bool = False, image_size: int = 256) -> Dataset:
    """Return the dataset of this name: a built-in one, or else a folder of images in the folder `data`."""
    if name in DATASETS:
        own = data / name
        if own.is_dir() and any(inside.is_dir() for inside in own.iterdir()):
            raise TreeringError(
                f"{own} bears the name of a built-in dataset; rename the folder to use its images, or give another "
                "--data to use the built-in one"
            )
        return DATASETS[name](data, download)
    if (data / name).is_dir():
        return folder.load(data / name, image_size)
    guess = "" if name in PAPER else f" {nearest(name, DATASETS)};"
    raise TreeringError(
        f"no dataset {name};{guess} images of your own go into a folder {data / name} with train/<class>/<image> and "
        "val/<class>/<image>"
    )


def missing(name: str, data: Path) -> str | None:
    """Return a message about a dataset that is missing from the folder `data`, or None if it is there."""
    if name == "digits":
        return None
    is_cifar = name in DATASETS
    place = data / (cifar.FOLDER if is_cifar else name)
    if place.is_dir() or (is_cifar and (data / "train").is_file()):
        return None
    how = "--download fetches it" if is_cifar else f"put images in {place}/train/<class>/ and {place}/val/<class>/"
    return f"{name} needs {place}, which is not there: {how}"
