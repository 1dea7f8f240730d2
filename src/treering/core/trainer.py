"""The one training loop that every method shares: eager on the CPU, captured CUDA graphs on a GPU.

An update by one batch is captured whole (gather, forward, backward, noise, decay, momentum, update) and once: its
tensors have room for every later stage, so that stages and steps differ only in what these hold.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import hashlib
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from treering.core import fused
from treering.core.network import IncrementalNetwork
from treering.core.optim import SGD
from treering.errors import TreeringError
from treering.recipe import Optimizer, Schedule
from treering.runtime import randomness

logger = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(logits, labels, soft targets, head of each class) of a batch -> its loss."""

Constraint = Callable[["BatchUpdate"], None]
"""Changes the `gradient` of an update in place."""

WARM_UP_UPDATES = 3
"""Eager updates before a capture: they compile, pick algorithms and allocate. Their effect is undone."""

QUEUED_UPDATES = 16
"""A run queues at most three times as many: a full queue would hold up the other runs of the process."""

DIVERGED = "training diverged (its numbers are not finite): lower the learning rate"

_capturing = threading.Lock()
"""Compilation and capture are for one thread at a time; other runs of the process go on replaying theirs."""


@dataclass(frozen=True)
class TrainingSet:
    """What a stage trains on, on the training device."""

    images: Tensor
    """N x C x H x W, uint8, augmented."""
    labels: Tensor
    """N columns."""
    targets: Tensor
    """N x columns: soft targets of the distilled heads, zeros elsewhere."""

    @classmethod
    def empty(cls, images: int, image_shape: Sequence[int], columns: int, device: torch.device) -> TrainingSet:
        """Room for so many images, to be filled by `take`."""
        return cls(
            torch.zeros(images, *image_shape, dtype=torch.uint8, device=device),
            torch.zeros(images, dtype=torch.long, device=device),
            torch.zeros(images, columns, device=device),
        )

    def fits_into(self, other: TrainingSet) -> bool:
        """Whether `other` has room for this: as many images or more, all else of the same shape."""
        return len(self.images) <= len(other.images) and all(
            mine.shape[1:] == theirs.shape[1:]
            for mine, theirs in ((self.images, other.images), (self.targets, other.targets))
        )

    def take(self, other: TrainingSet) -> None:
        """Overwrite the first images, labels and targets with those of `other`."""
        for mine, theirs in ((self.images, other.images), (self.labels, other.labels), (self.targets, other.targets)):
            mine[: len(theirs)].copy_(theirs)


@dataclass(frozen=True)
class FitState:
    """Where a training stands after an epoch: all that is needed to go on from there, on the same device exactly."""

    number: int
    """Which `fit` of the step, from 0."""
    epoch: int
    """Epochs done."""
    tensors: dict[str, Tensor]
    momentum: Tensor
    generator: Tensor


@dataclass(frozen=True)
class InFlight:
    """An unfinished step: the training it is in and how the one before it ended."""

    current: FitState
    previous: FitState | None


@dataclass(frozen=True)
class EpochReport:
    """What a finished epoch tells whoever watches."""

    stage: str
    epoch: int
    """From 1 within the stage."""
    epochs: int
    image_passes: int
    losses: Tensor
    """The loss of each batch."""
    mean_loss: float
    state: Callable[[], InFlight]
    """The state after this epoch, from which `start_step` goes on; to be called before the next one begins."""


def batch_plan(count: int, settings: Optimizer) -> tuple[int, int]:
    """Batch size and batches of an epoch over `count` images.

    Every batch is full: the last is filled up with the epoch's first images, so that all shapes are constant.
    """
    batch_size = max(2, min(settings.batch_size, count))
    return batch_size, math.ceil(count / batch_size)


