"""The one training loop that every method shares: stages of epochs, which can be resumed after any epoch."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from treering.core.capture import CapturedUpdate
from treering.core.network import IncrementalNetwork
from treering.core.optim import OPTIMIZERS
from treering.core.update import BatchUpdate, Constraint, Loss, TrainingSet, batch_plan, memory_of
from treering.errors import TreeringError
from treering.recipe import Optimizer, Schedule
from treering.runtime import free_memory, randomness

DIVERGED = "training diverged (its numbers are not finite): lower the learning rate"


class DivergedError(TreeringError):
    """Training whose numbers are not finite any more."""

    def __init__(self) -> None:
        super().__init__(DIVERGED)


@dataclass(frozen=True)
class FitState:
    """The state of a `fit` after an epoch: all that it needs to go on, with the same result on the same device."""

    number: int
    """The number of the `fit` within the step, from 0."""
    epoch: int
    """The number of epochs that are done."""
    tensors: dict[str, Tensor]
    momentum: Tensor
    generator: Tensor


@dataclass(frozen=True)
class InFlight:
    """The state of an unfinished step: that of its current `fit` and that at the end of the `fit` before it."""

    current: FitState
    previous: FitState | None


@dataclass(frozen=True)
class EpochReport:
    """What a watcher is told of a finished epoch."""

    stage: str
    epoch: int
    """The number of the epoch within the stage, from 1."""
    epochs: int
    image_passes: int
    losses: Tensor
    """The loss of each batch."""
    mean_loss: float
    state: Callable[[], InFlight]
    """Gives the state after this epoch, from which the step can go on; call it before the next epoch begins."""


class Watcher:
    """An observer of a step's training. This one ignores all that it is told; a subclass uses what it needs."""

    def ready(self) -> None:
        """Take note that the training set of a stage is made and its first epoch is about to begin."""

    def epoch(self, report: EpochReport) -> None:
        """Take note that an epoch has ended."""

    def passed(self, images: int) -> None:
        """Learn that so many images have passed through the network without training it."""


@dataclass
class _Course:
    """How far a step has come with its calls of `fit`."""

    resume: InFlight | None = None
    dropout_seed: int | None = None
    watcher: Watcher = field(default_factory=Watcher)
    look: Callable[[EpochReport], None] | None = None
    """Sees each epoch before the watcher does, and may end the training by an error."""
    fits: int = 0
    """The number of calls of `fit` so far."""
    previous: FitState | None = None
    """The state at the end of the last call that is finished."""


def restore_generator(generator: torch.Generator, state: Tensor) -> None:
    """Set the generator to `state`, or seed it by the state of another kind of device, which has another length."""
    if len(state) == len(generator.get_state()):
        generator.set_state(state)
    else:
        generator.manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:7]))


