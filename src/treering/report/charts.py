"""What the figures show, as plain data: curves, bars and matrices made from the results.

`figures.py` draws them with matplotlib and `page.js` in the browser, so both show the same.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from treering.core import metrics
from treering.report import tables
from treering.report.tables import Cell, Result, Setting, sort_key

Values = list[float | None]
"""Rounded as they are shown; None where nothing was measured."""


@dataclass(frozen=True)
class Style:
    """How a method looks, everywhere: a colour that the colour-blind can tell apart, a dash and a marker."""

    colour: str
    on_dark: str
    dash: tuple[int, ...]
    marker: str


STYLES = {
    "eeil": Style("#0072b2", "#4fb0ea", (), "circle"),
    "icarl": Style("#d55e00", "#f28a3c", (7, 3), "square"),
    "hybrid1": Style("#009e73", "#2fc79b", (2, 2), "triangle"),
    "lwf-mc": Style("#b98a00", "#e8bb3a", (7, 2, 2, 2), "diamond"),
    "gem": Style("#a8528a", "#dd8fc3", (5, 2), "down"),
    "eeil-base": Style("#4aa3d8", "#9bd4f5", (1, 2), "square"),
    "eeil-da": Style("#882255", "#d4709c", (4, 2, 1, 2), "triangle"),
    "eeil-bf": Style("#7d7d22", "#c3c35c", (6, 2), "diamond"),
    "eeil/random": Style("#3d8fc4", "#8ccbf2", (6, 3), "square"),
    "eeil/histogram": Style("#5f7f99", "#a9c4d9", (2, 2), "diamond"),
    "finetune": Style("#7a7a7a", "#a3a3a3", (3, 3), "down"),
    "joint": Style("#222222", "#f0f0f0", (), "cross"),
}
OWN_STYLES = (
    Style("#117733", "#6cc487", (8, 2, 1, 2), "square"),
    Style("#661100", "#cf8069", (5, 1), "triangle"),
    Style("#332288", "#9a8ce6", (3, 1, 1, 1), "diamond"),
)
"""For methods of one's own."""


def style(method: str) -> Style:
    """The look of a method, the same in every report."""
    return STYLES.get(method) or OWN_STYLES[zlib.crc32(method.encode()) % len(OWN_STYLES)]


@dataclass(frozen=True)
class Line:
    """One method's accuracy after each step."""

    label: str
    method: str
    x: list[int]
    """Classes known."""
    y: Values
    deviation: Values | None
    """Over the class orders, of two or more."""
    summary: str
    """The average without the first step, or what stands for it."""


@dataclass(frozen=True)
class Lines:
    """Accuracy against the number of classes, one line a method."""

    name: str
    title: str
    lines: list[Line]


@dataclass(frozen=True)
class Bar:
    """One method's values, one for each group of bars, and the paper's."""

    label: str
    method: str
    values: Values
    deviation: Values
    paper: Values


@dataclass(frozen=True)
class Bars:
    """Averages side by side; the paper's are marks on the bars."""

    name: str
    title: str
    x_label: str
    groups: list[str]
    bars: list[Bar]


@dataclass(frozen=True)
class Matrix:
    """A heat map of one method."""

    label: str
    rows: list[str]
    columns: list[str]
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
    """ "forgetting" or "confusion". """
    matrices: list[Matrix]


Chart = Lines | Bars | Matrices
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
        return f"{tables.dataset_name(self.setting.dataset)}, {self.label}"

    @property
    def label(self) -> str:
        """Without the dataset."""
        kind, size = self.setting.memory
        memory = {"per-class": f"{size} exemplars per class"}.get(kind, f"{size} exemplars") if size else "no memory"
        unusual = self.setting.selection not in ("", "herding")
        rule = f", {self.setting.selection} selection" if unusual else ""
        return f"{steps_name(self.setting)}, {memory}{rule}"

    @property
    def name(self) -> str:
        """For files."""
        kind, size = self.setting.memory
        rule = "" if self.setting.selection in ("", "herding") else f"-{self.setting.selection}"
        return slug(f"{self.setting.dataset}-{self.setting.steps.replace(' ', '')}-{kind}{size}{rule}")


def steps_name(setting: Setting) -> str:
    """The classes of each step in words."""
    plural = "" if setting.classes_per_step == 1 else "es"
    return f"{setting.steps} class{plural} per step"


