"""How fast this machine trains a network, measured on a few batches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from treering import methods
from treering.core import backbones
from treering.core.update import TrainingSet
from treering.recipe import Recipe

TIMED_UPDATES = 3


def images_per_second(recipe: Recipe, shape: Sequence[int], device: torch.device, trains: bool = True) -> float:
    """Return how many blank images C x H x W per second the recipe's network trains on, or only sees."""
    features = backbones.build(recipe.backbone, shape[0], 0, pretrained=False)
    if not trains:
        return _seen_per_second(features, shape, device)
    plain = Recipe(engine=recipe.engine)
    # Compilation takes a minute and brings a quarter more speed: too much for an estimate.
    method = methods.create(plain, features, torch.zeros(*shape), 0, device, compiles=False)
    method.network.add_head(10, method.generator)
    batch_size = recipe.optimizer.batch_size if device.type == "cuda" else min(recipe.optimizer.batch_size, 32)
    method.network.train()
    update = method.trainer.batch_update(TrainingSet.empty(batch_size, shape, 10, device), batch_size)
    update.start_epoch(torch.arange(batch_size, device=device))
    update()
    float(update.losses[0])  # waits for the device
    start = time.perf_counter()
    for _ in range(TIMED_UPDATES):
        update.batch_number.zero_()
        update()
    float(update.losses[0])
    return TIMED_UPDATES * batch_size / (time.perf_counter() - start)


def _seen_per_second(features: nn.Module, shape: Sequence[int], device: torch.device) -> float:
    method = methods.create(Recipe(engine="eager"), features, torch.zeros(*shape), 0, device)
    images = torch.zeros(16, *shape, dtype=torch.uint8, device=device)
    float(method.network.predict_features(images).sum())  # warms up
    start = time.perf_counter()
    for _ in range(TIMED_UPDATES):
        float(method.network.predict_features(images).sum())
    return TIMED_UPDATES * len(images) / (time.perf_counter() - start)


def solving_seconds(device: torch.device) -> float:
    """Return about how long a closed form of 2,000 features takes, from a small part of one."""
    matrix = torch.rand(500, 500, dtype=torch.float64, device=device)
    took = []
    for _ in range(4):  # the first warms up; other programs only ever make it slower
        start = time.perf_counter()
        float(torch.linalg.eigh(matrix @ matrix.T)[0].sum())
        took.append(time.perf_counter() - start)
    return 64 * 1.3 * min(took[1:])  # all features, and once more the last ones alone
