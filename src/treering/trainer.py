"""The one training loop that every method shares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from treering.network import IncrementalNetwork
from treering.optim import SGD
from treering.recipe import Optimizer, Schedule

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(logits, labels, soft targets) of a batch -> its loss."""


@dataclass(frozen=True)
class TrainingSet:
    """What a stage trains on, on the training device."""

    images: Tensor
    """N x C x H x W, uint8, augmented."""
    labels: Tensor
    """N columns."""
    targets: Tensor
    """N x columns: soft targets of the distilled heads, zeros elsewhere."""


@dataclass(frozen=True)
class EpochReport:
    """What a finished epoch tells whoever watches."""

    stage: str
    epoch: int
    """From 1 within the stage."""
    epochs: int
    image_passes: int
    losses: Tensor
    """The loss of each batch, on the training device: reading it waits for the epoch to end."""


class Trainer:
    """Trains one network, stage by stage, drawing everything random from one generator."""

    def __init__(self, network: IncrementalNetwork, settings: Optimizer, generator: torch.Generator) -> None:
        self.network = network
        self.settings = settings
        self.generator = generator
        self.on_epoch: Callable[[EpochReport], None] = lambda report: None

    def fit(
        self, stage: str, training_set: TrainingSet, schedule: Schedule, loss: Loss, epochs_before: int = 0
    ) -> None:
        """Train for the whole `schedule`; `epochs_before` in this step count on for the gradient noise."""
        count = len(training_set.images)
        # Every batch is full: the last is filled up with the epoch's first images, so that all shapes are constant.
        batch_size = max(2, min(self.settings.batch_size, count))
        batches = math.ceil(count / batch_size)
        step = TrainingStep(
            self.network, SGD(self.network, self.settings, self.generator), loss, training_set, batch_size
        )
        self.network.train()
        try:
            for epoch in range(schedule.epochs):
                step.optimizer.start_epoch(schedule.lr_at(epoch), epochs_before + epoch + 1, batch_size)
                order = torch.randperm(count, generator=self.generator, device=self.generator.device)
                step.start_epoch(order.repeat(2)[: batches * batch_size] if count > 1 else order.repeat(batch_size))
                for _ in range(batches):
                    step()
                report = EpochReport(stage, epoch + 1, schedule.epochs, batches * batch_size, step.losses[:batches])
                self.on_epoch(report)
        finally:
            self.network.eval()


class TrainingStep:
    """Gather a batch, forward, backward, update. It keeps its own place in the epoch, so a call takes no arguments."""

    def __init__(
        self, network: IncrementalNetwork, optimizer: SGD, loss: Loss, training_set: TrainingSet, batch_size: int
    ) -> None:
        self.network, self.optimizer, self.loss, self.training_set = network, optimizer, loss, training_set
        device = training_set.images.device
        self.batch = torch.arange(batch_size, device=device)
        self.batch_number = torch.zeros((), dtype=torch.long, device=device)

    def start_epoch(self, order: Tensor) -> None:
        """Take the images in this `order`, a whole number of batches."""
        self.order = order
        self.losses = torch.zeros(len(order) // len(self.batch), device=order.device)
        self.batch_number.zero_()

    def __call__(self) -> None:
        chosen = self.order[self.batch_number * len(self.batch) + self.batch]
        data = self.training_set
        logits = self.network(data.images[chosen])
        loss = self.loss(logits, data.labels[chosen], data.targets[chosen])
        gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True, materialize_grads=True)
        self.optimizer.step(gradients)
        self.losses[self.batch_number] = loss.detach().to(self.losses.dtype)
        self.batch_number += 1
