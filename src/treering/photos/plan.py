"""The plan of a step of photos, before it is learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from treering import methods
from treering.core import augment
from treering.methods import speed
from treering.methods.plan import StagePlan
from treering.methods.tuned import LOOK_AFTER
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
    """The number of images that are left out because they show the same as others of their class or held-out ones."""
    same: Sequence[tuple[Shown, Shown]] = ()
    """Each image that shows the same photo as another, after that one."""
    image_passes: int = 0
    """The number of images that pass through the network, in all epochs together."""
    epochs: int = 0
    """The number of epochs for which the network may be trained."""
    training_passes: int = 0
    """The number of those that the network is trained on; the others only pass through it."""
    seconds: float = 0.0
    """The time that the step takes, roughly."""
    fewest_seconds: float = 0.0
    """The time that it takes if its training is ended early."""
    is_solved: bool = False
    """Whether the model has what can be solved of this very step already, from an earlier call."""
    solves_first: bool = False
    """Whether the model is given what can be solved before its network is trained."""
    lacks_kept: bool = False
    """Whether the model keeps no photo of some class that it knows, without which nothing is trained."""
    all_known: Sequence[str] = ()
    """The classes that the model knows."""
    resumed: bool = False
    """Whether an earlier call began this very step."""
    done_already: bool = False
    """Whether an earlier call finished this very step."""

    def alike(self) -> list[tuple[str, str]]:
        """Return each new class whose name differs from a known one by nothing but case, spaces and signs."""
        known = {_letters(name): name for name in self.all_known}
        return [(name, known[_letters(name)]) for name in self.new if known.get(_letters(name), name) != name]


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum()) or name


def stages(model: Model | None, recipe: Recipe, names: Sequence[str]) -> list[StagePlan]:
    """Return the stages of a step with these labels."""
    column = {str(name): number for number, name in enumerate(model.classes)} if model else {}
    step: Mapping[Any, int] = Counter(column.get(name, name) for name in names)
    memory = model.method.replayed(recipe) if model else {}
    if lacks_kept(model, recipe):
        recipe = replace(recipe, training=replace(recipe.training, epochs=0))
    return methods.find(recipe.method).plan_step(recipe, step, memory)


def lacks_kept(model: Model | None, recipe: Recipe) -> bool:
    """Return whether a network beside a closed form cannot be trained, since no photo of some class is kept."""
    if model is None or methods.find(recipe.method).trains:
        return False
    return len(model.method.memory.exemplars) < len(model.classes)


def is_solved_before_training(recipe: Recipe, stages: Sequence[StagePlan]) -> bool:
    """Return whether a step of these stages solves for its classes, and then trains a network too."""
    return not methods.find(recipe.method).trains and any(stage.trains for stage in stages)


def ended_early(recipe: Recipe, stages: Sequence[StagePlan]) -> list[StagePlan]:
    """Return what is done of these stages if their training is ended when it is looked at, if it can be."""
    if not (recipe.training.most_images and is_solved_before_training(recipe, stages)):
        return list(stages)
    training = next(stage for stage in stages if stage.trains)
    begun = replace(training, image_passes=training.image_passes // LOOK_AFTER)
    return [begun, *(stage for stage in stages if not stage.trains)]


def seconds(
    plans: Sequence[Sequence[StagePlan]], recipe: Recipe, size: int, device: torch.device, later: bool
) -> list[float]:
    """Estimate how long a step takes by each of several plans, by the speed of this device just now."""
    method = methods.find(recipe.method)
    totals = [0.0 if method.trains else speed.solving_seconds(device)] * len(plans)
    for trains in (True, False):
        passes = [sum(stage.image_passes for stage in stages if stage.trains is trains) for stages in plans]
        side = augment.input_side(recipe.augmentation if trains else method.outside_training(recipe), size)
        if any(passes):
            # For distillation the teacher sees each image too, which costs about a third of training on it.
            factor = 4 / 3 if trains and later else 1
            rate = speed.images_per_second(recipe, (3, side, side), device, trains)
            totals = [total + factor * count / rate for total, count in zip(totals, passes, strict=True)]
    return totals
