"""An update that is captured in a CUDA graph once and then replayed, without work in Python."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

import torch

from treering import words
from treering.core import fused
from treering.core.engine import give_up_kernels
from treering.core.network import IncrementalNetwork
from treering.core.optim import SGD
from treering.core.update import BatchUpdate, Constraint, Loss, TrainingSet

logger = words.logger(__name__)

WARM_UP_UPDATES = 3
"""The number of eager updates before a capture: they compile, choose algorithms and allocate, and are undone."""

QUEUED_UPDATES = 16
"""A run queues at most three times as many updates: a full queue would hold up the other runs of the process."""

_capturing = threading.Lock()
"""Held while a thread compiles and captures; other runs of the process go on replaying their updates."""


class CapturedUpdate(BatchUpdate):
    """The update with its feature extractor fused or compiled, in a CUDA graph.

    Its tensors have room for every later stage, so that stages and steps differ only in what these tensors hold.
    """

    def __init__(
        self,
        network: IncrementalNetwork,
        optimizer: SGD,
        loss: Loss,
        training_set: TrainingSet,
        batch_size: int,
        constraint: Constraint | None = None,
    ) -> None:
        super().__init__(network, optimizer, loss, training_set, batch_size, constraint)
        self.graph = torch.cuda.CUDAGraph()
        # Each graph has a stream of its own: library workspaces belong to a stream, and graphs that share one deadlock.
        self.stream = torch.cuda.Stream(priority=torch.cuda.current_stream().priority)
        self._replays = 0
        self._queued: collections.deque[torch.cuda.Event] = collections.deque()
        generator = optimizer.generator
        statistics, unsaved, random_state = network.tensors(), network.unsaved(), generator.get_state()
        values, momentum = optimizer.values.clone(), optimizer.momentum.clone()
        with _capturing:
            self._warm_up()
            if hasattr(self.graph, "register_generator_state"):  # newer versions of torch do this by themselves
                self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
                super().run_batch()
        network.load_tensors(network.head_sizes, statistics)
        network.load_unsaved(unsaved)
        optimizer.values.copy_(values)  # including spare columns, which `tensors` leaves out
        optimizer.momentum.copy_(momentum)
        generator.set_state(random_state)

    def run_batch(self) -> None:
        """Replay the captured update."""
        self.graph.replay()
        self._replays += 1
        if self._replays % QUEUED_UPDATES == 0:
            done = torch.cuda.Event(blocking=True)
            done.record()
            self._queued.append(done)
            if len(self._queued) > 2:
                self._queued.popleft().synchronize()

    def serves(self, training_set: TrainingSet, batch_size: int) -> bool:
        """Return whether the graph can train on this: its parameters are still the network's, and the tensors fit."""
        return (
            self.network.weight.untyped_storage().data_ptr() == self.optimizer.values.untyped_storage().data_ptr()
            and batch_size == len(self.batch)
            and training_set.fits_into(self.training_set)
        )

    def _warm_up(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            if self.network.engine.kernels:
                try_kernels(self, self._update_eagerly)
            if self.network.engine.compiles and self.extract == self.network.extract:
                self.extract = torch.compile(self.network.extract, dynamic=False)
                try:
                    self._update_eagerly()
                except torch._dynamo.exc.TorchDynamoException as error:
                    logger.warning("the feature extractor cannot be compiled and runs slower: %s", error)
                    self.extract = self.network.extract
            for _ in range(WARM_UP_UPDATES):
                self._update_eagerly()
        torch.cuda.current_stream().wait_stream(self.stream)

    def _update_eagerly(self) -> None:
        """Do without a graph what a replay does; apply the gradient even where a constraint would change it first."""
        self.batch_number.zero_()
        super().run_batch()
        if self.constraint is not None:
            self.optimizer.step(self.gradient)


def try_kernels(update: BatchUpdate, update_once: Callable[[], None]) -> None:
    """Update with the kernels or, if they fail, without them; if that works, later networks do without them too."""
    try:
        update.extract = fused.extractor(update.network, len(update.batch)) or update.extract
        update_once()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        update.network.engine.kernels = False
        update.extract = update.network.extract
        update_once()
        give_up_kernels(error)
