"""What the figures show, as plain data made from the results: curves, bars and matrices; `figures.py` draws them."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from treering.core import metrics
from treering.report import tables, text
from treering.report.results import METHODS, Result, Setting, by_setting, known_classes
from treering.report.tables import Cell, Grid, Metric
from treering.report.text import Table

Values = list[float | None]
"""Rounded as they are shown; None where nothing was measured."""


@dataclass(frozen=True)
class Line:
    """One method's accuracy after each step."""

    label: str
    look: str
    """The key of its colour, dash and marker."""
    x: list[int]
    """Classes known."""
    y: Values
    deviation: Values | None
    """Over the class orders, of two or more."""
    summary: str
    """The average without the first step, or what stands for it."""
    lead: Values | None = None
    """Less the first line, over the class orders that both have."""


@dataclass(frozen=True)
class Lines:
    """Accuracy against the number of classes, one line a method."""

    name: str
    title: str
    lines: list[Line]

    @property
    def steps(self) -> list[int]:
        """The numbers of classes at which there are values."""
        return sorted({x for line in self.lines for x in line.x})


@dataclass(frozen=True)
class Matrix:
    """A heat map of one method."""

    label: str
    names: list[str]
    """Of the rows and of the columns."""
    values: list[Values]
    boundaries: list[int]
    """Cells after which a new step begins, in both directions."""
    note: str


@dataclass(frozen=True)
class Matrices:
    """The same heat map for several methods."""

    name: str
    title: str
    kind: str
    """Either "forgetting" or "confusion"."""
    matrices: list[Matrix]


Chart = Lines | Grid | Matrices
"""A grid is drawn as bars, with the paper's numbers as marks on them."""
PARTS = ("accuracy", "ablation", "budgets", "selection", "gem", "similar", "own", "forgetting", "confusion")
"""The parts of the report that have charts."""
BARS = ("ablation", "budgets", "selection", "gem")
"""The parts of which the paper's tables are drawn as bars."""
MOST_CONFUSED = 5
"""Pairs of classes that are named under each confusion matrix."""
LONGEST_NAME = 150
"""The most letters of a group's name in the names of files, of which file systems take 255."""
MOST_IN_MATRIX = 200
"""The most steps in a heat map, whose cells would be too small to be seen and too many to be drawn otherwise."""
TASK_NOT_KNOWN = ", the task not known"
"""GEM's charts say whether the task of an image is known."""


@dataclass(frozen=True)
class Group:
    """Everything that ran on the same steps with the same memory, or with none: what one plot compares."""

    setting: Setting
    """Its method says nothing."""
    cells: list[Cell]

    @property
    def title(self) -> str:
        (kind, size), rule = self.setting.memory, self.setting.selection
        memory = f"{size} exemplars{' per class' * (kind == 'per-class')}" if size else "no memory"
        selection = f", {rule} selection" if rule not in ("", "herding") else ""
        return f"{self.setting.dataset_name}, {self.setting.steps_name}, {memory}{selection}"

    @property
    def name(self) -> str:
        """For files: a name that every file system bears."""
        (kind, size), rule = self.setting.memory, self.setting.selection
        parts = (self.setting.dataset, self.setting.steps.replace(" ", ""), f"{kind}{size}", rule)
        name = "-".join(part for part in parts if part not in ("", "herding"))
        plain = re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip("-.") or "unnamed"
        if len(plain) <= LONGEST_NAME:
            return plain
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{plain[: LONGEST_NAME - 13]}-{digest[:12]}"

    @property
    def part(self) -> str:
        """The part of the report that its curves belong to."""
        setting = self.setting
        if not tables.in_paper(setting.dataset):
            return "own"
        if setting.selection not in ("", "herding"):
            return "selection"
        if setting.memory[0] == "per-class":
            return "budgets"
        place = setting.dataset, setting.steps, setting.memory_name
        rows = {(row["dataset"], row["classes_per_step"], row["memory"]): row["table"] for row in tables.paper_rows()}
        return rows[place] if rows.get(place) in ("gem", "similar") else "accuracy"


def look_of(setting: Setting) -> str:
    """Return the key of a method's look; other selection rules, and changed settings, have their own."""
    others = [setting.selection if setting.selection != "herding" else "", str(setting.variant or "")]
    return "/".join(part for part in (setting.method, *others) if part)


def style(look: str) -> dict[str, str]:
    """Return a method's colour, dash and marker, the same in every report; methods of one's own share three."""
    return METHODS.get(look) or METHODS[f"own/{zlib.crc32(look.encode()) % 3}"]


def every_chart(results: Sequence[Result]) -> dict[str, list[Chart]]:
    """Return all there is to draw, by the part of the report it belongs to; no two names are alike in any case."""
    parts: dict[str, list[Chart]] = {part: [] for part in PARTS}
    for grid in tables.grids(results):
        if grid.section in BARS and grid.measured:
            parts[grid.section].append(grid)
    names: set[str] = set()
    for part, chart in _curves_and_matrices(groups(results)):
        if chart not in parts[part]:
            tried = (f"{chart.name}-{number}" if number else chart.name for number in itertools.count())
            chart = replace(chart, name=next(name for name in tried if name.lower() not in names))
            names.add(chart.name.lower())
            parts[part].append(chart)
    return parts


