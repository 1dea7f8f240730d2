"""What a step is going to take, told before it is learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treering.core import augment
from treering.core.trainer import batch_plan
from treering.recipe import Recipe, Schedule

Counts = Mapping[Any, int]
"""How many images each class has."""


@dataclass(frozen=True)
class StagePlan:
    """What one stage of a step is going to take."""

    images: int
    """How many images it trains on, augmented ones."""
    image_passes: int
    """How many images pass through the network in all its epochs."""

    @classmethod
    def of(cls, images: int, schedule: Schedule, recipe: Recipe) -> StagePlan:
        """Plan a stage that trains on `images`, counted before augmentation."""
        count = images * augment.copies(recipe.augmentation)
        batch_size, batches = batch_plan(count, recipe.optimizer)
        return cls(count, batch_size * batches * schedule.epochs)
