"""The report's tables as Markdown: those with runs, for the documentation, and all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treering.report import text
from treering.report.results import Result
from treering.report.tables import TITLES, table
from treering.report.text import Table


def measured(results: Sequence[Result]) -> str:
    """Write the measured rows of those of the paper's tables that have any, and how many they lack."""
    columns = "classes per step; method; memory; paper; ours; ours, first step included; minutes"
    parts = []
    for name, title in TITLES.items():
        cells = table(name, results)
        run = [cell for cell in cells if cell.runs]
        if run:
            parts += [f"### {title}\n", *_lines(text.listed(title, run, columns, text.IN_DOCS)), ""]
        if run and len(run) < len(cells):
            parts.append(f"Not run yet: {len(cells) - len(run)} of the paper's {len(cells)} numbers.\n")
    return "\n".join(parts)


def report(results: Sequence[Result]) -> str:
    """Write every table of the paper with ours, the t-tests, and what is in none of the paper's tables."""
    columns = "classes per step; method; memory; paper; ours; difference; first step included; orders"
    parts = [
        "# Measured, beside the paper\n",
        "Average accuracy in percent over the steps after the first, mean ± standard deviation over the class orders,"
        " unless a title says otherwise.\n",
    ]
    made = [text.listed(title, table(name, results), columns) for name, title in TITLES.items()]
    for one in [*made, text.tests(results), text.others(results)]:
        parts += [f"## {one.title}\n", *_lines(one), ""] if one.rows else []
    return "\n".join(parts)


def _lines(made: Table) -> list[str]:
    rule = ["---" if title in text.WORDS else "---:" for title in made.columns]
    return [_row(cells) for cells in (made.columns, rule, *made.rows)]


def _row(cells: Iterable[str]) -> str:
    """Write a row, whatever the names in it."""
    escaped = (cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