def _curves_and_matrices(every: Sequence[Group]) -> Iterator[tuple[str, Lines | Matrices]]:
    largest: dict[tuple[str, str], Group] = {}
    for group in every:
        parts = [cell for cell in group.cells if cell.setting.parts]
        whole = [cell for cell in group.cells if cell not in parts]
        if group.part == "selection":
            yield "selection", _selection_curves(group, every)
        elif whole:
            title = group.title + TASK_NOT_KNOWN * (group.part == "gem")
            yield group.part, _curves(f"accuracy-{group.name}", title, whole)
        if parts:
            compared = tables.same_orders([cell for cell in whole if cell.setting.method == "eeil"] + parts)
            chart = _curves(f"ablation-{group.name}", f"{group.title}, parts of EEIL", compared)
            yield "own" if group.part == "own" else "ablation", chart
        if group.setting == Setting("cifar100", 5, "", ("total", 2000), "herding"):  # as in appendix B
            compared = [cell for cell in whole if cell.setting.method in ("eeil", "gem", "finetune")]
            if "gem" in {cell.setting.method for cell in compared}:
                yield "gem", _curves("gem-unknown-task", group.title + TASK_NOT_KNOWN, compared)
        steps = group.setting.dataset, group.setting.steps
        largest[steps] = max(largest.get(steps, group), group, key=lambda group: len(group.cells))
    for group in largest.values():
        title = f"{group.setting.dataset_name}, {group.setting.steps_name}"
        for kind, matrix_of in (("forgetting", _forgetting), ("confusion", _confusion)):
            matrices = [matrix for cell in group.cells if (matrix := matrix_of(cell))]
            if matrices:
                yield kind, Matrices(f"{kind}-{group.name}", title, kind, matrices)


def groups(results: Sequence[Result]) -> list[Group]:
    """Put together what is comparable; methods without a memory, and the upper bound, join every group they fit."""
    runs = by_setting(results)
    members: dict[Setting, list[Cell]] = {}
    # Those with exemplars open the groups; then come GEM, which selects none, and those without memory.
    for setting in sorted(runs, key=lambda setting: (not setting.selection, not setting.memory[1], setting)):
        fitting = [group for group in members if tables.is_comparable(setting, group)]
        if setting.method == "joint":
            fitting = [group for group in members if _is_bound(runs, setting, group)]
        if setting.selection or not fitting:
            fitting = [replace(setting, method="", variant=0)]
        for group in fitting:
            members.setdefault(group, []).append(Cell(setting, tuple(runs[setting])))
    return [Group(group, sorted(members[group], key=lambda cell: cell.setting.method_key)) for group in sorted(members)]


def _is_bound(runs: dict[Setting, list[Result]], joint: Setting, group: Setting) -> bool:
    """Tell whether this run of the upper bound, in one step or in the group's, is the best there is for the group."""
    if joint.dataset != group.dataset:
        return False
    same_steps = any(other.method == "joint" and tables.is_comparable(other, group) for other in runs)
    return joint.classes_per_step == group.classes_per_step or (not same_steps and len(runs[joint][0]["accuracy"]) == 1)


def _selection_curves(group: Group, every: Sequence[Group]) -> Lines:
    """Compare every selection rule that was tried on the steps and with the memory of this group."""
    shared = replace(group, setting=replace(group.setting, selection=""))
    same = [other for other in every if replace(other.setting, selection="") == shared.setting]
    cells = [cell for other in same for cell in other.cells if cell.setting.selection]
    varied = {cell.setting.method for cell in cells if cell.setting.selection != "herding"}
    compared = tables.same_orders([cell for cell in cells if cell.setting.method in varied])
    compared.sort(key=lambda cell: (cell.setting.method_key, cell.setting.selection != "herding"))
    return _curves(f"selection-{shared.name}", f"{shared.title}, selection rules", compared, with_rule=True)


def _label(setting: Setting, with_rule: bool = False) -> str:
    note = "" if setting.memory[1] else f" ({setting.note})"
    return setting.method_name + note + (f", {setting.selection}" if with_rule else "")


def _curves(name: str, title: str, cells: Sequence[Cell], with_rule: bool = False) -> Lines:
    lines = [replace(_line(cell, cells[0]), label=_label(cell.setting, with_rule)) for cell in cells]
    return Lines(name, title, lines)


def _line(cell: Cell, first: Cell) -> Line:
    """Return mean and deviation over the class orders after each step; the upper bound is one point at the end."""
    x = known_classes(cell.runs[0])
    runs = [run for run in cell.runs if known_classes(run) == x]  # a dataset of one's own may have grown meanwhile
    steps, summary = range(len(x)), text.with_deviation(cell.mean, cell.deviation)
    comparable = cell is not first and x == known_classes(first.runs[0])
    if cell.setting.method == "joint":
        x, steps, summary = x[-1:], steps[-1:], ""
    over_orders = [tables.over_orders(runs, _accuracy_after(step)) for step in steps]
    y = [_shown(mean) for mean, _ in over_orders]
    deviation = [_shown(deviation) for _, deviation in over_orders] if over_orders[0][1] is not None else None
    lead = [_lead(runs, first.runs, _accuracy_after(step)) for step in steps] if comparable else None
    return Line("", look_of(cell.setting), x, y, deviation, summary or f"{y[-1]:.1f} after the last step", lead)


