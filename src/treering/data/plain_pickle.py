"""Reads pickles of texts, numbers, lists, dictionaries and arrays of bytes, which is what CIFAR's files hold.

A pickle is a program. It is carried out here and not by Python's `pickle`: only the instructions that such values need
are known, and classes of this module stand for NumPy's. So no pickle can run anything else, take more memory than a few
times its size, or take more time than its length accounts for.
"""

from __future__ import annotations

import io
import pickletools
from pickle import UnpicklingError
from typing import Any

import numpy as np

PLAIN = frozenset(
    """
    INT BININT BININT1 BININT2 LONG1 BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES BINBYTES8
    """.split()  # noqa: SIM905
)
"""The instructions whose arguments are values."""
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
MOST = 1_000_000
"""The most instructions of a pickle; CIFAR-100's largest has 200,000, and 500,000 if Python 3 wrote it for Python 2."""
LONGEST_LINE = 10_000
"""The most bytes of a line in a pickle: only names, numbers and short texts stand in lines."""
BYTES = ("u1", "|u1", "uint8", b"u1", b"|u1", b"uint8")
"""What NumPy calls numbers that are bytes."""


class _Numbers:
    """Stands for `numpy.dtype`: the kind of numbers in an array."""

    def __init__(self, code: Any, *details: Any) -> None:
        if code not in BYTES:
            raise UnpicklingError("its numbers are not bytes")

    def build(self, state: Any) -> None:
        """Take what NumPy says of the order of bytes, which single bytes do not have."""


class _Array:
    """Stands for `numpy.ndarray`."""

    array: np.ndarray | None = None

    def __init__(self, *details: Any) -> None:
        """Take what an empty array is made of, which `build` tells anew."""

    def build(self, state: Any) -> None:
        _, shape, numbers, by_columns, content = state
        if not isinstance(numbers, _Numbers) or not isinstance(content, bytes):
            raise UnpicklingError("its array is not one of bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Lines(io.BytesIO):
    """The bytes of a pickle without endless lines, of which Python's errors would show several copies."""

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the rest of a line, or its beginning if it is too long, which makes it damaged."""
        return super().readline(LONGEST_LINE)


class _Machine:
    """Carries out the instructions of a pickle of so many bytes, one after the other."""

    def __init__(self, size: int) -> None:
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        """What is below each mark in the stack."""
        self._known: dict[int, Any] = {}
        self._left_to_encode = size
        self._names = {
            ("numpy.core.multiarray", "_reconstruct"): _Array,
            ("numpy._core.multiarray", "_reconstruct"): _Array,
            ("numpy", "ndarray"): None,  # it is given to `_reconstruct`, and not called
            ("numpy", "dtype"): _Numbers,
            ("_codecs", "encode"): self._encoded,
        }

    def carry_out(self, instruction: str, argument: Any) -> None:
        """Carry out one instruction; raise some error if there is no such one, or what it needs is not there."""
        match instruction:
            case _ if instruction in PLAIN:
                self._push(argument)
            case _ if instruction in CONSTANTS:
                self._push(CONSTANTS[instruction])
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "STRING" | "BINSTRING" | "SHORT_BINSTRING":  # a text of Python 2 is bytes, and comes as Latin-1
                self._push(argument.encode("latin1"))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._remember(argument)
            case "MEMOIZE":
                self._remember(len(self._known))
            case "GET" | "BINGET" | "LONG_BINGET":
                self._push(self._known[argument])
            case "MARK":
                self._below.append(self._stack)
                self._stack = []
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self._push(tuple(self._popped(int(instruction[-1]))))
            case "TUPLE":
                self._push(tuple(self._since_mark()))
            case "EMPTY_LIST":
                self._push([])
            case "LIST":
                self._push(self._since_mark())
            case "APPEND":
                self._extend(self._popped(1))
            case "APPENDS":
                self._extend(self._since_mark())
            case "EMPTY_DICT":
                self._push({})
            case "DICT":
                items = self._since_mark()
                self._push({})
                self._set(items)
            case "SETITEM":
                self._set(self._popped(2))
            case "SETITEMS":
                self._set(self._since_mark())
            case "GLOBAL":
                self._push(self._named(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                self._push(self._named(*self._popped(2)))
            case "REDUCE":
                self._push(self._called(*self._popped(2)))
            case "BUILD":
                (state,) = self._popped(1)
                self._stack[-1].build(state)
            case _:
                raise UnpicklingError(f"it has the instruction {instruction}")

    def result(self) -> Any:
        """Return the value that the pickle stands for."""
        return self._stack[-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _popped(self, count: int) -> list[Any]:
        found = self._stack[-count:]
        if len(found) < count:
            raise UnpicklingError("it uses values that it does not have")
        del self._stack[-count:]
        return found

    def _since_mark(self) -> list[Any]:
        found, self._stack = self._stack, self._below.pop()
        return found

    def _remember(self, number: int) -> None:
        if not 0 <= number <= MOST:  # other numbers can be chosen so that a dictionary of them is slow
            raise UnpicklingError("it numbers values that it does not have")
        self._known[number] = self._stack[-1]

    def _extend(self, items: list[Any]) -> None:
        self._stack[-1].extend(items)

    def _set(self, items: list[Any]) -> None:
        """Put keys and values that take turns into the dictionary on the stack.

        Python goes through all of a tuple to use it as a key, as often as it is in itself, and numbers can be chosen so
        that a dictionary of them is slow.
        """
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise UnpicklingError("a key of a dictionary is not a text")
            self._stack[-1][key] = value

    def _named(self, module: Any, name: Any) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise UnpicklingError("it asks for something whose name is not a text")
        if (module, name) not in self._names:
            raise UnpicklingError(f"it asks for {module:.200}.{name:.200}")
        return self._names[module, name]

    def _called(self, function: Any, arguments: Any) -> Any:
        if not isinstance(arguments, tuple):
            raise UnpicklingError("it calls something with what are no arguments")
        return function(*arguments)

    def _encoded(self, text: Any, encoding: Any) -> bytes:
        """Return bytes that Python 3 wrote as a text, since that is how it writes them for Python 2."""
        if not isinstance(text, str) or encoding != "latin1":
            raise UnpicklingError("it asks for another encoding than latin1")
        self._left_to_encode -= len(text)  # the same text can be asked for again and again
        if self._left_to_encode < 0:
            raise UnpicklingError("it becomes larger than it is")
        return text.encode("latin1")


def load(content: bytes) -> Any:
    """Return the value in a pickle; raise any kind of error for one that is damaged or holds something else."""
    machine = _Machine(len(content))
    for number, (instruction, argument, _) in enumerate(pickletools.genops(_Lines(content))):
        if number >= MOST:
            raise UnpicklingError(f"it has more than {MOST:,} instructions")
        machine.carry_out(instruction.name, argument)
    value = machine.result()
    if isinstance(value, dict):
        return {key: item.array if isinstance(item, _Array) else item for key, item in value.items()}
    return value
