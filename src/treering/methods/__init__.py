"""Ways to learn a step: one file each over the shared training loop, one line each in `METHODS`."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from treering.core import backbones
from treering.core.network import IncrementalNetwork
from treering.errors import TreeringError, look_up
from treering.methods.base import Method
from treering.methods.eeil import EEIL
from treering.methods.finetune import FineTuning
from treering.methods.gem import GEM
from treering.methods.icarl import ICaRL
from treering.methods.joint import Joint
from treering.methods.lwf import LwFMC
from treering.recipe import Recipe

METHODS: dict[str, type[Method]] = {
    "eeil": EEIL,
    "icarl": ICaRL,
    "lwf-mc": LwFMC,
    "gem": GEM,
    "finetune": FineTuning,
    "joint": Joint,
}

__all__ = ["EEIL", "GEM", "METHODS", "FineTuning", "ICaRL", "Joint", "LwFMC", "Method", "create", "find", "find_device"]


def find(name: str) -> type[Method]:
    """The method of this name."""
    return look_up(METHODS, name, "method")


def create(recipe: Recipe, features: nn.Module, mean_image: Tensor, seed: int, device: torch.device) -> Method:
    """The recipe's method over a network that has this feature extractor and no heads yet."""
    chosen = find(recipe.method)
    chosen.check(recipe)
    size, draws = backbones.probe(features, mean_image.shape)
    network = IncrementalNetwork(features, size, mean_image, recipe.pixel_scale).to(device)
    network.draws = draws
    return chosen(recipe, network, torch.Generator(device).manual_seed(seed))


def find_device(name: str) -> torch.device:
    """The device of this name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("it has no GPU")
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError("treering has never been run on one")
        torch.Generator(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = re.split(r"[.\n]", str(error))[0]
        raise TreeringError(f"device {name!r} cannot be used here ({reason}): choose auto, cpu or cuda") from None
    if device.type == "cuda" and device.index:
        raise TreeringError(
            f"device {name!r}: treering trains on the first GPU; CUDA_VISIBLE_DEVICES chooses which that is"
        )
    return device
