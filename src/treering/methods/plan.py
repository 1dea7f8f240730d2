"""The number of images and image passes that a step takes, counted before it is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treering.core import augment
from treering.core.update import batch_plan
from treering.recipe import Recipe, Schedule

Counts = Mapping[Any, int]
"""The number of images of each class."""


@dataclass(frozen=True)
class StagePlan:
    """The number of images and image passes that one stage of a step takes."""

    images: int
    """The number of images that it trains on, after augmentation."""
    image_passes: int
    """The number of images that pass through the network in all its epochs."""
    trains: bool = True
    """Whether the network learns from them, rather than only seeing them."""

    @classmethod
    def of(cls, images: int, schedule: Schedule, recipe: Recipe) -> StagePlan:
        """Plan a stage that trains on `images`, counted before augmentation."""
        count = images * augment.copies(recipe.augmentation)
        batch_size, batches = batch_plan(count, recipe.optimizer)
        return cls(count, batch_size * batches * schedule.epochs)
