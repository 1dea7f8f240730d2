"""The methods, ways to learn a step: each is a file that uses the shared training loop, and a line in `METHODS`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from treering.core import backbones
from treering.core.engine import Engine
from treering.core.network import IncrementalNetwork
from treering.errors import look_up
from treering.methods.base import Method
from treering.methods.closed_form import ClosedForm
from treering.methods.eeil import EEIL
from treering.methods.finetune import FineTuning
from treering.methods.gem import GEM
from treering.methods.icarl import ICaRL
from treering.methods.joint import Joint
from treering.methods.lwf import LwFMC
from treering.methods.tuned import Tuned
from treering.recipe import Recipe

METHODS: dict[str, type[Method]] = {
    "eeil": EEIL,
    "icarl": ICaRL,
    "lwf-mc": LwFMC,
    "gem": GEM,
    "finetune": FineTuning,
    "joint": Joint,
    "closed-form": ClosedForm,
    "tuned": Tuned,
}

__all__ = [
    "EEIL",
    "GEM",
    "METHODS",
    "ClosedForm",
    "FineTuning",
    "ICaRL",
    "Joint",
    "LwFMC",
    "Method",
    "Tuned",
    "create",
    "find",
]


def find(name: str) -> type[Method]:
    """Return the method of this name."""
    return look_up(METHODS, name, "method")


def create(
    recipe: Recipe, features: nn.Module, mean_image: Tensor, seed: int, device: torch.device, compiles: bool = True
) -> Method:
    """Make the recipe's method over a network that has this feature extractor and no heads yet."""
    chosen = find(recipe.method)
    chosen.check(recipe)
    if not chosen.trains and isinstance(features, backbones.Pretrained):
        features.use_stages()
    size, draws = backbones.probe(features, mean_image.shape)
    engine = Engine.named(recipe.engine, device, compiles and chosen.compiles)
    network = IncrementalNetwork(
        features, size, mean_image, recipe.pixel_scale, engine, draws, chosen.spare_outputs, chosen.unit_features
    ).to(device)
    engine.arrange(network, features)
    return chosen(recipe, network, torch.Generator(device).manual_seed(seed))
