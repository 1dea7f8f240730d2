"""Torch's own generators, which all threads share: used by one thread at a time, and left as they were."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import torch

_IN_USE = threading.RLock()


def dropout_seed(seed: int, step: int) -> int:
    """Return the first of the seeds of a step's epochs, for a learner or run with this seed."""
    return (seed + step * 100_000) % 2**62


@contextlib.contextmanager
def borrowed(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Put the generators of the CPU and of these GPUs back as they were at the end of this context."""
    with _IN_USE, torch.random.fork_rng(devices=devices):
        yield
