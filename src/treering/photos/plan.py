"""The plan of a step of photos, before it is learnt, and its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treering import methods
from treering.core import augment
from treering.core.metrics import interval
from treering.methods import speed
from treering.model import Model
from treering.photos.copies import Shown
from treering.recipe import Recipe


@dataclass(frozen=True)
class Plan:
    """What a step is going to learn, as far as it is known beforehand."""

    recipe: Recipe
    device: torch.device
    step: int
    """The number of the step, from 1."""
    new: dict[str, int]
    """The number of images of each new class."""
    known: dict[str, int]
    """The number of further images of each known class in the folder."""
    skipped: list[tuple[Path, str]]
    own_validation: bool
    """Whether the accuracy is measured on the user's validation folder."""
    held_out_quota: int
    """The most images of each class that are held out: their share of the budget."""
    dropped: int
    """The number of images held out by earlier steps for which the memory has no room any more."""
    held_out: int = 0
    """The number of images that are kept out of training to measure the accuracy."""
    copies: int = 0
    """The number of images that are left out because they are copies of held-out ones or of exemplars."""
    same: Sequence[tuple[Shown, Shown]] = ()
    """Each image that shows the same photo as another, after that one."""
    image_passes: int = 0
    """The number of images that the step trains on, all epochs together."""
    seconds: float = 0.0
    """The time that the training takes, roughly."""
    resumed: bool = False
    """Whether an earlier call began this very step."""
    done_already: bool = False
    """Whether an earlier call finished this very step."""


@dataclass(frozen=True)
class Outcome:
    """What a step has led to. An accuracy is in percent, and None where no image measures it."""

    images: int
    classes: int
    """The number of classes of the model."""
    measured_classes: int
    """The number of classes that have images to measure them."""
    left_out: bool
    """Whether each image was told by all others, rather than by a model that was not trained on it."""
    accuracy: float | None
    """The accuracy on all images that measure it."""
    old_before: float | None
    """The accuracy before the step on the classes known before it; `old_after` is that after the step."""
    old_after: float | None
    new: float | None
    """The accuracy on the classes that came with the step."""
    forgotten: list[tuple[str, float, float]]
    """The known classes that have lost more accuracy than chance explains, the worst first, with before and after."""
    seconds: float
    by_class: dict[str, tuple[int, int]]
    """How many images of each class that has any were right, and how many there were."""

    def for_history(self) -> dict[str, Any]:
        """Return the part that the model's history records."""
        return {
            "all": self.accuracy,
            "old": self.old_after,
            "old_before": self.old_before,
            "new": self.new,
            "images": self.images,
            "classes": {name: list(counts) for name, counts in self.by_class.items()},
        }

    @classmethod
    def of(
        cls,
        classes: int,
        known: Sequence[str],
        before: Mapping[str, list[bool]],
        old_after: Mapping[str, list[bool]],
        after: Mapping[str, list[bool]],
        left_out: bool,
        seconds: float,
    ) -> Outcome:
        """Sum up a step, given which images of each class were predicted correctly before and after it.

        `old_after` is about the same images as `before`, `after` about all.
        """

        def percent(parts: Sequence[list[bool]]) -> float | None:
            every = [right for part in parts for right in part]
            return 100 * sum(every) / len(every) if every else None

        each = [(name, percent([before[name]]), percent([old_after[name]])) for name in known if name in before]
        lost = [
            (name, was, now)
            for name, was, now in each
            if was is not None and now is not None and now < interval(was, len(before[name]))[0]
        ]
        return cls(
            images=sum(map(len, after.values())),
            classes=classes,
            measured_classes=len(after),
            left_out=left_out,
            accuracy=percent(list(after.values())),
            old_before=percent(list(before.values())),
            old_after=percent(list(old_after.values())),
            new=percent([right for name, right in after.items() if name not in known]),
            forgotten=sorted(lost, key=lambda one: one[2] - one[1]),
            seconds=seconds,
            by_class={name: (sum(right), len(right)) for name, right in after.items() if right},
        )


def image_passes(model: Model | None, recipe: Recipe, names: Sequence[str]) -> int:
    """Return how many images a step with these labels is going to train on, all epochs together."""
    column = {str(name): number for number, name in enumerate(model.classes)} if model else {}
    step: Mapping[Any, int] = Counter(column.get(name, name) for name in names)
    memory = model.method.replayed(recipe) if model else {}
    return sum(stage.image_passes for stage in methods.find(recipe.method).plan_step(recipe, step, memory))


def seconds(passes: int, recipe: Recipe, size: int, device: torch.device, later: bool) -> float:
    """Estimate how long training takes, by the speed of this device just now."""
    side = augment.input_side(recipe.augmentation, size)
    rate = speed.images_per_second(recipe, (3, side, side), device)
    if not methods.find(recipe.method).trains:
        return passes / rate + speed.solving_seconds(device) * (2 if later else 1)
    # For distillation the teacher sees each image too, which costs about a third of training on it.
    return passes / rate * (4 / 3 if later else 1)
