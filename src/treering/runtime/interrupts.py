"""Moments that Ctrl-C must not interrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def deferred(heard: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Defer Ctrl-C to the end of this context, where it takes effect once; until then each one only calls `heard`.

    It may well come more than once: `timeout -s INT`, for example, sends the signal twice.
    """
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        heard()

    before = signal.getsignal(signal.SIGINT)
    # Only the main thread can handle signals, and one that is ignored stays ignored.
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if interrupted:
            signal.raise_signal(signal.SIGINT)