def slug(text: str) -> str:
    """A name that every file system bears."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.") or "unnamed"


def every_chart(results: Sequence[Result]) -> dict[str, list[Chart]]:
    """All there is to draw, by the part of the report it belongs to; the names differ, whatever the case."""
    every = groups(results)
    parts: dict[str, list[Chart]] = {
        part: []
        for part in ("accuracy", "ablation", "budgets", "selection", "gem", "similar", "own", "forgetting", "confusion")
    }
    bars = [("ablation", ablation(results)), ("selection", selection(results)), ("gem", gem_known_task(results))]
    for part, chart in [*bars, *(("budgets", chart) for chart in budgets(results))]:
        if any(value is not None for bar in chart.bars for value in bar.values):
            parts[part].append(chart)
    found: list[tuple[str, Chart | None]] = [("gem", gem_unknown_task(every))]
    for group in every:
        part = _part(group.setting)
        whole = selection_curves(group, every) if part == "selection" else curves(group)
        found += [(part, whole), ("own" if part == "own" else "ablation", ablation_curves(group))]
    for group in _main_groups(every):
        found += [("forgetting", forgetting(group)), ("confusion", confusion(group))]
    names: set[str] = set()
    for part, drawn in found:
        if drawn and drawn not in parts[part]:
            while drawn.name.lower() in names:
                drawn = replace(drawn, name=f"{drawn.name}-again")
            names.add(drawn.name.lower())
            parts[part].append(drawn)
    return parts


def _part(setting: Setting) -> str:
    """The part of the report that the curves of these settings belong to."""
    experiments = {
        name: {
            (row["dataset"], row["classes_per_step"], row["memory"])
            for row in tables.paper_rows()
            if name == row["table"]
        }
        for name in ("gem", "similar")
    }
    place = (setting.dataset, setting.steps, setting.memory_name)
    if setting.dataset not in {row["dataset"] for row in tables.paper_rows()}:
        return "own"
    if setting.selection not in ("", "herding"):
        return "selection"
    if setting.memory[0] == "per-class":
        return "budgets"
    return next((name for name, places in experiments.items() if place in places), "accuracy")


def groups(results: Sequence[Result]) -> list[Group]:
    """What is comparable, together; methods without a memory, and the upper bound, are in every group they fit."""
    runs = tables.by_setting(results)
    members: dict[Setting, list[Setting]] = {}
    # Those with exemplars open the groups; then come GEM, which selects none, and those without memory.
    for setting in sorted(runs, key=lambda setting: (not setting.selection, not setting.memory[1], *sort_key(setting))):
        fitting = [group for group in members if tables.is_comparable(setting, group)]
        if setting.method == "joint":
            fitting = [group for group in members if _is_bound(runs, setting, group)]
        if setting.selection or not fitting:
            fitting = [Setting(setting.dataset, setting.classes_per_step, "", setting.memory, setting.selection)]
        for group in fitting:
            members.setdefault(group, []).append(setting)
    return [
        Group(group, [Cell(setting, tuple(runs[setting])) for setting in sorted(members[group], key=_place_in_group)])
        for group in sorted(members, key=sort_key)
    ]


def _place_in_group(setting: Setting) -> tuple[int, str]:
    return tables.method_rank(setting.method), setting.method


def _is_bound(runs: dict[Setting, list[Result]], joint: Setting, group: Setting) -> bool:
    """Whether this run of the upper bound, in one step or in the group's, is the best there is for the group."""
    if joint.dataset != group.dataset:
        return False
    same_steps = any(other.method == "joint" and tables.is_comparable(other, group) for other in runs)
    return joint.classes_per_step == group.classes_per_step or (not same_steps and len(runs[joint][0]["accuracy"]) == 1)


def known_classes(result: Result) -> list[int]:
    """The number of classes after each step."""
    if result.get("class_accuracy"):
        return [len(step) for step in result["class_accuracy"]]
    sizes, steps = result["classes_per_step"], len(result["accuracy"])
    sizes = [sizes] * steps if isinstance(sizes, int) else sizes
    return [sum(sizes[: step + 1]) for step in range(steps)]


def curves(group: Group) -> Lines | None:
    """Accuracy after each step, mean and deviation over the class orders; the upper bound is one point at the end."""
    whole = [cell for cell in group.cells if cell.setting.method not in tables.ABLATIONS]
    title = group.title + (TASK_NOT_KNOWN if _part(group.setting) == "gem" else "")
    return _curves(f"accuracy-{group.name}", title, whole)


