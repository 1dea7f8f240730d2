"""Dataclasses whose fields are checked against their type hints, whether they come from a file or are made in Python.

A subclass of `Checked` is a frozen dataclass. Its hints may be numbers, texts, truth values, `Literal`, `Any`, other
subclasses, `tuple[X, ...]` (a list in a file), `dict[str, X]`, and unions of these, `None` included. `_check_ranges`
checks the values of the right types. `Checked.of` makes one of the table in a JSON file, which `parse_json` reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NoReturn, Self

from treering.errors import TreeringError

DEEPEST = 100
"""The most lists and tables of a JSON file that may lie within each other."""
MOST_VALUES = 4_000_000
"""The most values in a JSON file: short ones take many times more memory than space in the file."""
LONGEST_NUMBER = 1000
"""The most characters of a number in a JSON file."""
LARGEST = 10**LONGEST_NUMBER
"""The bound of whole numbers: Python refuses to print much larger ones, so that no message could name them."""
KINDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "null"}
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_LONG_NUMBER = re.compile(rb"[-+.0-9eE]{%d}" % (LONGEST_NUMBER + 1))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 200, 200, 60
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


def require(condition: bool, message: str) -> None:
    """Raise an error with this message unless the condition holds."""
    if not condition:
        raise TreeringError(message)


def brief(value: Any) -> str:
    """Return how Python writes a value, cut short, since a file may hold anything."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # a whole number with thousands of digits
        return "a number of more than 4,300 digits"


def _refuse(name: str, kind: str, value: Any) -> NoReturn:
    raise TreeringError(f"{name} must be {kind}, not {brief(value)}")


def checked(value: Any, hint: Any, name: str) -> Any:
    """Return `value` as one of type `hint`, or raise an error that names it."""
    if hint is Any or (hint is str and type(value) is str):
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return checked(value, next((one for one in arguments if _suits(value, one)), arguments[0]), name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            _refuse(name, "a list", value)
        numbered = arguments[0] not in KINDS
        return tuple(
            checked(item, arguments[0], f"{name}[{index}]" if numbered else name) for index, item in enumerate(value)
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            _refuse(name, "a table", value)
        return {
            checked(key, arguments[0], f"a name in {name}"): checked(item, arguments[1], f"{name}.{key}")
            for key, item in value.items()
        }
    if origin is Literal:
        if value not in arguments:
            _refuse(name, f"one of {', '.join(map(repr, arguments))}", value)
    elif issubclass(hint, Checked):
        if isinstance(value, Mapping):
            return hint.of(value, f"{name}.")
        if not isinstance(value, hint):
            _refuse(name, hint.described(name), value)
    elif hint in (int, float) and isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of a whole number that is larger than every float
            if abs(value) < LARGEST if hint is int else math.isfinite(value):
                return hint(value)
        _refuse(name, "a finite number", value)
    elif type(value) is not hint:
        _refuse(name, KINDS[hint], value)
    return value


def _suits(value: Any, hint: Any) -> bool:
    """Return whether this is the part of a union that `value` is meant for."""
    origin = typing.get_origin(hint) or hint
    if origin is tuple:
        return isinstance(value, list | tuple)
    if origin is dict or (isinstance(origin, type) and issubclass(origin, Checked)):
        return isinstance(value, Mapping)
    return type(value) is origin


@functools.cache
def _hints(checked_class: type[Checked]) -> dict[str, Any]:
    hints = typing.get_type_hints(checked_class)
    return {field.name: hints[field.name] for field in dataclasses.fields(checked_class)}


@functools.cache
def _fields(checked_class: type[Checked]) -> dict[str, bool]:
    """Return the names of the fields, and whether each may be left out."""
    return {
        field.name: (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        for field in dataclasses.fields(checked_class)
    }


@dataclass(frozen=True)
class Checked:
    """A value whose fields are checked against their type hints when it is made."""

    tolerant: ClassVar[bool] = False
    """Whether `of` ignores names that are no fields, since other versions write them."""

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():  # type: ignore[arg-type]  # a class can be hashed
            object.__setattr__(self, name, checked(getattr(self, name), hint, name))
        self._check_ranges()

    def _check_ranges(self) -> None:
        """Raise if a value of the right type makes no sense."""

    @classmethod
    def described(cls, name: str) -> str:
        """Return what a field of this type must be, for a message."""
        return "a table"

    @classmethod
    def of(cls, table: Any, where: str = "") -> Self:
        """Return what the table of a file describes; errors begin with `where`."""
        if not isinstance(table, Mapping):
            _refuse(where.rstrip(".") or "it", "a table", table)
        fields = _fields(cls)  # type: ignore[arg-type]  # a class can be hashed
        if not cls.tolerant and table.keys() - fields.keys():
            raise TreeringError(f"{where}{brief(min(table.keys() - fields.keys(), key=str))} is not known")
        for name, optional in fields.items():
            if name not in table and not optional:
                raise TreeringError(f"{where}{name} is missing")
        try:
            return cls(**{name: table[name] for name in fields if name in table})
        except TreeringError as error:
            raise TreeringError(f"{where}{error}") from None


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text; raise ValueError, which says why, if it has none or would cost much memory.

    Nesting, values and lengths of numbers are counted before anything is built of the text.
    """
    if sum(content.count(letter) for letter in (b",", b"[", b"{")) > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values")
    bare = _TEXT.sub(b"", content)
    if _LONG_NUMBER.search(bare):
        raise ValueError(f"a number in it has more than {LONGEST_NUMBER} characters")
    brackets = bare.translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):  # each turn removes the innermost lists and tables
        length, brackets = len(brackets), brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(brackets) == length:
            break
    if brackets:
        raise ValueError(f"its brackets do not match, or lie more than {DEEPEST} deep")
    try:
        return json.loads(content.decode("utf-8", "surrogatepass"))
    except RecursionError:  # the caller was deep in calls already
        raise ValueError("it is nested too deeply") from None
