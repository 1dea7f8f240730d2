"""Bounds on what reading one file may cost, and on what the files being read at the same time may cost together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import BinaryIO

from treering.images.formats import UnreadableError

MOST_READS = 1_000_000
"""The most reads from one file: readers in Python take a few for each part of a file, and seconds for so many."""
MOST_TIMES = 8
"""How often a file may be read from end to end."""


class Stream:
    """A file whose reader has to come to an end, whatever lists and loops are in the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._reads, self._bytes = file, MOST_READS, MOST_TIMES * size + 2**20
        self.seek, self.tell, self.fileno, self.close = file.seek, file.tell, file.fileno, file.close

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or all that are left."""
        found = self._file.read(size)
        self._reads -= 1
        self._bytes -= len(found)
        if self._reads < 0 or self._bytes < 0:
            raise UnreadableError("damaged image (it does not come to an end)")
        return found

    def flush(self) -> None:
        """Do nothing, as a file that is only read does."""


class Memory:
    """Memory that threads share: a thread waits until there is enough for its photo."""

    def __init__(self, total: int) -> None:
        self._total = self._left = total
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Take so many bytes for as long as the context lasts; a photo that needs all of them or more is alone."""
        size = min(size, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


def open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting for another program, as a pipe would; for the `opener` of `open`."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
