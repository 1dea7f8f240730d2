"""The one driver of a step: it builds a method, has it learn a step completely or not at all, and resumes one.

`Learner`, `treering learn` and `treering run` all use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from treering import methods
from treering.core import backbones
from treering.core.trainer import InFlight, Watcher
from treering.methods.base import Method, Snapshot, Step
from treering.recipe import Recipe, Schedule
from treering.runtime import interrupts, randomness
from treering.runtime.pixels import Images


def begin(recipe: Recipe, images: Images, seed: int, device: torch.device, backbone: nn.Module | None = None) -> Method:
    """Build the recipe's method without any class; `images`, the first step's, give their shape and mean image.

    A copy of `backbone`, if one is given, replaces the recipe's.
    """
    module = backbones.build(recipe.backbone, images.shape[1], seed) if backbone is None else backbones.copied(backbone)
    seen = methods.find(recipe.method).outside_training(recipe)
    mean = backbones.input_mean(module, images, seen, recipe.pixel_scale)
    return methods.create(recipe, module, mean.cpu(), seed, device)


def learn(
    method: Method,
    step: Step,
    number: int,
    seed: int,
    *,
    resume: InFlight | None = None,
    watcher: Watcher | None = None,
    memory_size: int | None = None,
    training: Schedule | None = None,
    before: Snapshot | None = None,
    commit: Callable[[], None] = lambda: None,
) -> None:
    """Learn step `number`, counted from 1; after a failure or an interruption the method is as it was before.

    `resume` is a saved state of this step to go on from. `memory_size` is the size of the memory from this step on, and
    `training` the schedule of this step alone; by default both are the recipe's.
    `before` is a snapshot of the method as it is now, if the caller has one.
    `commit` is called once the step is learnt; Ctrl-C takes effect before or after it, never during it.
    """
    before, done = before or method.snapshot(), False
    try:
        if memory_size is not None:
            method.resize_memory(memory_size)
        usual = method.recipe.training
        method.recipe = replace(method.recipe, training=training or usual)
        dropout_seed = randomness.dropout_seed(seed, number)
        with own_precision(method.network.device), method.trainer.step(resume, dropout_seed, watcher):
            method.learn_step(step)
        method.recipe = replace(method.recipe, training=usual)
        with interrupts.deferred():
            commit()
            done = True
    except BaseException:
        if not done:
            with interrupts.deferred():
                method.restore(before)
        raise


def own_precision(device: torch.device) -> torch.autocast:
    """Return a context in which the network's own precision holds, not the caller's, and no cast weights are cached."""
    return torch.autocast(device.type, enabled=False, cache_enabled=False)
