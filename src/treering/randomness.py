"""Generators: a model's own, and torch's, which all threads share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

_IN_USE = threading.RLock()


class Generator(torch.Generator):
    """One that can be handed to a new process: torch's own pickles a tensor that is gone before the other reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _generator, (str(self.device), self.get_state().numpy().tobytes())


def _generator(device: str, state: bytes) -> Generator:
    generator = Generator(device)
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return generator


def dropout_seed(seed: int, step: int) -> int:
    """Where the seeds of a step's epochs begin, for a learner or run of this seed."""
    return (seed + step * 100_000) % 2**62


@contextlib.contextmanager
def borrowed(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Torch's generators of the CPU and of these GPUs, for one thread at a time; afterwards they are as before."""
    with _IN_USE, torch.random.fork_rng(devices=devices):
        yield
