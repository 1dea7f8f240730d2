"""Datasets by name, and the streams of steps made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from treering.data import cifar, digits
from treering.data.stream import Dataset
from treering.errors import look_up

DATASETS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": lambda folder, download: digits.load(),
    "cifar100": cifar.load,
    "cifar100-vehicles": cifar.load_vehicles,
}
"""Name -> function of (data folder, may download)."""


def load(name: str, folder: Path, download: bool = False) -> Dataset:
    """The dataset of this name, from `folder` where it is not part of a package."""
    return look_up(DATASETS, name, "dataset")(folder, download)
