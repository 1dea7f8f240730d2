"""The paper's numbers beside ours: which runs belong to which cell, how the two agree, and EEIL against its rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from treering.core import metrics
from treering.report.results import Result, Setting, by_setting, rows

TITLES = {
    "1a": "Fixed memory (table 1a)",
    "1b": "ImageNet, top-5 accuracy (table 1b)",
    "2a": "Fixed number of exemplars per class (table 2a)",
    "2b": "Ablation (table 2b)",
    "selection": "Selection rule (section 6.3)",
    "gem": "Against GEM, the task known: accuracy after the last step (appendix B)",
    "similar": "Similar classes: vehicles (appendix C)",
}
SECTIONS = {"1a": "fixed-memory", "1b": "fixed-memory", "2a": "budgets", "2b": "ablation"}
"""The sections of the report with these tables; the other tables have sections of their own names."""
RIVALS = ("icarl", "hybrid1", "lwf-mc", "gem", "finetune")
"""The methods that EEIL is tested against."""
CLOSE = 1.0
"""Points within which a number agrees with a number of the paper that has no deviation, or a smaller one."""

Metric = Callable[[Result], float | None]
METRICS: dict[str, tuple[Metric, Metric]] = {
    "top1": (lambda run: run["average_without_first"], lambda run: run["average"]),
    "top5": (
        lambda run: metrics.average_without_first(run.get("top5", [])),
        lambda run: metrics.average(run["top5"]) if run.get("top5") else None,
    ),
    "final-task-aware": (lambda run: (run.get("task_aware_accuracy") or [None])[-1], lambda run: None),
}
"""What the paper's tables count, and the same with the first step included where it is an average over steps."""


@dataclass(frozen=True)
class Cell:
    """One number: the paper's, if it has it, and our runs of the same settings."""

    setting: Setting
    runs: tuple[Result, ...]
    table: str = ""
    """Empty for what is in none of the paper's tables."""
    metric: str = "top1"
    paper: float | None = None
    paper_deviation: float | None = None

    @property
    def orders(self) -> int:
        """How many class orders were measured."""
        return len({run["order"] for run in self.runs})

    @property
    def mean(self) -> float | None:
        """Ours over the class orders; None if it was not run or, for want of a second step, has no value."""
        return over_orders(self.runs, METRICS[self.metric][0])[0]

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over two or more class orders."""
        return over_orders(self.runs, METRICS[self.metric][0])[1]

    @property
    def mean_with_first(self) -> float | None:
        """Ours with the first step included, where the number is an average over steps."""
        return over_orders(self.runs, METRICS[self.metric][1])[0]

    @property
    def last_step(self) -> float | None:
        """Accuracy after the last step, over the class orders."""
        return over_orders(self.runs, lambda run: run["accuracy"][-1])[0]

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, of the numbers as they are shown."""
        return None if self.mean is None or self.paper is None else round(round(self.mean, 1) - self.paper, 1)

    @property
    def agreement(self) -> str:
        """How ours stands to the paper's: "agrees", "above", "below", or nothing where one of them is missing."""
        if self.difference is None:
            return ""
        if abs(self.difference) <= max(CLOSE, self.paper_deviation or 0.0):
            return "agrees"
        return "above" if self.difference > 0 else "below"


@dataclass(frozen=True)
class Comparison:
    """EEIL against one rival under the same settings, over the class orders that both have."""

    setting: Setting
    """EEIL's."""
    rival: str
    orders: int
    lead: float | None
    """EEIL's mean less the rival's, in points."""
    one_sided: float | None
    """The p-value that EEIL is better; None with fewer than two orders."""
    two_sided: float | None
    """The p-value that the two differ."""
    paper: str
    """The paper's p-value, empty where it has none."""


@dataclass(frozen=True)
class Grid:
    """A table of the paper, or a panel of one: a row for each method, and what varies in the columns."""

    section: str
    """The part of the report that it belongs to."""
    name: str
    title: str
    column_title: str
    columns: list[str]
    rows: list[list[Cell]]

    @property
    def measured(self) -> bool:
        """Whether any cell has a number of ours."""
        return any(cell.mean is not None for row in self.rows for cell in row)


def by_order(runs: Iterable[Result], metric: Metric) -> dict[int, float]:
    """Return the value of each class order, averaged over its seeds; runs that have none are left out."""
    values: dict[int, list[float]] = {}
    for run in sorted(runs, key=lambda run: run["order"]):
        value = metric(run)
        if value is not None:
            values.setdefault(run["order"], []).append(value)
    return {order: metrics.average(seeds) for order, seeds in values.items()}


def over_orders(runs: Iterable[Result], metric: Metric) -> tuple[float | None, float | None]:
    """Return mean and deviation over the class orders, where there are any."""
    values = list(by_order(runs, metric).values())
    return metrics.mean_and_deviation(values) if values else (None, None)


@cache
def paper_rows() -> list[dict[str, str]]:
    """Return every number of the paper."""
    return rows("paper.csv")


def _paper_setting(row: dict[str, str]) -> Setting:
    rule = row["protocol"].removeprefix("selection-") if row["table"] == "selection" else "herding"
    size, _, per_class = row["memory"].partition("/")
    memory = ("per-class" if per_class else "total", int(size))
    selects = memory[1] > 0 and row["method"] != "gem"
    return Setting(row["dataset"], int(row["classes_per_step"]), row["method"], memory, rule if selects else "")