class Trainer:
    """Trains one network, stage by stage, drawing everything random from one generator."""

    def __init__(
        self,
        network: IncrementalNetwork,
        loss: Loss,
        settings: Optimizer,
        generator: torch.Generator,
        captured: bool,
    ) -> None:
        self.network = network
        self.loss = loss
        self.settings = settings
        self.generator = generator
        self.on_start: Callable[[], None] = do_nothing
        """Called when the training set of a `fit` is ready and its first epoch is to begin."""
        self.on_epoch: Callable[[EpochReport], None] = do_nothing
        self.captures = captured
        self.compiles = captured
        self.constrain: Constraint | None = None
        """Changes the gradient of each batch before it is applied; a method's own affair, so never captured."""
        self.extra_passes = 0
        """Images that `constrain` passes through the network for each batch."""
        self._captured: CapturedUpdate | None = None
        self.start_step()

    def __getstate__(self) -> dict[str, Any]:
        """What can be copied and pickled: all but a captured update and the generator, which the method brings."""
        return {name: value for name, value in self.__dict__.items() if name != "generator"} | {"_captured": None}

    @torch.inference_mode(False)
    def release(self) -> None:
        """Give each parameter memory of its own: pickled, a view of the optimiser's vector takes all of it along."""
        self._captured = None  # its next update would train the vector
        for parameter in self.network.parameters():
            parameter.data = parameter.data.clone()

    def start_step(self, resume: InFlight | None = None, dropout_seed: int | None = None) -> None:
        """Begin a step, or go on with one: its `fit` calls up to `resume` then only restore what they had led to.

        `dropout_seed` is for layers that draw from torch's own generators, afresh in each epoch so that a resumed one
        draws alike.
        """
        self._resume = resume
        self.dropout_seed = dropout_seed
        self._fits = 0
        self._previous: FitState | None = None

    def end_step(self) -> None:
        """Forget what is of no use to the next step."""
        self.on_epoch = do_nothing
        self.start_step()

    def prepare(self, images: int, image_shape: Sequence[int]) -> CapturedUpdate | None:
        """On a GPU, capture an update with room for `images`: what later stages fit into need not be captured again."""
        if self.captures and self._captured is None:
            room = TrainingSet.empty(images, image_shape, self.network.columns, self.generator.device)
            self.network.train()
            self.batch_update(room, batch_plan(images, self.settings)[0])
            self.network.eval()
        return self._captured

    def fit(
        self,
        stage: str,
        training_set: TrainingSet | Callable[[], Iterator[TrainingSet]],
        schedule: Schedule,
        epochs_before: int = 0,
    ) -> None:
        """Train for the whole `schedule` on a training set, or on parts that a function draws afresh for each epoch.

        `epochs_before` in this step count on for the gradient noise.
        """
        number, self._fits = self._fits, self._fits + 1
        if self._resume and number < self._resume.current.number:
            if self._resume.previous and number == self._resume.previous.number:
                self._previous = self._resume.previous
                self._restore(self._previous)
            return
        draw = training_set if callable(training_set) else None
        if callable(training_set):
            training_set = next(training_set())  # for its shapes: each epoch draws its own
        batch_size, _ = batch_plan(len(training_set.images), self.settings)
        self.network.train()
        try:
            with self._dropout(1000 * number):  # updates to warm up before the capture draw too
                update = self.batch_update(training_set, batch_size)
            epochs_done = 0
            if self._resume:
                epochs_done = self._resume.current.epoch
                self._restore(self._resume.current)
                update.optimizer.load_momentum(self._resume.current.momentum)
                self._resume = None
            self.on_start()
            for epoch in range(epochs_done, schedule.epochs):
                update.optimizer.start_epoch(schedule.lr_at(epoch), epochs_before + epoch + 1, batch_size)
                with self._dropout(1000 * number + epoch):
                    if draw:
                        losses = torch.cat([self._pass(update, len(part.images), part) for part in draw()])
                    else:
                        losses = self._pass(update, len(training_set.images))
                    mean_loss = float(losses.mean())  # waits for the epoch to end
                if not math.isfinite(mean_loss):
                    raise TreeringError(DIVERGED)
                state = functools.partial(self._in_flight, number, epoch + 1, update)
                passes = len(losses) * (batch_size + self.extra_passes)
                self.on_epoch(EpochReport(stage, epoch + 1, schedule.epochs, passes, losses, mean_loss, state))
            # The losses are those before each update, with a batch's own statistics: neither shows what predicts.
            if not self.network.predict_logits(update.training_set.images[:batch_size]).isfinite().all():
                raise TreeringError(DIVERGED)
            self._previous = self._state(number, schedule.epochs, update)
        finally:
            self.network.eval()

    @contextlib.contextmanager
    def _dropout(self, number: int) -> Iterator[None]:
        """What layers draw from torch's own generators within it depends on the seed and this number alone."""
        if self.dropout_seed is None or not self.network.draws:
            yield
            return
        device = self.generator.device
        with randomness.borrowed([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(self.dropout_seed + number)
            if device.type == "cuda":
                torch.cuda.manual_seed(self.dropout_seed + number)
            yield

    def _pass(self, update: BatchUpdate, count: int, part: TrainingSet | None = None) -> Tensor:
        """Train once on the first `count` images of the update's training set, or on `part`; the loss of each batch."""
        if part is not None:
            update.training_set.take(part)
        batch_size = len(update.batch)
        batches = math.ceil(count / batch_size)
        order = torch.randperm(count, generator=self.generator, device=self.generator.device)
        update.start_epoch(order.repeat(math.ceil(batches * batch_size / count))[: batches * batch_size])
        for _ in range(batches):
            update()
        return update.losses[:batches].clone()

    def batch_update(self, training_set: TrainingSet, batch_size: int) -> BatchUpdate:
        """An update over `training_set`: the captured one if it still serves, else a new one."""
        if self._captured and self._captured.serves(training_set, batch_size):
            self._captured.training_set.take(training_set)
            self._captured.optimizer.momentum.zero_()
            return self._captured
        self._captured = None  # frees an old graph's memory first
        update = self.new_update(SGD(self.network, self.settings, self.generator), training_set, batch_size)
        if isinstance(update, CapturedUpdate):
            self._captured = update
        return update

    def new_update(self, optimizer: SGD, training_set: TrainingSet, batch_size: int) -> BatchUpdate:
        """An update over `training_set`, captured where this trainer does."""
        if not self.captures:
            return BatchUpdate(self.network, optimizer, self.loss, training_set, batch_size, self.constrain)
        return CapturedUpdate(
            self.network, optimizer, self.loss, training_set, batch_size, self.constrain, self.compiles
        )

    def _in_flight(self, number: int, epoch: int, update: BatchUpdate) -> InFlight:
        return InFlight(self._state(number, epoch, update), self._previous)

    def _state(self, number: int, epoch: int, update: BatchUpdate) -> FitState:
        momentum, generator = update.optimizer.saved_momentum(), self.generator.get_state()
        return FitState(number, epoch, self.network.tensors(), momentum, generator)

    def _restore(self, state: FitState) -> None:
        self.network.load_tensors(self.network.head_sizes, state.tensors)
        restore_generator(self.generator, state.generator)


def do_nothing(*arguments: object) -> None:
    """Stands where nobody watches."""


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Go on drawing from `state`; that of another kind of device, which has another length, serves as a seed."""
    if len(state) == len(generator.get_state()):
        generator.set_state(state)
    else:
        generator.manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:7]))


class BatchUpdate:
    """Gather a batch, forward, backward, update. It keeps its own place in the epoch, so a call takes no arguments."""

    def __init__(
        self,
        network: IncrementalNetwork,
        optimizer: SGD,
        loss: Loss,
        training_set: TrainingSet,
        batch_size: int,
        constrain: Constraint | None = None,
    ) -> None:
        self.network, self.optimizer, self.loss, self.training_set = network, optimizer, loss, training_set
        self.constrain = constrain
        self.extract: Callable[[Tensor], Tensor] = network.extract
        device, room = training_set.images.device, len(training_set.images)
        self.batch = torch.arange(batch_size, device=device)
        self.batch_number = torch.zeros(1, dtype=torch.long, device=device)
        self.order = torch.zeros(room + batch_size, dtype=torch.long, device=device)
        self.losses = torch.zeros(room // batch_size + 1, device=device)
        self.gradient = torch.zeros_like(optimizer.values)
        """Of the last batch, flat; only kept for a constraint."""

    def start_epoch(self, order: Tensor) -> None:
        """Take the images in this `order`, a whole number of batches."""
        self.order[: len(order)].copy_(order)
        self.batch_number.zero_()

    def __call__(self) -> None:
        """Train on the next batch."""
        self.run_batch()
        if self.constrain:
            self.constrain(self)
            self.optimizer.step(self.gradient)

    def run_batch(self) -> None:
        """The part that can be captured: all of the update or, where the gradient is constrained, up to that."""
        chosen = self.order[self.batch_number * len(self.batch) + self.batch]
        data, network = self.training_set, self.network
        logits = network.logits(self.extract(data.images[chosen]))
        loss = self.loss(logits, data.labels[chosen], data.targets[chosen], network.head_of_class)
        gradients = torch.autograd.grad(loss, self.optimizer.parameters, allow_unused=True, materialize_grads=True)
        gradient = self.optimizer.flat(gradients)
        if self.constrain:
            self.gradient.copy_(gradient)
        else:
            self.optimizer.step(gradient)
        self.losses.index_copy_(0, self.batch_number, loss.detach().to(self.losses.dtype)[None])
        self.batch_number += 1


class CapturedUpdate(BatchUpdate):
    """The same, its feature extractor fused or compiled, in a CUDA graph: a call replays it without work in Python."""

    def __init__(
        self,
        network: IncrementalNetwork,
        optimizer: SGD,
        loss: Loss,
        training_set: TrainingSet,
        batch_size: int,
        constrain: Constraint | None,
        compiles: bool,
    ) -> None:
        super().__init__(network, optimizer, loss, training_set, batch_size, constrain)
        self.graph = torch.cuda.CUDAGraph()
        # A stream of its own: library workspaces belong to a stream, and two graphs that share one deadlock.
        self.stream = torch.cuda.Stream(priority=torch.cuda.current_stream().priority)
        self._replays = 0
        self._queued: collections.deque[torch.cuda.Event] = collections.deque()
        generator = optimizer.generator
        statistics, unsaved, random_state = network.tensors(), network.unsaved(), generator.get_state()
        values, momentum = optimizer.values.clone(), optimizer.momentum.clone()
        with _capturing:
            self._warm_up(compiles)
            if hasattr(self.graph, "register_generator_state"):  # newer versions of torch find it by themselves
                self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
                super().run_batch()
        network.load_tensors(network.head_sizes, statistics)
        network.load_unsaved(unsaved)
        optimizer.values.copy_(values)  # spare columns too
        optimizer.momentum.copy_(momentum)
        generator.set_state(random_state)

    def run_batch(self) -> None:
        """Replay what was captured."""
        self.graph.replay()
        self._replays += 1
        if self._replays % QUEUED_UPDATES == 0:
            done = torch.cuda.Event(blocking=True)
            done.record()
            self._queued.append(done)
            if len(self._queued) > 2:
                self._queued.popleft().synchronize()

    def serves(self, training_set: TrainingSet, batch_size: int) -> bool:
        """Whether the graph can train on this: its parameters are still the network's, and all fits its tensors."""
        return (
            self.network.weight.untyped_storage().data_ptr() == self.optimizer.values.untyped_storage().data_ptr()
            and batch_size == len(self.batch)
            and training_set.fits_into(self.training_set)
        )

    def _warm_up(self, compiles: bool) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if self.network.kernels:
                self._try_kernels()
            if compiles and self.extract == self.network.extract:
                self.extract = torch.compile(self.network.extract, dynamic=False)
                try:
                    self._update_eagerly()
                except torch._dynamo.exc.TorchDynamoException as error:
                    logger.warning("the feature extractor cannot be compiled and runs slower: %s", error)
                    self.extract = self.network.extract
            for _ in range(WARM_UP_UPDATES):
                self._update_eagerly()
        torch.cuda.current_stream().wait_stream(self.stream)

    def _try_kernels(self) -> None:
        """An update by the kernels or, if it fails, without them; if only that works they are given up everywhere."""
        try:
            self.extract = fused.extractor(self.network, len(self.batch)) or self.extract
            self._update_eagerly()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.network.kernels = False
            self.extract = self.network.extract
            self._update_eagerly()
            fused.give_up(error)

    def _update_eagerly(self) -> None:
        """What a replay will do and, where the gradient is constrained, what follows it."""
        self.batch_number.zero_()
        super().run_batch()
        if self.constrain:
            self.optimizer.step(self.gradient)
