"""How fast this machine trains a network, from a few batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from treering import methods
from treering.core import backbones
from treering.core.trainer import TrainingSet
from treering.recipe import Recipe

TIMED_UPDATES = 3


def images_per_second(recipe: Recipe, shape: Sequence[int], device: torch.device) -> float:
    """Training images a second of the recipe's network on blank images C x H x W."""
    features = backbones.build(recipe.backbone, shape[0], 0, pretrained=False)
    method = methods.create(Recipe(engine=recipe.engine), features, torch.zeros(*shape), 0, device)
    method.network.add_head(10, method.generator)
    method.trainer.compiles = False  # a minute's work, for a quarter more speed
    batch_size = recipe.optimizer.batch_size if device.type == "cuda" else min(recipe.optimizer.batch_size, 32)
    method.network.train()
    update = method.trainer.batch_update(TrainingSet.empty(batch_size, shape, 10, device), batch_size)
    update.start_epoch(torch.arange(batch_size, device=device))
    update()
    float(update.losses[0])  # waits
    start = time.perf_counter()
    for _ in range(TIMED_UPDATES):
        update.batch_number.zero_()
        update()
    float(update.losses[0])
    return TIMED_UPDATES * batch_size / (time.perf_counter() - start)


def as_text(seconds: float) -> str:
    """A time for people."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:,.1f} h"
