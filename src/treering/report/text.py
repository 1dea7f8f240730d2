"""How the report writes numbers, and its tables as text that the printers only have to lay out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from treering import words
from treering.report.results import METHODS, Result, device_seconds, setting_of
from treering.report.tables import (
    TITLES,
    Cell,
    Comparison,
    beyond_the_paper,
    comparisons,
    in_paper,
    paper_rows,
    table,
)

WORDS = {"in the paper", "dataset", "method", "selection", "against", "true class", "taken for", "device", "commit"}
"""The columns that hold words; the others hold numbers."""


@dataclass(frozen=True)
class Table:
    """A table as text, ready to be laid out."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]


def number(value: float | None) -> str:
    """Write an accuracy to one decimal, or nothing."""
    return "" if value is None else f"{value:.1f}"


def with_deviation(value: float | None, deviation: float | None) -> str:
    """Write a mean with its deviation, such as 63.6 ± 1.3."""
    return number(value) + ("" if deviation is None else f" ± {deviation:.1f}")


def signed(value: float | None) -> str:
    """Write a difference with its sign, a true minus."""
    if value is None:
        return ""
    return f"{value:+.1f}".replace("-", "−") if abs(value) >= 0.05 else "0.0"  # noqa: RUF001


def short_commit(commits: str) -> str:
    """Return the first digits of each commit, and the mark of code that was changed since."""
    return ", ".join(commit[:7] + "+" * commit.endswith("+") for commit in commits.split(", "))


# Tables with a row for each cell


def ours(cell: Cell) -> str:
    """Write our mean with its deviation, or that there is none."""
    return with_deviation(cell.mean, cell.deviation) if cell.runs else "not run"


def _ours_with_orders(cell: Cell) -> str:
    return ours(cell) + (f" ({cell.orders} orders)" if cell.orders > 1 and cell.mean is not None else "")


def _minutes(cell: Cell) -> str:
    """Write the time of each run; runs beside others say beside how many."""
    written = []
    for at_once, runs in groupby(cell.runs, lambda run: run.get("runs_at_once", 1)):
        beside = f" ({at_once} at once)" if at_once > 1 else ""
        written.append(", ".join(f"{run['seconds'] / 60:.1f}" for run in runs) + beside)
    return "; ".join(written)


def _row_name(cell: Cell) -> str:
    """Return the method of a row and what else tells the row from its neighbours."""
    setting = cell.setting
    further = {"1b": setting.dataset_name, "selection": f"{setting.selection} selection"}
    note = further.get(cell.table) or setting.parts
    return setting.method_name + (f" ({note})" if note else "")


def _of_run(key: str) -> Callable[[Cell], str]:
    return lambda cell: str(cell.runs[0].get(key, ""))


COLUMNS: dict[str, Callable[[Cell], str]] = {
    "in the paper": lambda cell: TITLES[cell.table].rpartition("(")[2].rstrip(")"),
    "dataset": lambda cell: cell.setting.dataset_name,
    "classes per step": lambda cell: cell.setting.steps,
    "method": _row_name,
    "memory": lambda cell: cell.setting.memory_name,
    "selection": lambda cell: cell.setting.selection,
    "paper": lambda cell: with_deviation(cell.paper, cell.paper_deviation),
    "ours": ours,
    "difference": lambda cell: signed(cell.difference),
    "first step included": lambda cell: number(cell.mean_with_first),
    "last step": lambda cell: number(cell.last_step),
    "orders": lambda cell: str(cell.orders or ""),
    "minutes": _minutes,
    "order": _of_run("order"),
    "seed": _of_run("seed"),
    "images/s": lambda cell: f"{cell.runs[0]['images_per_second']:,.0f}" if "images_per_second" in cell.runs[0] else "",
    "device": _of_run("device"),
    "commit": lambda cell: short_commit(str(cell.runs[0].get("commit", ""))),
}
"""What a table can say of a cell; what follows the minutes is for a cell of one run."""
IN_DOCS = {**COLUMNS, "ours": _ours_with_orders, "ours, first step included": COLUMNS["first step included"]}


def listed(title: str, cells: Iterable[Cell], columns: str, known: dict[str, Callable[[Cell], str]] = COLUMNS) -> Table:
    """Return a table with a row for each cell and these columns, between semicolons."""
    names = columns.split("; ") if columns else []
    return Table(title, names, [[known[name](cell) for name in names] for cell in cells])


def others(results: Sequence[Result]) -> Table:
    """Return what the paper's tables have not: datasets, methods and settings of one's own."""
    columns = "dataset; classes per step; method; memory; selection; ours; first step included; orders; last step"
    return listed("Not in the paper's tables", beyond_the_paper(results), columns)


