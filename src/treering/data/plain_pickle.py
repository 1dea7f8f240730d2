"""Reads pickles of texts, numbers, lists, dictionaries and arrays of bytes, which is what CIFAR's files hold.

A pickle is a program. Only the instructions that such values need are let through, and classes of this module stand for
NumPy's. So no pickle can run anything else, or take more memory than a few times its size.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

import numpy as np

INSTRUCTIONS = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG1 BINFLOAT
    STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8
    EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
    PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL REDUCE BUILD
""".split()  # noqa: SIM905
"""The instructions of pickles that are let through."""
MOST = 5_000_000
"""The most instructions of a pickle; CIFAR-100's largest has 200,000."""


class _Numbers:
    """Stands for `numpy.dtype`: the kind of numbers in an array."""

    def __init__(self, code: Any, *details: Any) -> None:
        name = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if name not in ("u1", "|u1", "uint8"):
            raise pickle.UnpicklingError("its numbers are not bytes")

    def __setstate__(self, state: Any) -> None:
        """Take what NumPy says of the order of bytes, which single bytes do not have."""


class _Array:
    """Stands for `numpy.ndarray`."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, numbers, by_columns, content = state
        if not isinstance(numbers, _Numbers) or not isinstance(content, bytes):
            raise pickle.UnpicklingError("its array is not one of bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): self._empty,
            ("numpy._core.multiarray", "_reconstruct"): self._empty,
            ("numpy", "ndarray"): _Array,
            ("numpy", "dtype"): _Numbers,
            ("_codecs", "encode"): self._encoded,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return allowed[module, name]

    def _empty(self, *details: Any) -> _Array:
        return _Array()

    def _encoded(self, text: str, encoding: str) -> bytes:
        """Return bytes that Python 3 wrote as a text, since that is how it writes them for Python 2."""
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r:.40}")
        return text.encode("latin1")


def load(content: bytes) -> Any:
    """Return the value in a pickle; raise any kind of error for one that is damaged or holds something else."""
    for number, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        if instruction.name not in INSTRUCTIONS:
            raise pickle.UnpicklingError(f"it has the instruction {instruction.name}")
        if number >= MOST:
            raise pickle.UnpicklingError(f"it has more than {MOST:,} instructions")
        if (
            instruction.name in ("PUT", "LONG_BINPUT") and (argument or 0) > number
        ):  # memory is taken for all numbers below
            raise pickle.UnpicklingError("it numbers values that it does not have")
    value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if isinstance(value, dict):
        return {key: item.array if isinstance(item, _Array) else item for key, item in value.items()}
    return value
