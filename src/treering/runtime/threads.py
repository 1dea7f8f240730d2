"""How many threads compute and read files, and how they wait for each other."""

from __future__ import annotations

import os
import sys

SPINS = "1000"
"""How often a thread looks whether it may go on before it sleeps; OpenMP takes this number among many threads."""
_most: int | None = None


def sleep_soon() -> None:
    """Have a computation's threads sleep soon while they wait for each other; it counts only before PyTorch is loaded.

    By default GNU's OpenMP spins for a millisecond or more, and the cores are lost to other programs: to predict beside
    a training on two cores took 19 s rather than 3 s. It spins shortly by itself once it has more threads than cores,
    but it does not know of other programs. A training alone takes 2 % longer so. A user's own setting is kept.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def limit(threads: int | None) -> int | None:
    """Have this process compute with so many threads, and read files with no more; None leaves all as it is."""
    global _most
    if threads:
        _most = threads
        os.environ["OMP_NUM_THREADS"] = str(threads)  # PyTorch reads it when it is loaded
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
    return threads


def at_most(threads: int) -> int:
    """Return the smaller of this number and the limit, if there is one."""
    return min(threads, _most or threads)
