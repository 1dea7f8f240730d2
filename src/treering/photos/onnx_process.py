"""Asks the process that computes an exported file's answers, `onnx_worker.py`, and says why it has ended if it has."""

from __future__ import annotations

import contextlib
import json
import math
import struct
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from treering.errors import TreeringError

SECONDS = 6.0
"""The most seconds for reading the graph and the first answer together, and for each answer that follows."""
MOST_MEMORY = 3 * 2**29
"""The most bytes that the process may take, and several times the file's size besides, up to `MOST_IN_ALL`."""
MOST_IN_ALL = 2**31
"""The most bytes of the process and of the file's content, which whoever asks holds meanwhile."""
COPIES = 4
"""How many copies of the file's weights onnxruntime may need."""
SIZE = struct.Struct("<Q")
"""How a number is written between the two processes."""
MOST_SAID = 2**20
"""The most bytes that the process says in words."""


class Process:
    """The process that computes what a file's graph answers."""

    def __init__(self, content: bytes, shape: Sequence[int], threads: int | None) -> None:
        settings = {"seconds": SECONDS, "bytes": _memory_for(len(content)), "shape": list(shape)}
        worker = Path(__file__).with_name("onnx_worker.py")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(worker), json.dumps({**settings, "threads": threads})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise TreeringError(f"the process that computes its answers cannot be started: {error.strerror}") from None
        self.end = weakref.finalize(self, _end, self._process)
        """End the process; this happens by itself when nothing refers to this object any more."""
        self.described = self._ask([SIZE.pack(len(content)), content])["found"]
        """Name, type and shape of each input and output of the graph."""

    def outputs(self, images: np.ndarray, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
        """Return the graph's outputs for float32 images, which have to be of these shapes."""
        found = self._ask([SIZE.pack(images.nbytes), images])["shapes"]
        if [tuple(shape) for shape in found] != shapes:
            raise TreeringError("its answers have another shape than they should")
        return [np.frombuffer(self._read(4 * math.prod(shape)), np.float32).reshape(shape) for shape in shapes]

    def _ask(self, parts: Sequence[Any]) -> dict[str, Any]:
        """Send a request and return what the process says of it."""
        with contextlib.suppress(OSError):  # it has ended, and may have said why
            for part in parts:
                _pipe(self._process.stdin).write(part)
            _pipe(self._process.stdin).flush()
        size = SIZE.unpack(self._read(SIZE.size))[0]
        told = json.loads(self._read(min(size, MOST_SAID)))
        if "error" in told:
            raise TreeringError(f"onnxruntime says {told['error']}")
        return told

    def _read(self, size: int) -> bytes:
        found = _pipe(self._process.stdout).read(size)
        if len(found) == size:
            return found
        if self._process.wait() == 1:
            raise TreeringError(f"it takes more than {SECONDS:g} seconds")
        raise TreeringError("onnxruntime has ended, since it needs too much memory or meets an error of its own")


def _memory_for(size: int) -> int:
    """Return the most bytes that the process may take for a file of this size."""
    return min(MOST_MEMORY + COPIES * size, MOST_IN_ALL - size)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):  # what was written cannot be sent any more
            _pipe(pipe).close()
