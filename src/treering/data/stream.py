"""Streams: the classes of a dataset in a seeded order, cut into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treering.errors import TreeringError

ORDER_SEED = 1993
"""Order i is drawn with seed 1993 + i; order 0 is the one most of the literature uses."""


@dataclass(frozen=True)
class Dataset:
    """Images and labels of a training and a test set."""

    name: str
    train_images: np.ndarray
    """N x H x W x C, uint8."""
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    class_names: tuple[str, ...]


def class_order(classes: int | Sequence[int], order: int) -> list[int]:
    """The classes in class order `order`."""
    return np.random.RandomState(ORDER_SEED + order).permutation(classes).tolist()


def split_steps(classes: Sequence[int], classes_per_step: int | Sequence[int]) -> list[list[int]]:
    """`classes` cut into steps of one size, or of the sizes given; a last smaller step is allowed for one size."""
    if isinstance(classes_per_step, int):
        if classes_per_step < 1:
            raise TreeringError(f"classes per step must be 1 or more, not {classes_per_step}")
        full, rest = divmod(len(classes), classes_per_step)
        classes_per_step = [classes_per_step] * full + [rest] * (rest > 0)
    if sum(classes_per_step) != len(classes) or min(classes_per_step, default=0) < 1:
        raise TreeringError(f"steps of {list(classes_per_step)} classes do not add up to {len(classes)} classes")
    ends = np.cumsum(classes_per_step)
    return [list(classes[end - size : end]) for end, size in zip(ends, classes_per_step, strict=True)]
