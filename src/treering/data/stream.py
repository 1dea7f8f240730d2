"""Streams: the classes of a dataset in a seeded order, cut into steps."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from treering.errors import TreeringError

ORDER_SEED = 1993
"""Order i is drawn with seed 1993 + i; order 0 is the one most of the literature uses."""
ONE_TEST_IMAGE_IN = 5
"""Where a dataset has no test images of its own, one image in five of each class is for testing."""


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

    def only(self, classes: Sequence[int]) -> Dataset:
        """Return the part with these classes, numbered anew in the order given."""
        number = np.full(len(self.class_names), -1)
        number[list(classes)] = np.arange(len(classes))
        train, test = number[self.train_labels], number[self.test_labels]
        return replace(
            self,
            train_images=self.train_images[train >= 0],
            train_labels=train[train >= 0],
            test_images=self.test_images[test >= 0],
            test_labels=test[test >= 0],
            class_names=tuple(self.class_names[label] for label in classes),
        )


def class_order(classes: int | Sequence[int], order: int) -> list[int]:
    """Return the classes shuffled with the seed of class order `order`."""
    return np.random.RandomState(ORDER_SEED + order).permutation(classes).tolist()


def split_steps(classes: Sequence[int], classes_per_step: int | Sequence[int]) -> list[list[int]]:
    """Cut `classes` into steps of the sizes given, or of one size, where the last step may be smaller."""
    if isinstance(classes_per_step, int):
        if classes_per_step < 1:
            raise TreeringError(f"classes per step must be 1 or more, not {classes_per_step}")
        full, rest = divmod(len(classes), classes_per_step)
        classes_per_step = [classes_per_step] * full + [rest] * (rest > 0)
    if sum(classes_per_step) != len(classes) or min(classes_per_step, default=0) < 1:
        raise TreeringError(f"steps of {list(classes_per_step)} classes do not add up to {len(classes)} classes")
    ends = np.cumsum(classes_per_step)
    return [list(classes[end - size : end]) for end, size in zip(ends, classes_per_step, strict=True)]


@dataclass(frozen=True)
class ResidentImages:
    """A dataset on the training device, uint8 N x C x H x W; many streams may share it."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device) -> ResidentImages:
        """Copy `dataset` to `device`."""
        arrays = (dataset.train_images, dataset.train_labels, dataset.test_images, dataset.test_labels)
        tensors = (torch.from_numpy(array) for array in arrays)
        train_images, train_labels, test_images, test_labels = (
            (part.movedim(-1, 1).contiguous() if part.ndim == 4 else part).to(device) for part in tensors
        )
        return cls(train_images, train_labels, test_images, test_labels, dataset.class_names)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of all pixels and labels, which differs for another dataset of the same name."""
        found = hashlib.sha1(usedforsecurity=False)
        for tensor in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            for part in tensor.split(4096):
                found.update(part.cpu().contiguous().numpy())
        return found.hexdigest()


@dataclass(frozen=True)
class StreamStep:
    """The images of one step; their labels are columns, which number the classes in the order they come."""

    images: Tensor
    labels: Tensor
    classes: list[int]
    """The numbers of the new classes in the dataset."""
    test_images: Tensor
    """The test images of all classes so far."""
    test_labels: Tensor


class Stream:
    """The ordered steps of a dataset."""

    def __init__(self, images: ResidentImages, classes_per_step: int | Sequence[int], order: int) -> None:
        self.images = images
        self.order = class_order(len(images.class_names), order)
        self.steps = split_steps(self.order, classes_per_step)
        self._column = torch.tensor(np.argsort(self.order), device=images.train_labels.device)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[StreamStep]:
        known = 0
        train, test = self._column[self.images.train_labels], self._column[self.images.test_labels]
        for classes in self.steps:
            new = (train >= known) & (train < known + len(classes))
            known += len(classes)
            seen = test < known
            yield StreamStep(
                self.images.train_images[new], train[new], classes, self.images.test_images[seen], test[seen]
            )