def every_run(results: Iterable[Result]) -> Table:
    """Return a row for each result file."""
    ordered = sorted(results, key=lambda run: (setting_of(run), run["order"], run["seed"]))
    columns = "method; dataset; classes per step; memory; selection; order; seed; ours; first step included; last step"
    cells = [Cell(setting_of(run), (run,)) for run in ordered]
    return listed("One row for each result file", cells, f"{columns}; minutes; images/s; device; commit")


def tests(results: Sequence[Result]) -> Table:
    """Return EEIL's lead over each rival and how likely it is by chance, in a one-sided and in a two-sided test."""
    columns = "dataset; classes per step; memory; selection; against; lead of EEIL; orders"
    rows = []
    for test in comparisons(results):
        setting = test.setting
        row = [setting.dataset_name, setting.steps, setting.memory_name, setting.selection]
        row += [METHODS[test.rival]["name"], signed(test.lead), str(test.orders or "")]
        rows.append([*row, tested(test, test.one_sided), tested(test, test.two_sided), test.paper])
    names = f"{columns}; p, one-sided; p, two-sided; p, paper".split("; ")
    return Table("EEIL against its rivals: paired t-test over class orders", names, rows)


def tested(test: Comparison, p_value: float | None) -> str:
    """Write a p-value with no more digits than it needs, or why there is none."""
    if test.orders < 2:
        return "one order only" if test.orders else "not run"
    if p_value is None:
        return "undefined"  # the methods are equal in every order
    return "< 0.00001" if p_value < 0.00001 else f"{p_value:.5f}".rstrip("0").rstrip(".")


# The first things to know


def headline(results: Sequence[Result]) -> tuple[str, Table]:
    """Say in a sentence how the paper's numbers came out, and list those that fall short of it."""
    measured = [cell for name in TITLES for cell in table(name, results) if cell.mean is not None]
    agree, above, below = (
        [cell for cell in measured if cell.agreement == kind] for kind in ("agrees", "above", "below")
    )
    if not measured:
        return f"None of the paper's {len(paper_rows())} numbers is measured here.", listed("", [], "")
    sentence = (
        f"{len(measured)} of the paper's {len(paper_rows())} numbers are measured: {len(agree)} agree with it, "
        f"{len(above)} are better and {len(below)} fall short."
    )
    below.sort(key=lambda cell: cell.difference or 0.0)
    columns = "method; difference; ours; paper; classes per step; memory; in the paper"
    short = {**COLUMNS, "method": lambda cell: cell.setting.method_name}
    return sentence, listed("What falls short of the paper; docs/notes/ discusses why", below, columns, short)


def highlights(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """Return title, number and comment of what a reader wants to know first."""
    cells = {cell.setting.method: cell for cell in table("1a", results) if cell.setting.steps == "10"}
    best: dict[str, Cell] = {}
    for cell in beyond_the_paper(results):
        rank = best.get(cell.setting.dataset, cell)
        if cell.mean is not None and cell.setting.method != "joint" and not in_paper(cell.setting.dataset):
            best[cell.setting.dataset] = max(rank, cell, key=lambda cell: cell.mean or 0.0)
    made = []
    for cell in (cells["eeil"], cells["icarl"], *best.values()):
        name, comment = f"{cell.setting.method_name}, {cell.setting.steps_name}", ""
        if cell.paper is not None:
            comment = f"paper {COLUMNS['paper'](cell)}, {signed(cell.difference)}"
        if cell.mean is not None:
            made.append((name, ours(cell), comment or f"the best on {cell.setting.dataset_name}"))
    test = next(test for test in comparisons(results) if test.paper and test.setting.steps == "10")
    if test.lead is not None:
        paper = signed((cells["eeil"].paper or 0.0) - (cells["icarl"].paper or 0.0))
        comment = f"points in {words.counted(test.orders, 'class order')}; paper {paper}"
        made.append(("EEIL’s lead over iCaRL", signed(test.lead), comment))  # noqa: RUF001
    return made


def scope(results: Sequence[Result]) -> str:
    """Say in a sentence how many runs of what there are and what they took."""
    settings = sorted(map(setting_of, results))
    datasets = _joined(dict.fromkeys(setting.dataset_name for setting in settings))
    methods = words.counted(len({setting.method for setting in settings}), "method")
    devices = _joined(
        sorted({name for run in results for name in str(run.get("device", "an unknown device")).split(", ")})
    )
    seconds = device_seconds(results)
    spent = words.duration(sum(seconds))
    return f"{words.counted(len(seconds), 'run')} of {methods} on {datasets}, {spent} on {devices}."


def _joined(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
