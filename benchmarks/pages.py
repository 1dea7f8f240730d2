"""Parts of pages that programs write. They stand between two lines, `<!-- NAME: … -->` and `<!-- end of NAME -->`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
README, DOCS = PROJECT / "README.md", PROJECT / "docs"
PHOTOS, SERVING, EXPERIMENTS, RESULTS = (
    DOCS / f"{name}.md" for name in ("photos", "serving", "experiments", "results")
)


def parts(page: str, name: str) -> list[str]:
    """Return what stands in the parts of the page that are called `name`."""
    return [found[2] for found in _part(name).finditer(page)]


def rewritten(page: str, name: str, rewrite: Callable[[str], str]) -> str:
    """Return the page with every part called `name` replaced by what `rewrite` makes of it."""
    if not parts(page, name):
        raise ValueError(f"the page has no part {name}: write the lines <!-- {name}: … --> and <!-- end of {name} -->")
    return _part(name).sub(lambda found: found[1] + rewrite(found[2]) + found[3], page)


def _part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {re.escape(name)}: [^\n]*-->\n)(.*?)(<!-- end of {re.escape(name)} -->)", re.DOTALL)
