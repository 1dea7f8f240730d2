"""How names, numbers and times are written for people."""

from __future__ import annotations

from pathlib import Path


def shown(name: str | Path) -> str:
    """Return a name as it can be printed in one line, whatever bytes it has."""
    text = str(name).encode("utf-8", "replace").decode()
    return "".join(letter if letter >= " " and letter != "\x7f" else " " for letter in text)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return "1 image" or "3 images"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a time such as "40 s", "12 min" or "2.5 h"."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:,.1f} h"
