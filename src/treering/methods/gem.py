"""GEM: Gradient Episodic Memory (Lopez-Paz and Ranzato, NeurIPS 2017) [appendix B].

Each step is a task that keeps a few of its images. The gradient of a batch is changed as little as possible so that the
loss on no earlier task's images increases, to first order. In training and in `task_aware_accuracy` an image's task is
known, and only that task's classes count; in `accuracy` the same network chooses among all classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treering.core.memory import together
from treering.core.network import IncrementalNetwork
from treering.core.update import BatchUpdate, TrainingSet, batch_plan
from treering.errors import TreeringError
from treering.methods.base import Method, Step
from treering.methods.plan import Counts, StagePlan
from treering.recipe import Recipe
from treering.runtime import pixels
from treering.runtime.pixels import Images

MOST_REPEATED = 512
"""The most images for which a task repeats its own: more memory than that is never filled with copies."""
MARGIN = 0.5
"""The least weight of each earlier task in a projection: it favours earlier tasks beyond what the constraint asks."""


class GEM(Method):
    """A method with cross-entropy among each task's own classes and gradients projected against earlier tasks."""

    forgets = False
    compiles = False
    """Compiling for its two batch sizes takes longer than it saves in a few thousand updates."""

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        self.episodes = EpisodicMemory(network)
        super().__init__(recipe, network, generator, constraint=self.episodes)

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        if recipe.memory.kind != "per-step" or recipe.memory.selection != "random":
            raise TreeringError(
                "GEM keeps a random sample of each step: set memory.kind to per-step and memory.selection to random"
            )

    @classmethod
    def needs_exemplars(cls) -> bool:
        """Return False: a step's sample may leave a class out."""
        return False

    def learn_step(self, step: Step) -> None:
        first_new = self.network.classes
        if step.new_classes:
            self.network.add_head(step.new_classes, self.generator)
        self.episodes.replace(self._by_task(), self.recipe.memory.size)
        self.trainer.fit("training", self.training_set(step.images, step.labels), self.recipe.training)
        images, labels = step.images[step.labels >= first_new], step.labels[step.labels >= first_new]
        chosen = torch.randperm(len(images), generator=self.generator, device=labels.device)[: self.recipe.memory.size]
        for label, kept in Step(images[chosen], labels[chosen], step.new_classes).by_class().items():
            self.memory.store(label, pixels.tensor(kept).to(self.network.device))

    def resize_memory(self, size: int) -> None:
        if len(self.memory) and size < self.recipe.memory.size:
            raise TreeringError(f"the memory of GEM cannot be made smaller: give {self.recipe.memory.size} or more")
        super().resize_memory(size)

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        """Return the cross-entropy among the classes of each image's own task."""
        own_NC = head_of_class_C[labels_N][:, None] == head_of_class_C
        return F.cross_entropy(logits_NC.masked_fill(~own_NC, -torch.inf), labels_N)

    def replayed(self, recipe: Recipe) -> dict[Any, int]:
        """Count the images by earlier task; a task with fewer images than the memory has room for repeats them."""
        return {int(self.network.head_of_class[label]): recipe.memory.size for label in self.memory.exemplars}

    @classmethod
    def memory_before(cls, recipe: Recipe, steps: Sequence[Counts]) -> list[dict[Any, int]]:
        """Count the images in memory by earlier task."""
        return [dict.fromkeys(range(past_tasks), recipe.memory.size) for past_tasks in range(len(steps))]

    @classmethod
    def plan_step(cls, recipe: Recipe, step: Counts, memory: Counts) -> list[StagePlan]:
        """Plan the one stage, in which each update passes the memory through the network too."""
        plan = StagePlan.of(sum(step.values()), recipe.training, recipe)
        updates = plan.image_passes // batch_plan(plan.images, recipe.optimizer)[0]
        return [StagePlan(plan.images, plan.image_passes + updates * sum(memory.values()))]

    def prepare(self, images: int) -> None:
        """Capture the update, and another one that computes the gradients over the memory."""
        update = self.trainer.prepare(images, self.network.mean_image.shape)
        if update:
            self.network.train()
            self.episodes.prepare(update, self.recipe.memory.size)
            self.network.eval()

    def _by_task(self) -> list[tuple[Tensor, Tensor]]:
        """Return the images that each earlier task keeps, as the network sees them, and their labels."""
        by_task: dict[int, dict[int, Images]] = {}
        for label, images in self.memory.exemplars.items():
            by_task.setdefault(int(self.network.head_of_class[label]), {})[label] = images
        kept = [together(by_task[task]) for task in sorted(by_task)]
        return [(self.plain(images), labels) for images, labels in kept]