def ablation_curves(group: Group) -> Lines | None:
    """The same for EEIL and its parts."""
    parts = [cell for cell in group.cells if cell.setting.method in tables.ABLATIONS]
    whole = [cell for cell in group.cells if cell.setting.method == "eeil"]
    compared = tables.same_orders(whole + parts)
    return _curves(f"ablation-{group.name}", f"{group.title}, parts of EEIL", compared) if parts else None


def selection_curves(group: Group, every: Sequence[Group]) -> Lines:
    """Every selection rule that was tried on the steps and with the memory of this group."""
    usual = replace(group.setting, selection="")
    same = [other for other in every if replace(other.setting, selection="") == usual]
    cells = [cell for other in same for cell in other.cells if cell.setting.selection]
    varied = {cell.setting.method for cell in cells if cell.setting.selection != "herding"}
    compared = tables.same_orders([cell for cell in cells if cell.setting.method in varied])
    lines = []
    for cell in sorted(compared, key=lambda cell: (_place_in_group(cell.setting), cell.setting.selection)):
        method, rule = cell.setting.method, cell.setting.selection
        look = method if rule == "herding" else f"{method}/{rule}"
        lines.append(replace(_line(cell), label=f"{tables.method_name(method)}, {rule}", method=look))
    shared = replace(group, setting=usual)
    return Lines(f"selection-{shared.name}", f"{shared.title}, selection rules", lines)


def _curves(name: str, title: str, cells: Sequence[Cell]) -> Lines | None:
    return Lines(name, title, [_line(cell) for cell in cells]) if cells else None


def _line(cell: Cell) -> Line:
    x = known_classes(cell.runs[0])
    runs = [run for run in cell.runs if known_classes(run) == x]  # a dataset of one's own may have grown meanwhile
    steps = list(range(len(x)))
    summary = tables.with_deviation(cell.mean, cell.deviation)
    if cell.setting.method == "joint":
        x, steps, summary = x[-1:], steps[-1:], ""
    over_orders = [_mean_and_deviation(runs, _accuracy_after(step)) for step in steps]
    deviation = [deviation for _, deviation in over_orders] if len({run["order"] for run in runs}) > 1 else None
    y = [mean for mean, _ in over_orders]
    if not summary and y[-1] is not None:
        summary = f"{y[-1]:.1f} after the last step"
    return Line(tables.method_name(cell.setting.method), cell.setting.method, x, y, deviation, summary)


def _accuracy_after(step: int) -> Callable[[Result], float | None]:
    return lambda run: run["accuracy"][step]


def _mean_and_deviation(
    runs: Iterable[Result], metric: Callable[[Result], float | None]
) -> tuple[float | None, float | None]:
    mean, deviation = tables.over_orders(runs, metric)
    return shown(mean), shown(deviation)


def shown(value: float | None) -> float | None:
    """To one decimal, so that charts and tables agree; a class without test images has no accuracy."""
    return None if value is None or not math.isfinite(value) else round(value, 1)


def ablation(results: Sequence[Result]) -> Bars:
    """Table 2b."""
    cells = tables.table("2b", results)
    return _bars("ablation", "Ablation", "classes per step", cells, lambda setting: setting.steps)


def budgets(results: Sequence[Result]) -> list[Bars]:
    """Table 2a, one chart for each number of classes per step."""
    cells = tables.table("2a", results)
    made = []
    for steps in dict.fromkeys(cell.setting.steps for cell in cells):
        some = [cell for cell in cells if cell.setting.steps == steps]
        title = f"{steps} classes per step"
        made.append(
            _bars(f"budgets-{steps}", title, "exemplars per class", some, lambda setting: str(setting.memory[1]))
        )
    return made


def selection(results: Sequence[Result]) -> Bars:
    """Section 6.3: the rule that selects exemplars."""
    cells = tables.table("selection", results)
    return _bars("selection", "Selection rule", "selection rule", cells, lambda setting: setting.selection)


def gem_known_task(results: Sequence[Result]) -> Bars:
    """Appendix B, the task known."""
    cells = tables.table("gem", results)
    return _bars("gem-known-task", "Task known", "exemplars in memory", cells, lambda setting: setting.memory_name)


def gem_unknown_task(every: Sequence[Group]) -> Lines | None:
    """Appendix B, the task not known: EEIL and GEM with 2000 exemplars, 5 classes per step."""
    wanted = Setting("cifar100", 5, "", ("total", 2000), "herding")
    group = next((group for group in every if group.setting == wanted), None)
    if group is None or "gem" not in {cell.setting.method for cell in group.cells}:
        return None
    compared = [cell for cell in group.cells if cell.setting.method in ("eeil", "gem", "finetune")]
    return _curves("gem-unknown-task", group.title + TASK_NOT_KNOWN, compared)


