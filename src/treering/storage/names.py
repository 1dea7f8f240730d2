"""The names that treering gives to what it puts into a model folder; anything else there is not its own.

Names are relative to the model folder, with "/" between their parts. Every pattern is an allow-list for whole names, so
no name that fits one is absolute, leads out of the folder or holds a control character.
"""

from __future__ import annotations

import re
import unicodedata

from treering.errors import TreeringError
from treering.runtime import files

MANIFEST = "manifest.json"
LEARNING = ".learning"
LOCK, NOTE = ".lock", ".writer"
FIXED = (MANIFEST, LOCK, NOTE, LEARNING, "memory", "held-out", "previous")
"""The names in a model folder's top level that are the same for all versions."""
_TEMPORARY = re.escape(files.TEMPORARY) + "[0-9a-f]{32}(?:[0-9a-z_]{8})?"
_HASH = "[0-9a-f]{12}"
_CLASS = r"(?:memory|held-out)/[0-9]{4,9}-[\w-]{1,40}"
WEIGHTS = re.compile(rf"weights-{_HASH}\.safetensors")
HISTORY = re.compile(rf"history-{_HASH}\.jsonl")
IMAGE = re.compile(rf"{_CLASS}/[0-9]{{4,9}}-{_HASH}\.png")
"""The names of exemplars and held-out images."""
EARLIER = re.compile(r"previous/[0-9]{4,9}\.json")
"""The names of the manifests of earlier versions."""
TEMPORARY = re.compile(rf"(?:previous/|{_CLASS}/)?{_TEMPORARY}")
"""The names of unfinished files."""
CLASS = re.compile(_CLASS)
"""The names of the folders of a class's images."""
FOLDER = re.compile(rf"memory|held-out|previous|{_CLASS}")
_OURS = (WEIGHTS, HISTORY, IMAGE, EARLIER, TEMPORARY, FOLDER)


def fits(pattern: re.Pattern[str], name: str) -> bool:
    """Return whether a name is one of these, also where the file system lists its letters decomposed."""
    return pattern.fullmatch(name) is not None or pattern.fullmatch(unicodedata.normalize("NFC", name)) is not None


def is_ours(name: str) -> bool:
    """Return whether treering makes files or folders of this name."""
    return name in FIXED or any(fits(pattern, name) for pattern in _OURS)


def parts(name: str) -> list[str]:
    """Return the parts of a name that treering makes; raise for any other name, which is never touched."""
    if not is_ours(name):
        raise TreeringError(f"{name[:200]!r} is not a name that treering gives to a file: it is not touched")
    return name.split("/")


def comparable(name: str) -> str:
    """Return a name in the form that all file systems agree on: some ignore case, some compose letters differently."""
    return unicodedata.normalize("NFC", name).casefold()
