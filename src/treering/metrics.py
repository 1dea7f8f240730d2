"""What is reported of a run, from the accuracy after each step."""

from __future__ import annotations

from collections.abc import Sequence


def average(accuracy: Sequence[float]) -> float:
    """Mean over all steps, the first included, as half of the literature reports it."""
    return sum(accuracy) / len(accuracy)


def average_without_first(accuracy: Sequence[float]) -> float | None:
    """Average incremental accuracy as the paper reports it [5]: the first step is not incremental."""
    return average(accuracy[1:]) if len(accuracy) > 1 else None
