"""How much memory is free, so that what would take more is refused before it begins."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from treering.errors import TreeringError

FACTS = Path("/proc/meminfo")
GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Where Linux tells which group of programs this one is in, and what each group may take."""

GIVEN_UP = ("inactive_file", "active_file")
"""What of a group's memory is a copy of files."""


class TooLittleMemoryError(TreeringError):
    """Something takes more memory than is free."""


def found() -> int | None:
    """Return how many bytes this program can still take, swap included; None where the system does not tell."""
    try:
        facts = {name: 1024 * int(value) for name, value in re.findall(r"(\w+): +(\d+) kB", FACTS.read_text())}
        free = facts["MemAvailable"] + facts.get("SwapFree", 0)
    except (OSError, LookupError):
        return None
    with contextlib.suppress(OSError, LookupError):  # it is in no group
        own = GROUPS / re.findall(r"^0::/(.*)$", GROUP.read_text(), re.MULTILINE)[0]
        for group in (own, *own.parents):
            if group == GROUPS:
                break
            with contextlib.suppress(OSError, ValueError, LookupError):  # it has no bound
                free = min(free, _free_in(group))
    return max(free, 0)


def _free_in(group: Path) -> int:
    """Return how much a group of programs can still take; what it holds of files is given up when it is needed."""
    held = dict(re.findall(r"^(\w+) (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE))
    bound, taken = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    return bound - taken + sum(int(held[name]) for name in GIVEN_UP)


def require(needed: int, what: str, instead: str) -> None:
    """Raise if `what` takes more memory than is free; the message says what to do `instead`."""
    free = found()
    if free is not None and needed > free:
        sizes = f"about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
        raise TooLittleMemoryError(f"{what} would take {sizes}: close other programs, or {instead}")