class Trainer:
    """Trains one network, stage by stage, drawing everything random from one generator."""

    def __init__(
        self,
        network: IncrementalNetwork,
        loss: Loss,
        settings: Optimizer,
        generator: torch.Generator,
        constraint: Constraint | None = None,
    ) -> None:
        self.network, self.loss, self.settings, self.generator = network, loss, settings, generator
        self.constraint = constraint
        self._captured: CapturedUpdate | None = None
        self._course = _Course()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what cannot be copied or pickled: a captured update, and the generator, which the method brings."""
        return {name: value for name, value in self.__dict__.items() if name != "generator"} | {"_captured": None}

    @contextlib.contextmanager
    def step(
        self, resume: InFlight | None = None, dropout_seed: int | None = None, watcher: Watcher | None = None
    ) -> Iterator[None]:
        """Open a step: in this context, calls of `fit` that were finished when `resume` was saved are not repeated.

        `dropout_seed` seeds torch's own generators, from which dropout and the like draw, anew in each epoch, so that
        a resumed epoch draws the same.
        """
        self._course = _Course(resume, dropout_seed, watcher or Watcher())
        try:
            yield
        finally:
            self._course = _Course()

    @contextlib.contextmanager
    def looked_at(self, look: Callable[[EpochReport], None]) -> Iterator[None]:
        """Have `look` see each epoch of the step in this context, before its state can be saved; it may raise.

        So a step that goes on from a saved state has been looked at exactly as often as one that was never interrupted.
        """
        self._course.look = look
        try:
            yield
        finally:
            self._course.look = None

    def passed(self, images: int) -> None:
        """Tell the step's watcher that so many images have passed through the network without training it."""
        self._course.watcher.passed(images)

    def prepare(self, images: int, image_shape: Sequence[int]) -> CapturedUpdate | None:
        """Capture an update with room for `images`, if the engine captures; later stages that fit into it reuse it."""
        if self.network.engine.captures and self._captured is None:
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

        `epochs_before` is the number of epochs of the step's earlier stages, from which the gradient noise counts on.
        """
        course = self._course
        number, course.fits = course.fits, course.fits + 1
        if course.resume and number < course.resume.current.number:
            if course.resume.previous and number == course.resume.previous.number:
                course.previous = course.resume.previous
                self._restore(course.previous)
            return
        # A function is called once for the shapes of what it draws: each epoch draws its own.
        first = next(training_set()) if callable(training_set) else training_set
        batch_size, _ = batch_plan(len(first.images), self.settings)
        self.network.train()
        try:
            with self._dropout(1000 * number):  # the updates that warm up before a capture draw too
                update = self.batch_update(first, batch_size)
            epochs_done = self._go_on(update) if course.resume else 0
            course.watcher.ready()
            for epoch in range(epochs_done, schedule.epochs):
                update.optimizer.start_epoch(schedule.lr_at(epoch), epochs_before + epoch + 1, batch_size)
                with self._dropout(1000 * number + epoch):
                    parts = training_set() if callable(training_set) else [training_set]
                    losses = torch.cat([self._pass(update, part, drawn=callable(training_set)) for part in parts])
                    mean_loss = float(losses.mean())  # waits for the epoch to end
                if not math.isfinite(mean_loss):
                    raise DivergedError
                extra = 0 if self.constraint is None else self.constraint.image_passes
                passes = len(losses) * (batch_size + extra)
                state = functools.partial(self._in_flight, number, epoch + 1, update)
                report = EpochReport(stage, epoch + 1, schedule.epochs, passes, losses, mean_loss, state)
                if course.look:
                    course.look(report)
                course.watcher.epoch(report)
            # Losses precede their updates and use a batch's own statistics, so finite ones say nothing of predictions.
            if not self.network.predict_logits(update.training_set.images[:batch_size]).isfinite().all():
                raise DivergedError
            course.previous = self._state(number, schedule.epochs, update)
        finally:
            self.network.eval()

    def batch_update(self, training_set: TrainingSet, batch_size: int) -> BatchUpdate:
        """Return an update over `training_set`: the captured one if it still serves, else a new one."""
        if self._captured and self._captured.serves(training_set, batch_size):
            self._captured.training_set.take(training_set)
            self._captured.optimizer.momentum.zero_()
            return self._captured
        self._captured = None  # frees an old graph's memory first
        self._require_memory(batch_size, training_set.images.shape[1:])
        optimizer = OPTIMIZERS[self.settings.kind](self.network, self.settings, self.generator)
        if not self.network.engine.captures:
            return BatchUpdate(self.network, optimizer, self.loss, training_set, batch_size, self.constraint)
        self._captured = CapturedUpdate(self.network, optimizer, self.loss, training_set, batch_size, self.constraint)
        return self._captured

    def _require_memory(self, batch_size: int, image_shape: Sequence[int]) -> None:
        """Raise if an update takes more memory than this computer has free, which could end other programs."""
        if self.network.device.type == "cpu":
            _, height, width = image_shape
            free_memory.require(
                memory_of(self.network, batch_size, image_shape),
                f"training on {batch_size} images of {width} x {height} pixels at a time",
                "begin a model of smaller images or with a smaller optimizer.batch_size",
            )

    def _pass(self, update: BatchUpdate, part: TrainingSet, drawn: bool) -> Tensor:
        """Train once on `part`, which the update holds already unless it is `drawn`; return each batch's loss."""
        if drawn:
            update.training_set.take(part)
        count, batch_size = len(part.images), len(update.batch)
        batches = math.ceil(count / batch_size)
        order = torch.randperm(count, generator=self.generator, device=self.generator.device)
        update.start_epoch(order.repeat(math.ceil(batches * batch_size / count))[: batches * batch_size])
        for _ in range(batches):
            update()
        return update.losses[:batches].clone()

    @contextlib.contextmanager
    def _dropout(self, number: int) -> Iterator[None]:
        """Seed torch's own generators, for layers that draw from them, by the dropout seed and this number alone."""
        seed, device = self._course.dropout_seed, self.generator.device
        if seed is None or not self.network.draws:
            yield
            return
        with randomness.borrowed([device] if device.type == "cuda" else []):
            torch.default_generator.manual_seed(seed + number)
            if device.type == "cuda":
                torch.cuda.manual_seed(seed + number)
            yield

    def _go_on(self, update: BatchUpdate) -> int:
        """Restore the interrupted `fit`; return how many of its epochs are done."""
        assert self._course.resume
        state, self._course.resume = self._course.resume.current, None
        self._restore(state)
        update.optimizer.load_momentum(state.momentum)
        return state.epoch

    def _in_flight(self, number: int, epoch: int, update: BatchUpdate) -> InFlight:
        return InFlight(self._state(number, epoch, update), self._course.previous)

    def _state(self, number: int, epoch: int, update: BatchUpdate) -> FitState:
        momentum, generator = update.optimizer.saved_momentum(), self.generator.get_state()
        return FitState(number, epoch, self.network.tensors(), momentum, generator)

    def _restore(self, state: FitState) -> None:
        self.network.load_tensors(self.network.head_sizes, state.tensors)
        restore_generator(self.generator, state.generator)