def _bars(name: str, title: str, x_label: str, cells: Sequence[Cell], group_of: Callable[[Setting], str]) -> Bars:
    labels = list(dict.fromkeys(group_of(cell.setting) for cell in cells))
    bars = []
    for method in sorted({cell.setting.method for cell in cells}, key=_ablations_first):
        own = {group_of(cell.setting): cell for cell in cells if cell.setting.method == method}
        row = [own[label] for label in labels]
        values, deviation = [shown(cell.mean) for cell in row], [shown(cell.deviation) for cell in row]
        bars.append(Bar(tables.method_name(method), method, values, deviation, [cell.paper for cell in row]))
    return Bars(name, title, x_label, labels, bars)


def _ablations_first(method: str) -> tuple[bool, int]:
    """The parts before the whole, then the rivals."""
    return method not in tables.ABLATIONS, tables.method_rank(method)


def _main_groups(every: Sequence[Group]) -> list[Group]:
    """For each dataset and number of classes per step the group with the most methods: enough to look closely at."""
    best: dict[tuple[object, ...], Group] = {}
    for group in every:
        place = (group.setting.dataset, group.setting.classes_per_step)
        if place not in best or len(group.cells) > len(best[place].cells):
            best[place] = group
    return list(best.values())


def forgetting(group: Group) -> Matrices | None:
    """Accuracy on the classes that each step brought, after that step and every later one."""
    matrices = []
    for cell in group.cells:
        runs = [run for run in cell.runs if run.get("class_accuracy") and len(run["accuracy"]) > 1]
        if not runs:
            continue
        ends = known_classes(runs[0])
        runs = [run for run in runs if known_classes(run) == ends]
        steps = range(len(ends))
        values = [[_share(runs, ends, brought, after) for after in steps] for brought in steps]
        lost = _mean_and_deviation(runs, lambda run: _finite(metrics.forgetting(run["class_accuracy"])[-1]))
        note = "" if lost[0] is None else f"mean forgetting {lost[0]:.1f} points"
        names = [f"step {step + 1}" for step in steps]
        matrices.append(Matrix(tables.method_name(cell.setting.method), names, names, values, [], note))
    title = f"{tables.dataset_name(group.setting.dataset)}, {steps_name(group.setting)}"
    return Matrices(f"forgetting-{group.name}", title, "forgetting", matrices) if matrices else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _share(runs: Sequence[Result], ends: Sequence[int], brought: int, after: int) -> float | None:
    """Mean accuracy after step `after` of the classes that step `brought` brought, over the class orders."""
    if after < brought:
        return None
    first = ends[brought - 1] if brought else 0

    def accuracy(run: Result) -> float | None:
        known = [value for value in run["class_accuracy"][after][first : ends[brought]] if math.isfinite(value)]
        return metrics.average(known) if known else None

    return _mean_and_deviation(runs, accuracy)[0]


def confusion(group: Group) -> Matrices | None:
    """Images of each class by the class they are taken for after the last step, of each method's first class order."""
    matrices = []
    for cell in group.cells:
        runs = [run for run in cell.runs if run.get("confusion") and run.get("class_order")]
        if not runs:
            continue
        run = min(runs, key=lambda run: (run["order"], run["seed"]))
        names = [str(name) for name in run["class_order"]]
        values: list[Values] = [list(row) for row in run["confusion"]]
        boundaries = known_classes(run)[:-1]
        note = f"class order {run['order']}, {run['accuracy'][-1]:.1f} % right"
        matrices.append(Matrix(tables.method_name(cell.setting.method), names, names, values, boundaries, note))
    title = f"{tables.dataset_name(group.setting.dataset)}, {steps_name(group.setting)}"
    return Matrices(f"confusion-{group.name}", title, "confusion", matrices) if matrices else None


def most_confused(matrix: Matrix, count: int) -> list[tuple[str, str, int, int]]:
    """True class, class it is taken for, images so taken, images of the class; the most frequent first."""
    found = [
        (int(images or 0), row, column)
        for row, values in enumerate(matrix.values)
        for column, images in enumerate(values)
        if images and row != column
    ]
    found.sort(key=lambda item: (-item[0], item[1], item[2]))
    totals = [int(sum(value or 0 for value in values)) for values in matrix.values]
    return [(matrix.rows[row], matrix.columns[column], images, totals[row]) for images, row, column in found[:count]]
