"""The one driver of a step: it builds a method, has it learn a step whole or not at all, and goes on with one.

`Learner`, `treering learn` and `treering run` all learn by it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from treering import methods
from treering.core import backbones
from treering.core.trainer import InFlight, Watcher
from treering.methods.base import Method, Step
from treering.recipe import Recipe
from treering.runtime import interrupts, randomness
from treering.runtime.pixels import Images


def begin(recipe: Recipe, images: Images, seed: int, device: torch.device, backbone: nn.Module | None = None) -> Method:
    """Build the recipe's method, which knows no class yet, for images like these, the first step's.

    A copy of `backbone`, where one is given, takes the place of the recipe's.
    """
    module = backbones.copied(backbone) if backbone else backbones.build(recipe.backbone, images.shape[1], seed)
    mean = backbones.input_mean(module, images, recipe.augmentation, recipe.pixel_scale)
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
    commit: Callable[[], None] = lambda: None,
) -> None:
    """Learn step `number`, counted from 1; on any failure or interruption the method is as it was before.

    `resume` is the state of this very step from which to go on. `memory_size` is the size of the memory from this step
    on. `commit` is called when all is learnt: Ctrl-C comes before it or after it, never in between.
    """
    before, done = method.snapshot(), False
    try:
        if memory_size is not None:
            method.resize_memory(memory_size)
        dropout_seed = randomness.dropout_seed(seed, number)
        with own_precision(method.network.device), method.trainer.step(resume, dropout_seed, watcher):
            method.learn_step(step)
        with interrupts.deferred():
            commit()
            done = True
    except BaseException:
        if not done:
            with interrupts.deferred():
                method.restore(before)
        raise


def own_precision(device: torch.device) -> torch.autocast:
    """Compute in the network's own precision, whatever the caller's, and keep no cast weights beyond an update."""
    return torch.autocast(device.type, enabled=False, cache_enabled=False)
