"""The accuracy of each class after each step since it came, in letters for a terminal and as one picture."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treering.core.metrics import interval
from treering.errors import TreeringError
from treering.evaluation import require_drawing, short_name
from treering.photos.outcome import Score, has_fallen
from treering.runtime import files

BLOCKS = "▁▂▃▄▅▆▇█"
"""One letter for each eighth of the accuracy."""
NOT_MEASURED = "·"
MOST_ROWS = 200
"""The most classes in the picture: the page is then about 9,000 pixels tall."""
MOST_STEPS = 200
"""The most steps in the picture, the last ones."""
ROW = 0.32
"""The height of a class in the picture, in inches."""


@dataclass(frozen=True)
class Course:
    """What the steps since a class came have made of its accuracy."""

    name: str
    first: int
    """The number of the step that brought the class."""
    counts: dict[int, tuple[int, int]]
    """By the number of a step that measured the class: how many of its images were right and how many there were."""
    steps: int
    """The number of the last step."""

    def letters(self, begin: int = 1) -> str:
        """Return a letter for each step from `begin` on, as tall as the accuracy, and a space before the class came."""
        steps = range(begin, self.steps + 1)
        return "".join(self._letter(number) if number >= self.first else " " for number in steps)

    def _letter(self, step: int) -> str:
        if step not in self.counts:
            return NOT_MEASURED
        right, images = self.counts[step]
        return BLOCKS[min(right * 8 // images, 7)]

    def last(self) -> tuple[int, int] | None:
        """Return how many images were right, and how many there were, when the class was measured last."""
        return self.counts[max(self.counts)] if self.counts else None

    def fall(self) -> tuple[float, float] | None:
        """Return the best accuracy and the last one, if the class has lost more than chance explains."""
        measured = [self.counts[step] for step in sorted(self.counts)]
        if len(measured) < 2:
            return None
        best, last = Score(*max(measured[:-1], key=lambda count: count[0] / count[1])), Score(*measured[-1])
        return (best.percent, last.percent) if has_fallen(best, last) else None


def courses(steps: Sequence[Mapping[str, Any]]) -> list[Course]:
    """Return the course of each class that a step of this history has measured, in the order in which they came."""
    measured: dict[str, dict[int, tuple[int, int]]] = {}
    for number, step in enumerate(steps, 1):
        for name, (right, images) in ((step.get("accuracy") or {}).get("classes") or {}).items():
            if images:
                measured.setdefault(name, {})[number] = right, images
    first: dict[str, int] = {}
    for number, step in enumerate(steps, 1):
        for name in map(str, step["new_classes"]):
            first.setdefault(name, number)
    found = []
    for name, came in first.items():
        counts = {number: count for number, count in measured.get(name, {}).items() if number >= came}
        if counts:
            found.append(Course(name, came, counts, len(steps)))
    return found


def draw(found: Sequence[Course], picture: Path) -> None:
    """Draw a row for each class: its accuracy step by step, with the range that chance leaves it, and its counts."""
    require_drawing(picture)
    if not found:
        raise TreeringError("no step of this model has measured its classes one by one: nothing to draw yet")
    from matplotlib.figure import Figure

    rows = found[:MOST_ROWS]
    last = rows[0].steps
    begin = max(1, last - MOST_STEPS + 1)
    figure = Figure(figsize=(8.0, 1.1 + ROW * len(rows)), layout="constrained")
    axes = figure.subplots()
    for row, course in enumerate(rows):
        _draw_row(axes, course, -row, begin)
    names = [short_name(course.name) for course in rows]
    axes.set_yticks([0.4 - row for row in range(len(rows))], names, size=9)
    axes.set(xlim=(begin - 0.5, last + 0.5), ylim=(0.9 - len(rows), 1.0), xlabel="step")
    axes.set_xticks(range(begin, last + 1, -(-(last + 1 - begin) // 20)))
    more = f", the first {MOST_ROWS} of {len(found)}" if len(found) > MOST_ROWS else ""
    more += f", the last {MOST_STEPS} of {last:,} steps" if begin > 1 else ""
    axes.set_title(f"Accuracy of each class, from 0 to 100 %{more}; those that fell are red", size=10, loc="left")
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks
        files.write_picture(picture, lambda stream: figure.savefig(stream, dpi=140, format="png"))


def _draw_row(axes: Any, course: Course, base: int, begin: int) -> None:
    """Draw a class between the heights `base` and `base` + 0.8, in the steps from `begin` on."""
    colour = "tab:red" if course.fall() else "tab:blue"
    axes.axhspan(base, base + 0.8, color="0.96", zorder=0)
    steps = np.arange(max(begin, course.first), course.steps + 1)
    counts = [course.counts.get(int(step)) for step in steps]
    heights = np.array([100 * count[0] / count[1] if count else np.nan for count in counts])
    ranges = np.array([interval(100 * c[0] / c[1], c[1]) if c else (np.nan, np.nan) for c in counts]).T
    low, high = base + 0.8 * ranges / 100
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.vlines(steps, low, high, color=colour, alpha=0.35, linewidth=1.5)
    axes.plot(steps, base + 0.8 * heights / 100, color=colour, marker="o", markersize=3, linewidth=1.2)
    right, images = course.last() or (0, 0)
    few, many = interval(100 * right / images, images)
    said = f"{right} of {images} ({few:.0f} to {many:.0f} %)"
    axes.annotate(said, (1.01, base + 0.4), xycoords=("axes fraction", "data"), va="center", size=9, color=colour)
