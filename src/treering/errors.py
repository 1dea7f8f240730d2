"""The one exception for everything a user can put right: its message says what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from treering.words import MESSAGE, shown

Entry = TypeVar("Entry")


class TreeringError(ValueError):
    """Bad input, a bad setting or an unusable folder. The command line prints it as one line and exits with code 2.

    Names from files get into messages, so a message is always kept as it can be printed.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(shown(message, MESSAGE))


class UnjudgedError(TreeringError):
    """What keeps treering from looking at a thing here and now, and does not mean that the thing is damaged."""


MOST_COMPARED, LONGEST_COMPARED = 2000, 60
"""The most names that a wrong one is compared with, and their most letters: more would take seconds."""
MOST_LISTED = 50
"""The most names that an error lists; the rest are counted."""
OUT_OF_MEMORY = "out of memory: close other programs and try again"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, which Python, torch and the libraries below it report in many ways."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in said for words in ("out of memory", "not enough memory", "allocate memory"))
    )


def first_line(error: Exception) -> str:
    """Return the first line of another library's error or, if it has no message, its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def look_up(table: Mapping[str, Entry], name: str, what: str) -> Entry:
    """Return `table[name]`, or raise an error that says which valid `what` is spelt most like `name`."""
    if name not in table:
        raise TreeringError(f"unknown {what} {name!r}; {nearest(name, table)}")
    return table[name]


def nearest(name: str, valid: Iterable[str], prefix: str = "") -> str:
    """Return a hint for a wrong name: the nearest valid name or, if none is near, the first of them."""
    names = list(valid)
    alike = [valid for valid in names[:MOST_COMPARED] if len(valid) <= LONGEST_COMPARED]
    near = difflib.get_close_matches(name[:LONGEST_COMPARED], alike, n=1, cutoff=0.5)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return f"known: {', '.join(prefix + valid for valid in names[:MOST_LISTED])}{more}"
