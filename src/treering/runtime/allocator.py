"""What the allocator of Linux's C library does with memory that is freed."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def keep() -> None:
    """Keep freed memory for the next batch: fetching it afresh takes a sixth of a CPU's time or more."""
    for setting in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        _call("mallopt", setting, 2**30)


def give_back() -> None:
    """Return freed memory to the system: otherwise a process grows by megabytes with each step."""
    _call("malloc_trim", 0)


def _call(function: str, *arguments: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            getattr(ctypes.CDLL(None), function)(*arguments)
