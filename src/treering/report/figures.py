"""Charts drawn with matplotlib: the same bytes from the same results, as PNG, as SVG and as SVG inside the page."""

from __future__ import annotations

import io
import itertools
import re
import textwrap
import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from treering.report.charts import Chart, Line, Lines, Matrices, Matrix, style
from treering.report.results import METHODS
from treering.report.tables import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

KINDS = {"forgetting": "Forgetting", "confusion": "Confusion after the last step"}
LARGEST_WITH_TEXT = 20
"""Classes up to which a confusion matrix has numbers in its cells and names at its sides."""
NEAR = 10.0
"""Points from the first line, on average, within which a line is drawn in the panel of differences."""
FORMATS: dict[str, Any] = {"png": {"dpi": 200}, "svg": {"metadata": {"Date": None}}}
"""The endings of a figure's files, with what `savefig` is told."""
INK, SOFT, RULE, PAPER = "#1d1f23", "#5b6068", "#e4e3de", "#ffffff"
VARIABLES = {INK: "var(--ink)", SOFT: "var(--soft)", RULE: "var(--line)", PAPER: "var(--paper)"}
VARIABLES |= {row["colour"]: f"var(--c{index})" for index, row in enumerate(METHODS.values())}
"""What the page calls the colours, which differ there on a dark ground."""
LIGHT, DARK = "#f7fbff", "#333333"
"""Numbers in the cells of a matrix, on any ground."""


def render(chart: Chart) -> dict[str, bytes]:
    """Return the chart as file contents, by ending."""
    from matplotlib import style as look

    contents = {}
    with look.context("treering.report.figures"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a box in place of a rare character
        if isinstance(chart, Lines):
            figure = _lines(chart)
        elif isinstance(chart, Grid):
            figure = _bars(chart)
        else:
            figure = _matrices(chart)
        for ending, options in FORMATS.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, bbox_inches="tight", pad_inches=0.15, **options)
            contents[ending] = buffer.getvalue()
    contents["svg"] = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b" ", contents["svg"])  # XML cannot have these
    return contents


def _lines(chart: Lines) -> Figure:
    """Draw accuracy from 0 to 100, and below it how far each near line is from the first one.

    All lines fall together by tens of points while rivals differ by one or two, so a narrower axis would still hide
    what tells them apart; their differences show it, and the whole axis above keeps them in proportion.
    """
    figure = _figure(4.7, 2.6)
    axes = figure.add_axes((0, 0, 1, 1))
    for index, line in enumerate(chart.lines):
        _draw_line(axes, line, line.y, index)
    axes.set(title=_wrapped(chart.title, 56), ylabel="accuracy (%)", ylim=(0, 100), xlim=_limits(chart))
    near = [line for line in chart.lines if line.lead and np.mean(np.abs(_numbers(line.lead))) <= NEAR]
    lowest, bottom = axes, 0.0
    if near:
        bottom = -0.56
        lowest = axes.inset_axes((0, bottom, 1, 0.42), sharex=axes, facecolor="none")
        lowest.axhline(0, color=style(chart.lines[0].look)["colour"], linewidth=1.9)
        for line in near:
            _draw_line(lowest, line, line.lead or [], chart.lines.index(line))
        reach = [value or 0.0 for line in near for value in line.lead or ()]
        lowest.set(ylabel="difference", ylim=(1.15 * min(-1.0, *reach), 1.15 * max(1.0, *reach)))
        title = f"points above or below {chart.lines[0].label}, over the class orders of both"
        lowest.set_title(title, fontsize=8.5, fontweight="normal", color=SOFT)
        axes.tick_params(labelbottom=False)
    for part in dict.fromkeys((axes, lowest)):
        part.grid(axis="y")
    lowest.set_xlabel("classes learnt")
    lowest.xaxis.set_major_locator(_locator(chart.steps))
    _add_hot_spot(axes, 0, bottom)
    columns = 1 if max(len(line.label + line.summary) for line in chart.lines) > 24 else 2
    place: Any = {"loc": "upper left", "bbox_to_anchor": (-0.03, bottom - 0.19)}
    legend = axes.legend(**place, ncols=columns, title="average without first step", alignment="left")
    for index, text in enumerate(legend.get_texts()):
        text.set_gid(f"key-{index}")
    return figure


def _limits(chart: Lines) -> tuple[float, float]:
    steps = chart.steps
    margin = 0.02 * (steps[-1] - steps[0]) or 0.5
    return steps[0] - margin, steps[-1] + margin