class EpisodicMemory:
    """The images that earlier tasks keep, as many of each: a constraint on the gradient of every batch."""

    def __init__(self, network: IncrementalNetwork) -> None:
        self.network = network
        self._size = 0
        """The number of images of each task."""
        self._images = self._room(0)
        self._update: BatchUpdate | None = None
        """Computes the gradients of the loss on these images, a batch for each earlier task."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out a captured update, which cannot be copied, and images that the method's memory has too."""
        return self.__dict__ | {"_update": None, "_images": self._room(0)}

    def replace(self, tasks: Sequence[tuple[Tensor, Tensor]], size: int) -> None:
        """Hold `size` images and labels of each of these tasks instead; a task that has fewer repeats them.

        Where `size` is above `MOST_REPEATED`, it is no more than that or than the images of the largest task.
        """
        size = min(size, max([MOST_REPEATED, *(len(labels) for _, labels in tasks)]))
        self._size, self._images = size, self._room(0)
        if tasks:
            turns = torch.arange(size, device=self.network.device)
            images = torch.cat([images[turns % len(images)] for images, _ in tasks])
            labels = torch.cat([labels[turns % len(labels)] for _, labels in tasks])
            targets = torch.zeros(len(images), self.network.columns, device=images.device)
            self._images = TrainingSet(images, labels, targets)
        if self._update and self._update.serves(self._images, size):
            self._update.training_set.take(self._images)
        else:
            self._update = None

    def prepare(self, update: BatchUpdate, size: int) -> None:
        """Capture the gradients with room for the largest number of tasks, which is that of the classes."""
        if self._update is None:
            self._update = update.over(self._room(self.network.columns * size), size)

    @property
    def image_passes(self) -> int:
        """The number of images that it passes through the network for each batch."""
        return len(self._images.images)

    def __call__(self, update: BatchUpdate) -> None:
        """Project the gradient of a batch. The host solves for a few weights, so it waits for the device once."""
        if not self.image_passes:
            return
        gradients_KP = torch.cat([update.gradient[None], self.gradients(update)])
        products_KK = (gradients_KP @ gradients_KP.T).double().cpu().numpy()
        weights_K = projection(products_KK[1:, 1:], products_KK[1:, 0])
        update.gradient += torch.from_numpy(weights_K).to(gradients_KP) @ gradients_KP[1:]

    def gradients(self, update: BatchUpdate) -> Tensor:
        """Return the gradients of the loss on the images of each earlier task: tasks x parameters."""
        if self._update is None or self._update.optimizer is not update.optimizer:
            self._update = update.over(self._images, self._size)
        self._update.start_epoch(torch.arange(self.image_passes, device=self.network.device))
        gradients = []
        for _ in range(self.image_passes // self._size):
            self._update.run_batch()
            gradients.append(self._update.gradient.clone())
        return torch.stack(gradients)

    def _room(self, images: int) -> TrainingSet:
        network = self.network
        return TrainingSet.empty(images, network.mean_image.shape, network.columns, network.device)


def projection(products_KK: np.ndarray, products_K: np.ndarray, margin: float = MARGIN) -> np.ndarray:
    """Return how much of each of K earlier gradients to add to a gradient, given their inner products.

    With P = `products_KK` among the earlier gradients and q = `products_K` with the new one: zeros if no product in q
    is negative, else the v that minimises v'Pv / 2 + q'v subject to v >= `margin`, the dual of the projection.
    """
    finite = np.isfinite(products_KK).all() and np.isfinite(products_K).all()
    if not finite or not (products_K < 0).any():  # the trainer reports divergence
        return np.zeros(len(products_K))
    from scipy.optimize import nnls  # slow to import

    # Each earlier gradient is measured in units of its length; one of length 0 keeps the margin as its weight.
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
