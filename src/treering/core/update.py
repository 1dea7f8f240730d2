"""One update of a network by one batch: gather, forward, backward, constrain, descend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from treering.core.network import IncrementalNetwork
from treering.core.optim import SGD
from treering.recipe import Optimizer

PROBED = 224
"""The most pixels a side of the image by which the memory that training takes is told."""
VALUES_OF_WEIGHT = 6
"""How many values training holds of each weight: itself, its gradient, the optimiser's, and copies of them."""
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps (logits, labels, soft targets, head of each class) of a batch to its loss."""


@dataclass(frozen=True)
class TrainingSet:
    """The images, labels and targets of a stage, on the training device."""

    images: Tensor
    """N x C x H x W, uint8, augmented."""
    labels: Tensor
    """The column of each image."""
    targets: Tensor
    """N x columns: the soft targets of the distilled heads, and zeros elsewhere."""

    @classmethod
    def empty(cls, images: int, image_shape: Sequence[int], columns: int, device: torch.device) -> TrainingSet:
        """Return a set of zeros with room for `images` images, which `take` fills."""
        return cls(
            torch.zeros(images, *image_shape, dtype=torch.uint8, device=device),
            torch.zeros(images, dtype=torch.long, device=device),
            torch.zeros(images, columns, device=device),
        )

    def fits_into(self, other: TrainingSet) -> bool:
        """Return whether `other` has room for this set: at least as many images, of the same shape and columns."""
        return len(self.images) <= len(other.images) and all(
            mine.shape[1:] == theirs.shape[1:]
            for mine, theirs in ((self.images, other.images), (self.targets, other.targets))
        )

    def take(self, other: TrainingSet) -> None:
        """Overwrite the first images, labels and targets with those of `other`."""
        for mine, theirs in ((self.images, other.images), (self.labels, other.labels), (self.targets, other.targets)):
            mine[: len(theirs)].copy_(theirs)


def batch_plan(count: int, settings: Optimizer) -> tuple[int, int]:
    """Return the batch size and the number of batches of an epoch over `count` images.

    Every batch is full: the last is filled up with the epoch's first images, so that all shapes are constant.
    """
    batch_size = max(2, min(settings.batch_size, count))
    return batch_size, math.ceil(count / batch_size)


def memory_of(network: IncrementalNetwork, batch_size: int, image_shape: Sequence[int]) -> int:
    """Return about how many bytes an update by a batch of such images takes, at least.

    That is what the gradient needs of each module's work, by one small image, and the optimiser's values.
    """
    channels, height, width = image_shape
    seen = min(height, PROBED), min(width, PROBED)
    try:
        saved = _saved(network, (channels, *seen))
    except Exception:  # a network may take images of one size alone, and say so in any way
        seen = height, width
        saved = _saved(network, (channels, *seen))
    each = (sum(saved) + 2 * max(saved, default=0)) * height * width // math.prod(seen)
    weights = sum(parameter.numel() for parameter in network.parameters())
    return batch_size * each + VALUES_OF_WEIGHT * 4 * weights


def _saved(network: IncrementalNetwork, image_shape: Sequence[int]) -> list[int]:
    """Return the bytes of each tensor that the gradient by one image needs; the network stays as it is."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    found: dict[int, tuple[int, Tensor]] = {}

    def noted(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes(), tensor  # which is kept, so that no other takes its place
        return tensor

    training = network.training
    network.eval()  # in which statistics and random numbers stay as they are
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
            network.features(torch.zeros(1, *image_shape, device=network.device, dtype=network.mean_image.dtype))
    finally:
        network.train(training)
    return [size for size, _ in found.values()]


class Constraint(Protocol):
    """Changes the gradient of each batch before it is applied. It works on the host, so it is never captured."""

    @property
    def image_passes(self) -> int:
        """The number of images that it passes through the network for each batch."""

    def __call__(self, update: BatchUpdate) -> None:
        """Change `update.gradient` in place."""


class BatchUpdate:
    """Updates a network by the next batch of an epoch. It keeps its place there, so a call takes no arguments."""

    def __init__(
        self,
        network: IncrementalNetwork,
        optimizer: SGD,
        loss: Loss,
        training_set: TrainingSet,
        batch_size: int,
        constraint: Constraint | None = None,
    ) -> None:
        self.network, self.optimizer, self.loss, self.training_set = network, optimizer, loss, training_set
        self.constraint = constraint
        self.extract: Callable[[Tensor], Tensor] = network.extract
        device, room = training_set.images.device, len(training_set.images)
        self.batch = torch.arange(batch_size, device=device)
        self.batch_number = torch.zeros(1, dtype=torch.long, device=device)
        self.order = torch.zeros(room + batch_size, dtype=torch.long, device=device)
        self.losses = torch.zeros(room // batch_size + 1, device=device)
        self.gradient = torch.zeros_like(optimizer.values)
        """The flat gradient of the last batch, kept only for a constraint."""

    def over(self, training_set: TrainingSet, batch_size: int) -> Self:
        """Make an update of the same kind, by the same optimiser, over another training set."""
        return type(self)(self.network, self.optimizer, self.loss, training_set, batch_size, self.constraint)

    def serves(self, training_set: TrainingSet, batch_size: int) -> bool:
        """Return whether it can train on this set in place of its own; an update that is not captured cannot."""
        return False

    def start_epoch(self, order: Tensor) -> None:
        """Begin an epoch over the images in this `order`, a whole number of batches."""
        self.order[: len(order)].copy_(order)
        self.batch_number.zero_()

    def __call__(self) -> None:
        """Train on the next batch."""
        self.run_batch()
        if self.constraint is not None:
            self.constraint(self)
            self.optimizer.step(self.gradient)

    def run_batch(self) -> None:
        """Do the part that can be captured: all of the update or, where a constraint follows, up to the gradient."""
        chosen = self.order[self.batch_number * len(self.batch) + self.batch]
        data, network = self.training_set, self.network
        logits = network.logits(self.extract(data.images[chosen]))
        loss = self.loss(logits, data.labels[chosen], data.targets[chosen], network.head_of_class)
        gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True, materialize_grads=True)
        gradient = self.optimizer.flat(gradients)
        if self.constraint is not None:
            self.gradient.copy_(gradient)
        else:
            self.optimizer.step(gradient)
        self.losses.index_copy_(0, self.batch_number, loss.detach().to(self.losses.dtype)[None])
        self.batch_number += 1