def _locator(steps: Sequence[int]) -> Locator:
    """Mark every step where the labels have room beside each other."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    gaps = [after - before for before, after in itertools.pairwise(steps)]
    few = len(steps) <= 10 and min(gaps, default=1) >= 0.06 * (steps[-1] - steps[0])
    return FixedLocator(steps) if few else MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _draw_line(axes: Axes, line: Line, values: Sequence[float | None], index: int) -> None:
    """Draw one line; its band and its marks share its number, by which the page hides and shows it."""
    look, y = style(line.look), _numbers(values)
    colour, dash, gid = look["colour"], tuple(map(int, look["dash"].split())), f"line-{index}"
    same: dict[str, Any] = {"color": colour, "marker": look["marker"], "label": f"{line.label}  {line.summary}"}
    if len(line.x) == 1:
        axes.plot(line.x, y, linestyle="", markersize=8, markeredgewidth=2, zorder=4, gid=gid, **same)
        return
    thin_out: dict[str, Any] = {"markersize": 4.5, "markevery": max(1, len(line.x) // 12)}
    axes.plot(line.x, y, linestyle=(0, dash) if dash else "-", linewidth=1.9, gid=gid, **thin_out, **same)
    if line.deviation and values is line.y:
        spread = np.nan_to_num(_numbers(line.deviation))
        axes.fill_between(line.x, y - spread, y + spread, color=colour, alpha=0.15, linewidth=0, gid=gid)


def _bars(grid: Grid) -> Figure:
    group_width = max(0.32 * len(grid.rows) + 0.3, 0.09 * max(map(len, grid.columns)) + 0.3)
    whole = max(3.4, group_width * len(grid.columns))
    figure = _figure(whole, 2.6)
    axes = figure.add_axes((0, 0, 1, 1))
    width = 0.8 / len(grid.rows)
    for index, row in enumerate(grid.rows):
        x = np.arange(len(row)) + (index - (len(grid.rows) - 1) / 2) * width
        heights = [cell.mean or 0.0 for cell in row]
        errors = [cell.deviation or 0.0 for cell in row] if any(cell.deviation for cell in row) else None
        label, colour = row[0].setting.method_name, style(row[0].setting.method)["colour"]
        axes.bar(x, heights, width * 0.88, color=colour, label=label, yerr=errors, ecolor=SOFT)
        for place, cell in zip(x, row, strict=True):
            if cell.paper is not None:
                axes.plot(
                    [place - width * 0.48, place + width * 0.48], [cell.paper] * 2, color=INK, linewidth=1.6, zorder=4
                )
            if cell.mean is None:
                axes.text(place, 1.5, "not run", rotation=90, ha="center", va="bottom", color=SOFT, fontsize=7.5)
    axes.plot([], [], color=INK, linewidth=1.6, label="the paper")
    axes.set_xticks(range(len(grid.columns)), grid.columns)
    axes.tick_params(axis="x", length=0)
    limits = -0.5, len(grid.columns) - 0.5
    axes.set(
        title=_wrapped(grid.title, 12 * whole),
        xlabel=grid.column_title,
        ylabel="accuracy (%)",
        ylim=(0, 100),
        xlim=limits,
    )
    axes.grid(axis="y")
    axes.legend(loc="upper left", bbox_to_anchor=(-0.04, -0.18), ncols=3)
    _add_hot_spot(axes, 0)
    return figure


def _matrices(chart: Matrices) -> Figure:
    columns = min(2, len(chart.matrices))
    rows = -(-len(chart.matrices) // columns)
    classes = max(len(matrix.names) for matrix in chart.matrices)
    with_names = chart.kind == "confusion" and classes <= LARGEST_WITH_TEXT
    size = max(3.2, 0.42 * classes + 1.2) if with_names else 3.2 if chart.kind == "confusion" else 2.8
    figure = _figure(size * columns, size * rows + 0.4)
    figure.set_layout_engine("constrained")
    title = f"{KINDS[chart.kind]}: {chart.title}"
    figure.suptitle(_wrapped(title, 66), x=0.01, ha="left", fontweight="bold", fontsize=10.5)
    for index, matrix in enumerate(chart.matrices):
        axes = figure.add_subplot(rows, columns, index + 1)
        _draw_matrix(axes, matrix, chart.kind, with_names)
        _add_hot_spot(axes, index)
    if chart.kind == "forgetting":
        figure.colorbar(figure.axes[0].images[0], ax=figure.axes, shrink=0.7, aspect=30, pad=0.02, label="accuracy (%)")
    return figure


def _draw_matrix(axes: Axes, matrix: Matrix, kind: str, with_names: bool) -> None:
    values = np.array([_numbers(row) for row in matrix.values])
    side = len(matrix.names)
    axes.set_title(f"{matrix.label}\n{matrix.note}", fontsize=9, fontweight="normal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if kind == "confusion":
        # Shares of the true class, as classes may have different numbers of test images; the square root shows the
        # few images off the diagonal.
        shown = 10 * np.sqrt(100 * values / np.maximum(values.sum(1, keepdims=True), 1))
        axes.set(xlabel="taken for", ylabel="true class")
        width = 0.6 if len(matrix.boundaries) < 20 else 0.25
        edges, ends = np.array(matrix.boundaries) - 0.5, (-0.5, side - 0.5)
        axes.hlines(edges, *ends, color=SOFT, linewidth=width, alpha=0.35)
        axes.vlines(edges, *ends, color=SOFT, linewidth=width, alpha=0.35)
        names = [name if len(name) <= 18 else f"{name[:17]}…" for name in matrix.names]
        ticks = range(side) if with_names else range(0)
        axes.set_xticks(ticks, names if with_names else [], rotation=90)
    else:
        shown, names = values, [name.removeprefix("step ") for name in matrix.names]
        axes.set(xlabel="after step", ylabel="classes of step")
        ticks = range(0, side, max(1, round(side / 10)))
        axes.set_xticks(ticks, [names[tick] for tick in ticks])
    axes.set_yticks(ticks, [names[tick] for tick in ticks])
    axes.imshow(shown, cmap=_colours(kind), vmin=0, vmax=100, aspect="equal", interpolation="none")
    if with_names or (kind == "forgetting" and side <= 10):
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value) and (value or kind == "forgetting"):
                on_dark = (shown[row, column] > 60) == (kind == "confusion")
                colour = LIGHT if on_dark else DARK
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)


def _colours(kind: str) -> Colormap | str:
    """Return a colour map; that of confusion is clear where nothing is confused, on a dark page too."""
    from matplotlib.colors import LinearSegmentedColormap

    if kind == "forgetting":
        return "viridis"
    blue = (0.15, 0.47, 0.75)
    return LinearSegmentedColormap.from_list("clear to blue", [(*blue, 0.03), (*blue, 1.0)])


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _wrapped(title: str, width: float) -> str:
    return "\n".join(textwrap.wrap(title, int(width)))


# Inside the page


def _add_hot_spot(axes: Axes, index: int, bottom: float = 0.0) -> None:
    """Add the area in which the page tells the values of what is pointed at."""
    from matplotlib.patches import Rectangle

    look: Any = {"clip_on": False, "fill": False, "linewidth": 0, "gid": f"hot-{index}"}
    axes.add_patch(Rectangle((0, bottom), 1, 1 - bottom, transform=axes.transAxes, **look))


def _hot_spot(chart: Chart, index: int) -> dict[str, str]:
    """Say where the columns of a hot spot end, and what is in a matrix; other values are in tables of the page."""
    if isinstance(chart, Matrices):
        matrix = chart.matrices[index]
        rows = (",".join(f"{value:g}" if value else "" for value in row) for row in matrix.values)
        title, edges = f"{KINDS[chart.kind]}, {matrix.label}", [float(edge) for edge in range(len(matrix.names) + 1)]
        data = {"data-kind": chart.kind, "data-names": "\n".join(matrix.names), "data-cells": ";".join(rows)}
    elif isinstance(chart, Grid):
        title, edges, data = chart.title, [float(edge) for edge in range(len(chart.columns) + 1)], {}
    else:
        left, right = _limits(chart)
        between = [(before + after) / 2 for before, after in itertools.pairwise(chart.steps)]
        title, edges, data = chart.title, [left, *between, right], {}
    fractions = " ".join(f"{(edge - edges[0]) / (edges[-1] - edges[0]):.4g}" for edge in edges)
    return {"aria-label": f"{title}. Arrow keys read the values.", "data-x": fractions, **data}


def inline(chart: Chart, svg: bytes) -> str:
    """Return the SVG for the page: with names of its own, the page's colours, and hot spots that tell the values."""
    picture = svg.decode()
    used = set(re.findall(r'(?:"#|url\(#)([^)"]+)', picture))

    def for_page(tag: re.Match[str]) -> str:
        kind, _, index = tag[2].partition("-")
        if kind == "hot":
            data = "".join(f' {key}="{escape(value)}"' for key, value in _hot_spot(chart, int(index)).items())
            return f'{tag[1]} class="hot" tabindex="0" role="img"{data}'
        if kind == "key":
            return f'{tag[1]} data-key="{index}" tabindex="0" role="button" aria-pressed="true"'
        if kind == "line":
            return f'{tag[1]} data-line="{index}"'
        return f'{tag[1]} id="{chart.name}.{tag[2]}"' if tag[2] in used else tag[1]

    def in_tag(tag: re.Match[str]) -> str:  # the words between the tags stay as they are
        text = re.sub(r'href="#|url\(#', lambda found: f"{found[0]}{chart.name}.", tag[0]).replace("xlink:", "")
        text = re.sub(r"#[0-9a-f]{6}\b", lambda colour: VARIABLES.get(colour[0], colour[0]), text)
        text = re.sub(r""" transform="rotate\(-0 .*?"| font-family: '.*?';""", "", text)
        text = re.sub(r"(\d+\.\d\d)\d+(?=[ \n\"])", r"\1", text).replace("\n", "")
        return re.sub(r'(<\w+(?: .*?)?) id="(.*?)"', for_page, text)

    head, _, body = picture.partition("<svg")[2].partition(">")
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r">\s+<", "><", re.sub(r"<[^>]*>", in_tag, body))
    attributes = dict(re.findall(r'(\w+)="(.*?)"', head))
    width = float(attributes["width"].removesuffix("pt"))
    size = f"min-width: {0.68 * width:.0f}pt; max-width: {1.3 * width:.0f}pt"  # so that its text can be read
    return f'<svg viewBox="{attributes["viewBox"]}" style="{size}">{body}'