def _lead(ours: Sequence[Result], theirs: Sequence[Result], metric: Metric) -> float | None:
    """Return the mean difference over the class orders that both have."""
    one, other = tables.by_order(ours, metric), tables.by_order(theirs, metric)
    differences = [one[order] - other[order] for order in one if order in other]
    return _shown(metrics.average(differences)) if differences else None


def _accuracy_after(step: int) -> Metric:
    return lambda run: run["accuracy"][step]


def _shown(value: float | None) -> float | None:
    """Round to one decimal, so that charts and tables agree."""
    return None if value is None else round(value, 1)


def _forgetting(cell: Cell) -> Matrix | None:
    """Return the accuracy on the classes that each step brought, after that step and every later one.

    Of very many steps, only the first and every n-th of the others count.
    """
    runs = [run for run in cell.runs if run.get("class_accuracy") and len(run["accuracy"]) > 1]
    if not runs:
        return None
    ends = known_classes(runs[0])
    runs = [run for run in runs if known_classes(run) == ends]
    steps = sorted({0, *range(len(ends) - 1, -1, -math.ceil(len(ends) / MOST_IN_MATRIX))})
    spans = itertools.pairwise([0, *(ends[step] for step in steps)])
    values = [[_shown(tables.over_orders(runs, _share(*span, step))[0]) for step in steps] for span in spans]
    lost = tables.over_orders(runs, lambda run: _mean_of_known([_lost_in(run)]))[0]
    note = "" if lost is None else f"mean forgetting {lost:.1f} points"
    return Matrix(_label(cell.setting), [f"step {step + 1}" for step in steps], values, [], note)


def _lost_in(run: Result) -> float:
    """Return the mean forgetting of the classes that were learnt before the last step."""
    return metrics.average(metrics.forgetting_by_class(run["class_accuracy"]))


def _share(first: int, end: int, after: int) -> Metric:
    """Return the mean accuracy after a step on the classes from `first` to `end`."""
    return lambda run: _mean_of_known(run["class_accuracy"][after][first:end])


def _mean_of_known(values: Sequence[float]) -> float | None:
    """Return the mean without classes that have no test images, and so no accuracy."""
    known = [value for value in values if math.isfinite(value)]
    return metrics.average(known) if known else None


def _confusion(cell: Cell) -> Matrix | None:
    """Return the images of each class by the class they are taken for after the last step of the first class order."""
    runs = [run for run in cell.runs if run.get("confusion") and run.get("class_order")]
    if not runs:
        return None
    run = min(runs, key=lambda run: (run["order"], run["seed"]))
    note = f"class order {run['order']}, {run['accuracy'][-1]:.1f} % right"
    names, boundaries = [str(name) for name in run["class_order"]], known_classes(run)[:-1]
    return Matrix(_label(cell.setting), names, run["confusion"], boundaries, note)


# The values of the figures as tables


def values(chart: Lines | Matrices) -> Table:
    """Return a line chart's values, what became of the first step's classes, or the classes that are confused most."""
    if isinstance(chart, Lines):
        rows = [[line.label, *(_value(line, step) for step in chart.steps)] for line in chart.lines]
        title = "Accuracy in percent by classes learnt; in brackets the difference from the first row"
        return Table(title, ["method", *(f"{step} classes" for step in chart.steps)], rows)
    if chart.kind == "forgetting":
        columns = ["method", "first step's classes at first", "at the end", "in all"]
        first = [(matrix, matrix.values[0]) for matrix in chart.matrices]
        rows = [[matrix.label, text.number(row[0]), text.number(row[-1]), matrix.note] for matrix, row in first]
        return Table("What became of the first step's classes, accuracy in percent", columns, rows)
    rows = [[matrix.label, *pair] for matrix in chart.matrices for pair in _most_confused(matrix)]
    return Table("The pairs confused most", ["method", "true class", "taken for", "images"], rows)


def _value(line: Line, step: int) -> str:
    if step not in line.x:
        return ""
    at = line.x.index(step)
    lead = f" ({text.signed(line.lead[at])})" if line.lead else ""
    return text.with_deviation(line.y[at], line.deviation[at] if line.deviation else None) + lead


def _most_confused(matrix: Matrix) -> Iterable[tuple[str, str, str]]:
    """Return true class, class it is taken for and how many images are so taken, of the most frequent pairs."""
    wrong = (
        (-images, row, column)
        for row, line in enumerate(matrix.values)
        for column, images in enumerate(line)
        if images and row != column
    )
    for less, row, column in heapq.nsmallest(MOST_CONFUSED, wrong):
        total = sum(images or 0 for images in matrix.values[row])
        yield matrix.names[row], matrix.names[column], f"{-less:.0f} of {total:.0f}"
