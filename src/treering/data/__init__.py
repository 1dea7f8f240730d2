"""Datasets by name, and the streams of steps made of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from treering.data import cifar, digits
from treering.data.stream import Dataset
from treering.errors import TreeringError

DATASETS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": lambda folder, download: digits.load(),
    "cifar100": cifar.load,
    "cifar100-vehicles": cifar.load_vehicles,
}
"""Name -> function of (data folder, may download)."""


def load(name: str, folder: Path, download: bool = False) -> Dataset:
    """The dataset of this name, from `folder` where it is not part of a package."""
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(DATASETS)}"
        raise TreeringError(f"unknown dataset {name!r}; {hint}")
    return DATASETS[name](folder, download)
