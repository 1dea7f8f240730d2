"""How many threads compute and read files, and how they wait for each other."""

from __future__ import annotations

import os
import sys

_most: int | None = None


def sleep_while_waiting() -> None:
    """Have a computation's threads sleep while they wait for each other; this counts only before PyTorch is loaded.

    By default they spin, which takes the cores away from other programs: a training beside which photos are told, or
    two trainings, then take several times as long as one after the other. A user's own setting is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def limit(threads: int) -> None:
    """Have this process compute with so many threads, and read files with no more."""
    global _most
    _most = threads
    os.environ["OMP_NUM_THREADS"] = str(threads)  # PyTorch reads it when it is loaded
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def at_most(threads: int) -> int:
    """Return the smaller of this number and the limit, if there is one."""
    return min(threads, _most or threads)
