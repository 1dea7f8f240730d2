"""What a step of photos is going to be, before it is learnt, and what it has led to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treering import methods
from treering.core import augment
from treering.methods import speed
from treering.model import Model
from treering.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """What is going to be learnt, before it is."""

    recipe: Recipe
    device: torch.device
    step: int
    """From 1."""
    new: dict[str, int]
    """New class -> its images."""
    known: dict[str, int]
    """Known class -> its further images."""
    skipped: list[tuple[Path, str]]
    own_validation: bool
    """Whether the accuracy is measured on a folder of the user's."""
    held_out_quota: int
    """The most images of each class that are held out: their share of the budget."""
    dropped: int
    """The number of images held out before that the memory has no more room for."""
    held_out: int = 0
    """The number of images that are kept out of training to measure the accuracy."""
    copies: int = 0
    """The number of images that are left out: copies of held-out ones or of exemplars."""
    in_two_classes: Sequence[tuple[str, str]] = ()
    """Two classes of each image that is in more than one."""
    image_passes: int = 0
    """How many images the step trains on, all epochs together."""
    seconds: float = 0.0
    """About how long the training takes."""
    resumed: bool = False
    """Whether an earlier call had begun this very step."""
    done_already: bool = False
    """Whether an earlier call had even finished it."""


@dataclass(frozen=True)
class Outcome:
    """What a step has led to, in percent of the images that measure it; None where there are none."""

    images: int
    classes: int
    """The number of classes of the model."""
    measured_classes: int
    """How many of them have such images."""
    accuracy: float | None
    """On all images."""
    old_before: float | None
    """On the classes known before, before the step."""
    old_after: float | None
    new: float | None
    """On the classes that came with the step."""
    forgotten: list[tuple[str, float, float]]
    """Known classes that have lost accuracy: class, before, after; the worst first."""
    seconds: float

    def for_history(self) -> dict[str, float | None]:
        """Return what the model's history says of it."""
        return {
            "all": self.accuracy,
            "old": self.old_after,
            "old_before": self.old_before,
            "new": self.new,
            "images": self.images,
        }

    @classmethod
    def of(
        cls,
        classes: int,
        known: Sequence[str],
        before: Mapping[str, list[bool]],
        after: Mapping[str, list[bool]],
        seconds: float,
    ) -> Outcome:
        """Sum up which images of each class were right before and after the step, which took so many seconds."""

        def percent(parts: Sequence[list[bool]]) -> float | None:
            every = [right for part in parts for right in part]
            return 100 * sum(every) / len(every) if every else None

        each = [(name, percent([before[name]]), percent([after[name]])) for name in known if name in before]
        lost = [(name, was, now) for name, was, now in each if was is not None and now is not None and now < was]
        return cls(
            images=sum(map(len, after.values())),
            classes=classes,
            measured_classes=len(after),
            accuracy=percent(list(after.values())),
            old_before=percent(list(before.values())),
            old_after=percent([right for name, right in after.items() if name in known]),
            new=percent([right for name, right in after.items() if name not in known]),
            forgotten=sorted(lost, key=lambda one: one[2] - one[1]),
            seconds=seconds,
        )


def image_passes(model: Model | None, recipe: Recipe, names: Sequence[str]) -> int:
    """Return how many images a step with these labels is going to train on, all epochs together."""
    column = {str(name): number for number, name in enumerate(model.classes)} if model else {}
    step: Mapping[Any, int] = Counter(column.get(name, name) for name in names)
    memory = model.method.replayed(recipe) if model else {}
    return sum(stage.image_passes for stage in methods.find(recipe.method).plan_step(recipe, step, memory))


def seconds(passes: int, recipe: Recipe, size: int, device: torch.device, distils: bool) -> float:
    """Return about how long training takes, by the speed of this device just now."""
    side = augment.input_side(recipe.augmentation, size)
    rate = speed.images_per_second(recipe, (3, side, side), device)
    # To distil, the network before the step sees each image too: about a third of the cost of training on it.
    return passes / rate * (4 / 3 if distils else 1)
