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
from typing import Any, ClassVar, Literal, Self

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


def checked(value: Any, hint: Any, name: str) -> Any:
    """Return `value` as one of type `hint`, or raise an error that names it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        return checked(value, next((one for one in arguments if _suits(value, one)), arguments[0]), name)
    if origin is tuple:
        require(isinstance(value, list | tuple), f"{name} must be a list, not {brief(value)}")
        numbered = arguments[0] not in KINDS
        return tuple(
            checked(item, arguments[0], f"{name}[{index}]" if numbered else name) for index, item in enumerate(value)
        )
    if origin is dict:
        require(isinstance(value, Mapping), f"{name} must be a table, not {brief(value)}")
        return {
            checked(key, arguments[0], f"a name in {name}"): checked(item, arguments[1], f"{name}.{key}")
            for key, item in value.items()
        }
    if origin is Literal:
        require(value in arguments, f"{name} must be one of {', '.join(map(repr, arguments))}, not {brief(value)}")
    elif issubclass(hint, Checked):
        if isinstance(value, Mapping):
            return hint.of(value, f"{name}.")
        require(isinstance(value, hint), f"{name} must be {hint.described(name)}, not {brief(value)}")
    elif hint in (int, float) and isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of a whole number that is larger than every float
            if abs(value) < LARGEST if hint is int else math.isfinite(value):
                return hint(value)
        raise TreeringError(f"{name} must be a finite number, not {brief(value)}")
    else:
        require(type(value) is hint, f"{name} must be {KINDS[hint]}, not {brief(value)}")
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
        require(isinstance(table, Mapping), f"{where.rstrip('.') or 'it'} must be a table, not {brief(table)}")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in table:
            require(cls.tolerant or name in fields, f"{where}{brief(name)} is not known")
        for name, field in fields.items():
            optional = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
            require(optional or name in table, f"{where}{name} is missing")
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
