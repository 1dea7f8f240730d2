"""How much memory is free, so that what would take more is refused before it begins."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from treering.errors import TreeringError

FACTS = Path("/proc/meminfo")
GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Where Linux tells which group of programs this one is in, and what each group may take."""


def found() -> int | None:
    """Return how many bytes this program can still take, swap included; None where the system does not tell."""
    try:
        facts = {name: 1024 * int(value) for name, value in re.findall(r"(\w+): +(\d+) kB", FACTS.read_text())}
        free = facts["MemAvailable"] + facts.get("SwapFree", 0)
    except (OSError, LookupError):
        return None
    with contextlib.suppress(OSError, ValueError, LookupError):  # it is in no group that has a bound
        own = GROUPS / re.findall(r"^0::/(.*)$", GROUP.read_text(), re.MULTILINE)[0]
        files = int(re.findall(r"^inactive_file (\d+)$", (own / "memory.stat").read_text(), re.MULTILINE)[0])
        bound, taken = (int((own / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, bound - taken + files)
    return max(free, 0)


def require(needed: int, what: str, instead: str) -> None:
    """Raise if `what` takes more memory than is free; the message says what to do `instead`."""
    free = found()
    if free is not None and needed > free:
        sizes = f"about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
        raise TreeringError(f"{what} would take {sizes}: close other programs, or {instead}")