def table(name: str, results: Sequence[Result]) -> list[Cell]:
    """Return the cells of a table of the paper, in its order."""
    runs = by_setting(results)
    cells = []
    for row in paper_rows():
        if row["table"] == name:
            setting = _paper_setting(row)
            deviation = float(row["std"]) if row["std"] else None
            own = tuple(runs.get(setting, ()))
            cells.append(Cell(setting, own, name, row["metric"], float(row["value"]), deviation))
    return same_orders(cells) if name in ("2b", "selection") else cells


def same_orders(cells: Sequence[Cell]) -> list[Cell]:
    """Keep only runs of the class orders that all cells of one number of classes per step have, if there are any.

    This is for comparisons of parts: class orders differ by more than some parts do.
    """
    compared = []
    for cell in cells:
        measured = [other.runs for other in cells if other.runs and other.setting.steps == cell.setting.steps]
        shared = set.intersection(*({run["order"] for run in runs} for runs in measured)) if measured else set()
        compared.append(replace(cell, runs=tuple(run for run in cell.runs if run["order"] in shared) or cell.runs))
    return compared


def grids(results: Sequence[Result]) -> list[Grid]:
    """Return the paper's tables as grids; table 2a has a panel for each number of classes per step."""
    columns: dict[str, tuple[str, Callable[[Setting], str]]] = {
        "1b": ("dataset", lambda setting: setting.dataset_name),
        "2a": ("exemplars per class", lambda setting: str(setting.memory[1])),
        "selection": ("selection rule", lambda setting: setting.selection),
        "gem": ("exemplars in memory", lambda setting: setting.memory_name),
    }
    made = []
    for name, title in TITLES.items():
        column_title, column = columns.get(name, ("classes per step", lambda setting: setting.steps))
        panels: dict[str, dict[str, list[Cell]]] = {}
        for cell in table(name, results):
            panel = cell.setting.steps if name == "2a" else ""
            panels.setdefault(panel, {}).setdefault(cell.setting.method, []).append(cell)
        section = SECTIONS.get(name, name)
        for panel, by_method in panels.items():
            rows = list(by_method.values())
            names = [column(cell.setting) for cell in rows[0]]
            end = f", {rows[0][0].setting.steps_name}" if panel else ""
            made.append(Grid(section, f"{section}-{panel}".strip("-"), title + end, column_title, names, rows))
    return made


def beyond_the_paper(results: Sequence[Result]) -> list[Cell]:
    """Return what was run and is in none of the paper's tables: datasets, methods and settings of one's own."""
    known = {_paper_setting(row) for row in paper_rows()}
    runs = by_setting(results)
    return [Cell(setting, tuple(runs[setting])) for setting in sorted(runs.keys() - known)]


def in_paper(dataset: str) -> bool:
    """Tell whether the paper has results on a dataset."""
    return any(row["dataset"] == dataset for row in paper_rows())


def is_comparable(other: Setting, setting: Setting) -> bool:
    """Tell whether a method ran on the same steps and with the same memory, or with none."""
    if (other.dataset, other.classes_per_step) != (setting.dataset, setting.classes_per_step):
        return False
    return other.memory[1] == 0 or (other.memory == setting.memory and other.selection in ("", setting.selection))


def comparisons(results: Sequence[Result]) -> list[Comparison]:
    """Test EEIL against every rival that was run in two or more of its class orders, and wherever the paper does."""
    setting = Setting("cifar100", 0, "eeil", ("total", 2000), "herding")
    published = {replace(setting, classes_per_step=int(row["classes_per_step"])): row for row in rows("ttest.csv")}
    runs = by_setting(results)
    found = []
    for setting in sorted({*filter(_is_eeil, runs), *published}):
        for rival in RIVALS:
            same = (other for other in runs if (other.method, other.variant) == (rival, 0))
            theirs = (runs[other] for other in same if is_comparable(other, setting))
            p_value = published[setting]["p_value_eeil_vs_icarl"] if rival == "icarl" and setting in published else ""
            comparison = _compared(setting, rival, runs.get(setting, ()), next(theirs, ()), p_value)
            if comparison.orders > 1 or p_value:
                found.append(comparison)
    return found


def _is_eeil(setting: Setting) -> bool:
    return (setting.method, setting.variant) == ("eeil", 0)


def _compared(setting: Setting, rival: str, ours: Iterable[Result], theirs: Iterable[Result], paper: str) -> Comparison:
    """Compare the averages of two methods in the class orders that both have."""
    one, other = (by_order(runs, METRICS["top1"][0]) for runs in (ours, theirs))
    both = sorted(one.keys() & other.keys())
    if not both:
        return Comparison(setting, rival, 0, None, None, None, paper)
    pairs = [one[order] for order in both], [other[order] for order in both]
    lead = metrics.average(pairs[0]) - metrics.average(pairs[1])
    one_sided, two_sided = metrics.paired_t_test(*pairs, one_sided=True), metrics.paired_t_test(*pairs)
    return Comparison(setting, rival, len(both), lead, one_sided, two_sided, paper)
