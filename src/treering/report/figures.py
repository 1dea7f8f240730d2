"""Charts as PNG and SVG, drawn with matplotlib: the same bytes from the same results."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treering.report.charts import Bars, Chart, Line, Lines, Matrices, Matrix, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "cross": "x"}
KINDS = {"forgetting": "Forgetting", "confusion": "Confusion after the last step"}
LARGEST_WITH_TEXT = 20
"""Classes up to which a confusion matrix has numbers in its cells and names at its sides."""
FORMATS: dict[str, Any] = {"png": {"dpi": 200}, "svg": {"metadata": {"Date": None}}}
"""The endings of a figure's files, with what `savefig` is told."""
LOOK: Any = {
    "font.size": 9.5,
    "font.family": ["DejaVu Sans"],
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#444444",
    "axes.axisbelow": True,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a dollar in a class name is a dollar
    "svg.hashsalt": "treering",
}


def render(chart: Chart) -> dict[str, bytes]:
    """The chart as file contents, by ending."""
    from matplotlib import rc_context

    contents = {}
    with rc_context(LOOK), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box in place of a rare character
        if isinstance(chart, Lines):
            figure = _lines(chart)
        elif isinstance(chart, Bars):
            figure = _bars(chart)
        else:
            figure = _matrices(chart)
        for ending, options in FORMATS.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, bbox_inches="tight", pad_inches=0.15, **options)
            contents[ending] = buffer.getvalue()
    return contents


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _lines(chart: Lines) -> Figure:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    figure = _figure(7.4, 3.9)
    axes = figure.add_subplot()
    for line in chart.lines:
        _draw_line(axes, line)
    axes.set(title=chart.title, xlabel="classes learnt", ylabel="accuracy (%)", ylim=(0, 100))
    axes.margins(x=0.02)
    axes.grid(axis="y")
    steps = sorted({x for line in chart.lines for x in line.x})
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    few = len(steps) <= 10 and min(gaps, default=1) >= 0.06 * (steps[-1] - steps[0])  # else their labels overlap
    axes.xaxis.set_major_locator(FixedLocator(steps) if few else MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.legend(loc="center left", bbox_to_anchor=(1.03, 0.5), title="average without first step", alignment="left")
    return figure


def _draw_line(axes: Axes, line: Line) -> None:
    look = style(line.method)
    y = np.array([np.nan if value is None else value for value in line.y])
    label = f"{line.label}  {line.summary}"
    if len(line.x) == 1:
        marker = MARKERS[look.marker]
        axes.plot(line.x, y, marker, color=look.colour, markersize=8, markeredgewidth=2, label=label, zorder=4)
        return
    axes.plot(
        line.x,
        y,
        color=look.colour,
        linestyle=(0, look.dash) if look.dash else "-",
        linewidth=1.9,
        marker=MARKERS[look.marker],
        markersize=4.5,
        markevery=max(1, len(line.x) // 12),
        label=label,
    )
    if line.deviation:
        deviation = np.array([0 if value is None else value for value in line.deviation])
        axes.fill_between(line.x, y - deviation, y + deviation, color=look.colour, alpha=0.15, linewidth=0)


def _bars(chart: Bars) -> Figure:
    group_width = max(0.32 * len(chart.bars) + 0.3, 0.09 * max(map(len, chart.groups)) + 0.3)
    figure = _figure(max(3.2, 1.9 + group_width * len(chart.groups)), 3.4)
    axes = figure.add_subplot()
    width = 0.8 / len(chart.bars)
    for index, bar in enumerate(chart.bars):
        x = np.arange(len(chart.groups)) + (index - (len(chart.bars) - 1) / 2) * width
        heights = [value or 0 for value in bar.values]
        errors = [value or 0 for value in bar.deviation] if any(bar.deviation) else None
        axes.bar(
            x, heights, width * 0.88, color=style(bar.method).colour, label=bar.label, yerr=errors, ecolor="#444444"
        )
        for place, value, paper in zip(x, bar.values, bar.paper, strict=True):
            if paper is not None:
                half = width * 0.48
                axes.plot([place - half, place + half], [paper, paper], color="#111111", linewidth=1.6, zorder=4)
            if value is None:
                axes.text(place, 1.5, "not run", rotation=90, ha="center", va="bottom", color="#888888", fontsize=7.5)
    axes.plot([], [], color="#111111", linewidth=1.6, label="the paper")
    axes.set_xticks(range(len(chart.groups)), chart.groups)
    axes.tick_params(axis="x", length=0)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel="accuracy (%)", ylim=(0, 100))
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _matrices(chart: Matrices) -> Figure:
    columns = min(3, len(chart.matrices))
    rows = -(-len(chart.matrices) // columns)
    classes = max(len(matrix.rows) for matrix in chart.matrices)
    with_names = chart.kind == "confusion" and classes <= LARGEST_WITH_TEXT
    size = max(3.1, 0.42 * classes + 1.2) if with_names else 3.1
    figure = _figure(size * columns, size * rows + 0.4)
    figure.suptitle(f"{KINDS[chart.kind]}: {chart.title}", x=0.01, ha="left", fontweight="bold", fontsize=10.5)
    for index, matrix in enumerate(chart.matrices):
        _draw_matrix(figure.add_subplot(rows, columns, index + 1), matrix, chart.kind, with_names)
    if chart.kind == "forgetting":
        figure.colorbar(figure.axes[0].images[0], ax=figure.axes, shrink=0.7, aspect=30, pad=0.02, label="accuracy (%)")
    return figure


def _draw_matrix(axes: Axes, matrix: Matrix, kind: str, with_names: bool) -> None:
    values = np.array([[np.nan if value is None else value for value in row] for row in matrix.values], dtype=float)
    side = len(matrix.rows)
    confusion = kind == "confusion"
    # Shares of the true class: classes may have different numbers of test images.
    scale = np.maximum(values.sum(1, keepdims=True), 1) / 100 if confusion else 1.0
    shares = values / scale
    # The square root shows the few images off the diagonal.
    shown = np.sqrt(shares) * 10 if confusion else shares
    axes.imshow(
        shown, cmap="Blues" if confusion else "viridis", vmin=0, vmax=100, aspect="equal", interpolation="nearest"
    )
    axes.set_title(f"{matrix.label}\n{matrix.note}", fontsize=9, fontweight="normal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if confusion:
        axes.set(xlabel="taken for", ylabel="true class")
        colour, width = ("#999999", 0.6) if len(matrix.boundaries) < 20 else ("#d0d0d0", 0.25)
        for boundary in matrix.boundaries:
            axes.axhline(boundary - 0.5, color=colour, linewidth=width)
            axes.axvline(boundary - 0.5, color=colour, linewidth=width)
    else:
        axes.set(xlabel="after step", ylabel="classes of step")
    if with_names:
        axes.set_xticks(range(side), [_short(name) for name in matrix.columns], rotation=90)
        axes.set_yticks(range(side), [_short(name) for name in matrix.rows])
        for (row, column), count in np.ndenumerate(values):
            if count:
                colour = "white" if shown[row, column] > 60 else "#333333"
                axes.text(column, row, f"{count:.0f}", ha="center", va="center", fontsize=7, color=colour)
    elif confusion:
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        ticks = _ticks(side)
        axes.set_xticks(ticks, [str(tick + 1) for tick in ticks])
        axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])


def _short(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:17]}…"


def _ticks(side: int) -> Sequence[int]:
    """Places of about ten labels."""
    return range(0, side, max(1, round(side / 10)))
