"""The commit of the code that runs, which results name."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path


def current_commit() -> str:
    """Return the commit of the code that runs: TREERING_COMMIT where it is set, else that of its git checkout.

    A "+" follows where files of the package have been changed since; the commit of an installed package is "unknown",
    even below another project.
    """
    return os.environ.get("TREERING_COMMIT") or _commit_of(Path(__file__).parents[1])


@functools.cache  # the commit of the code as it was loaded, whatever is committed later
def _commit_of(package: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=environment)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
