"""The names that treering gives to what it puts into a model folder; anything else there is not its own."""

from __future__ import annotations

import re

from treering.runtime import files
from treering.storage import manifest as manifests

FIXED = (manifests.NAME, ".lock", ".writer", ".learning", "memory", "held-out", "previous")
"""The names in a model folder's top level that are the same for all versions."""
VERSIONED = re.compile(
    rf"{re.escape(files.TEMPORARY)}.*|weights-[0-9a-f]{{12}}\.safetensors|history-[0-9a-f]{{12}}\.jsonl"
)
"""The names in the top level of files that belong to certain versions."""
EXEMPLAR = re.compile(rf"{re.escape(files.TEMPORARY)}.*|\d{{4,}}-[0-9a-f]{{12}}\.png")
"""The names of files in a class's folder of exemplars."""


def is_ours(name: str) -> bool:
    """Return whether something in a model folder's top level is treering's."""
    return name in FIXED or VERSIONED.fullmatch(name) is not None
