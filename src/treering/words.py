"""How names, messages, numbers and times are written for people."""

from __future__ import annotations

import logging
import re
import unicodedata

NAME, MESSAGE = 200, 2000
"""The most letters that are shown of a name, and of a message."""
VISIBLE = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
"""Signs of Arabic, Syriac and Kaithi numbers, which are letters to the eye and format characters to Unicode."""
UNSHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The Unicode categories of what steers a terminal, turns the direction of writing, or has no width."""
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""What Unicode has programs not draw (Default_Ignorable_Code_Point), besides what is of those categories."""
IN_COLOUR = "\ufe0f"
"""After a sign, this has it drawn as an emoji."""


def shown(name: object, most: int = NAME) -> str:
    r"""Return a name or message as it can be printed in one line, whatever is in it.

    What would steer a terminal, change the order of letters or not be seen is written as in Python: `\x1b`, `\u202e`.
    Of a text that is too long, the middle is left out. What was written so already stays as it is.
    """
    text = _cut(str(name), most)
    if text.isascii() and text.isprintable():
        return text
    pairs = zip(" " + text, text, strict=False)  # each letter after the one before it
    return _cut("".join(_escaped(letter) if _is_unshown(letter, before) else letter for before, letter in pairs), most)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[: most // 2] + "…" + text[len(text) - (most - 1 - most // 2) :]


def _is_unshown(letter: str, before: str) -> bool:
    if letter == IN_COLOUR and unicodedata.category(before) == "So":
        return False
    return (unicodedata.category(letter) in UNSHOWN and letter not in VISIBLE) or bool(INVISIBLE.match(letter))


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def logger(name: str) -> logging.Logger:
    """Return the logger of a module, which writes the names in its messages as `shown` does."""
    found = logging.getLogger(name)
    found.addFilter(_show_names)
    return found


def _show_names(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(told if isinstance(told, int | float) else shown(told, MESSAGE) for told in record.args)
    return True


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return "1 image" or "3 images"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """Return a time such as "40 s", "12 min" or "2.5 h"."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:,.1f} h"
