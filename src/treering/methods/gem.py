"""GEM: Gradient Episodic Memory (Lopez-Paz and Ranzato, NeurIPS 2017) [appendix B].

Each step is a task that keeps a few of its images. The gradient of a batch is changed as little as possible so that the
loss on no earlier task's images increases, to first order. Known task: only that task's classes count, in training and
in `task_aware_accuracy`. Unknown task: the same network read out over all classes, in `accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treering.core.memory import together
from treering.core.network import IncrementalNetwork
from treering.core.trainer import BatchUpdate, CapturedUpdate, TrainingSet, batch_plan
from treering.errors import TreeringError
from treering.methods.base import Method, StagePlan, Step
from treering.recipe import Recipe
from treering.runtime import pixels

MARGIN = 0.5
"""Least weight of every earlier task in a projection: favours them beyond what the constraint asks."""


class GEM(Method):
    """A head per task, cross-entropy among the task's own classes, gradients projected against earlier tasks."""

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        super().__init__(recipe, network, generator)
        self.trainer.constrain = self._constrain
        # Batches come in two sizes and for a few thousand updates: compiling for both would take longer than it saves.
        self.trainer.compiles = False
        self._past: BatchUpdate | None = None
        """Computes the gradients of the loss on the memory, a batch for each earlier task."""
        self._episodes = self._episodic_memory()

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and pickled: all but a captured update, and images that the memory has too."""
        empty = TrainingSet.empty(0, self.network.mean_image.shape, self.network.columns, self.network.device)
        return super().__getstate__() | {"_past": None, "_episodes": empty}

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        if recipe.memory.kind != "per-step" or recipe.memory.selection != "random":
            raise TreeringError(
                "GEM keeps a random sample of each step: set memory.kind to per-step and memory.selection to random"
            )

    def learn_step(self, step: Step) -> None:
        first_new = self.network.classes
        if step.new_classes:
            self.network.add_head(step.new_classes, self.generator)
        self._episodes = self._episodic_memory()
        self.trainer.extra_passes = len(self._episodes.images)
        if isinstance(self._past, CapturedUpdate) and self._past.serves(self._episodes, self.recipe.memory.size):
            self._past.training_set.take(self._episodes)
        else:
            self._past = None
        self.trainer.fit("training", self.training_set(step.images, step.labels), self.recipe.training)
        images, labels = step.images[step.labels >= first_new], step.labels[step.labels >= first_new]
        chosen = torch.randperm(len(images), generator=self.generator, device=labels.device)[: self.recipe.memory.size]
        for label, kept in Step(images[chosen], labels[chosen], step.new_classes).by_class().items():
            self.memory.store(label, pixels.tensor(kept).to(self.network.device))

    def resize_memory(self, size: int) -> None:
        if len(self.memory) and size < self.recipe.memory.size:
            raise TreeringError("the memory of GEM cannot be made smaller: its tasks keep what they have")
        super().resize_memory(size)

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        """Cross-entropy among the classes of each image's own task."""
        own_NC = head_of_class_C[labels_N][:, None] == head_of_class_C
        return F.cross_entropy(logits_NC.masked_fill(~own_NC, -torch.inf), labels_N)

    def replayed(self, recipe: Recipe) -> dict[Any, int]:
        """By past task, not by class: a task that has fewer images than the memory has room for repeats them."""
        return {int(self.network.head_of_class[label]): recipe.memory.size for label in self.memory.exemplars}

    @classmethod
    def memory_before(cls, recipe: Recipe, steps: Sequence[Mapping[Any, int]]) -> list[dict[Any, int]]:
        """By past task, too."""
        return [dict.fromkeys(range(past_tasks), recipe.memory.size) for past_tasks in range(len(steps))]

    @classmethod
    def plan_step(cls, recipe: Recipe, step: Mapping[Any, int], memory: Mapping[Any, int]) -> list[StagePlan]:
        """Each update passes the memory through the network too."""
        plan = StagePlan.of(sum(step.values()), recipe.training, recipe)
        updates = plan.image_passes // batch_plan(plan.images, recipe.optimizer)[0]
        return [StagePlan(plan.images, plan.image_passes + updates * sum(memory.values()))]

    def prepare(self, images: int) -> None:
        """Capture the gradients over the memory too."""
        update = self.trainer.prepare(images, self.network.mean_image.shape)
        if update and self._past is None:
            most = self.network.columns * self.recipe.memory.size  # there are at most as many tasks as classes
            room = TrainingSet.empty(most, self.network.mean_image.shape, self.network.columns, self.network.device)
            self.network.train()
            self._past = self.trainer.new_update(update.optimizer, room, self.recipe.memory.size)
            self.network.eval()

    def _episodic_memory(self) -> TrainingSet:
        """The images in memory, task by task, `memory.size` each: a task that has fewer repeats them."""
        by_task: dict[int, dict[int, Tensor]] = {}
        for label, images in self.memory.exemplars.items():
            by_task.setdefault(int(self.network.head_of_class[label]), {})[label] = images
        tasks = [together(by_task[task]) for task in sorted(by_task)]
        columns, device = self.network.columns, self.network.device
        if not tasks:
            return TrainingSet.empty(0, self.network.mean_image.shape, columns, device)
        turns = torch.arange(self.recipe.memory.size, device=device)
        images = torch.cat([self.plain(images[turns % len(images)]) for images, _ in tasks])
        labels = torch.cat([labels[turns % len(labels)] for _, labels in tasks])
        return TrainingSet(images, labels, torch.zeros(len(images), columns, device=device))

    def _constrain(self, update: BatchUpdate) -> None:
        """Project the gradient of a batch. The host solves for a few weights, so it waits for the device once."""
        if not len(self._episodes.images):
            return
        gradients_KP = torch.cat([update.gradient[None], self._gradients_of_the_past(update)])
        products_KK = (gradients_KP @ gradients_KP.T).double().cpu().numpy()
        weights_K = projection(products_KK[1:, 1:], products_KK[1:, 0])
        update.gradient += torch.from_numpy(weights_K).to(gradients_KP) @ gradients_KP[1:]

    def _gradients_of_the_past(self, update: BatchUpdate) -> Tensor:
        """Of the loss on the memory of each earlier task: tasks x parameters."""
        if self._past is None or self._past.optimizer is not update.optimizer:
            self._past = self.trainer.new_update(update.optimizer, self._episodes, self.recipe.memory.size)
        images = len(self._episodes.images)
        self._past.start_epoch(torch.arange(images, device=self.network.device))
        gradients = []
        for _ in range(images // self.recipe.memory.size):
            self._past.run_batch()
            gradients.append(self._past.gradient.clone())
        return torch.stack(gradients)


def projection(products_KK: np.ndarray, products_K: np.ndarray, margin: float = MARGIN) -> np.ndarray:
    """How much of each of K earlier gradients to add to a gradient, given their inner products.

    With P = `products_KK` among the earlier gradients and q = `products_K` with the new one: zeros if no product in q
    is negative, else the v that minimises v'Pv / 2 + q'v subject to v >= `margin`, the dual of the projection.
    """
    finite = np.isfinite(products_KK).all() and np.isfinite(products_K).all()
    if not finite or not (products_K < 0).any():  # the trainer tells of divergence
        return np.zeros(len(products_K))
    from scipy.optimize import nnls  # slow to import

    # In units of each earlier gradient's length, whatever it is; one that vanishes stays at the margin.
    lengths = np.sqrt(np.diag(products_KK))
    felt = lengths > 0
    lengths = lengths[felt]
    cosines = products_KK[np.ix_(felt, felt)] / np.outer(lengths, lengths)
    least = margin * lengths
    # With v = x + least and P = A'A this is the least squares problem |Ax - b| subject to x >= 0.
    values, vectors = np.linalg.eigh(cosines)
    kept = values > values.max() * 1e-12
    root, vectors = np.sqrt(values[kept]), vectors[:, kept]
    target = -(vectors.T @ (products_K[felt] / lengths + cosines @ least)) / root
    weights = np.full(len(felt), margin)
    weights[felt] = (nnls(root[:, None] * vectors.T, target, maxiter=100 * len(felt))[0] + least) / lengths
    return weights
