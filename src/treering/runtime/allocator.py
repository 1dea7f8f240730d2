"""What the allocator of Linux's C library does with memory that is freed."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def keep() -> None:
    """Keep freed memory for the next batch: fetching it afresh takes a sixth of a CPU's time or more."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            for setting in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                ctypes.CDLL(None).mallopt(setting, 2**30)
