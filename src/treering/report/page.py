"""The report as one HTML page that needs nothing else: its words stand in `page.html`, its figures are inline SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from treering.report import charts, figures, tables, text
from treering.report.charts import Chart, Lines
from treering.report.results import METHODS, Result
from treering.report.tables import Cell, Grid
from treering.report.text import Table

METRICS = {
    "top1": "Accuracy in percent, averaged over the steps after the first, as the paper reports it",
    "top5": "Top-5 accuracy in percent, averaged over the steps after the first",
    "final-task-aware": "Accuracy in percent, a mean over the tasks",
}
DIFFERENCES = (
    "± is the standard deviation over the class orders. The coloured number is the difference from the paper: "
    "grey agrees, green is better, orange is lower."
)
MARKS = (
    "Each bar is ours, with a thin line of one standard deviation up and down; the thick mark across it is the paper’s."  # noqa: RUF001
)


def html(results: Sequence[Result], drawn: dict[str, list[Chart]], svgs: dict[str, bytes]) -> str:
    """Write the whole page; `svgs` are the figures by the name of the chart."""
    inline = {chart.name: figures.inline(chart, svgs[chart.name]) for part in drawn.values() for chart in part}
    grids = tables.grids(results)
    bodies = {part: _part(part, grids, drawn.get(part, []), inline) for part in ("fixed-memory", *drawn)}
    tested = any(test.orders for test in tables.comparisons(results))
    unmeasured = [_grid(grid) for grid in grids if not grid.measured] + [_table(text.tests(results))] * (not tested)
    bodies |= {
        "own": _table(text.others(results)) + bodies["own"],
        "p-values": _table(text.tests(results)) if tested else "",
        "runs": _table(text.every_run(results), "tall"),
        "not-run": _details("Show the paper’s numbers", "".join(unmeasured)),  # noqa: RUF001
    }

    def kept(section: re.Match[str]) -> str:
        return section[0] if bodies[section[1]] else ""

    template = re.sub(r'<section id="(.+?)">.*?</section>\n', kept, _asset("page.html"), flags=re.DOTALL)
    contents = re.findall(r'<section id="(.+?)"><h2>(.*?)</h2>', template)
    headline, below = text.headline(results)
    cards = "".join(_card(*card) for card in text.highlights(results))
    return Template(template).substitute(
        {name.replace("-", "_"): body for name, body in bodies.items()},
        style=_asset("page.css") + _colours(),
        script=_asset("page.js"),
        headline=escape(headline),
        scope=escape(text.scope(results)),
        overview=f'<ul class="cards">\n{cards}</ul>{_table(below)}',
        contents="\n".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in contents),
    )


def _asset(name: str) -> str:
    return files("treering.report").joinpath(name).read_text(encoding="utf-8")


def _colours() -> str:
    """Give each method's colour a name, with another colour on a dark ground."""
    pairs = enumerate((row["colour"], row["on_dark"]) for row in METHODS.values())
    return f":root {{ {' '.join(f'--c{index}: light-dark({light}, {dark});' for index, (light, dark) in pairs)} }}\n"


def _card(title: str, number: str, comment: str) -> str:
    mean, _, deviation = number.partition(" ± ")
    big = escape(mean) + (f" <small>± {deviation}</small>" if deviation else "")
    return f'<li class="card"><strong>{escape(title)}</strong><span class="big">{big}</span>{escape(comment)}</li>\n'


def _part(part: str, grids: Sequence[Grid], drawn: Sequence[Chart], inline: dict[str, str]) -> str:
    """Write the measured tables of a part, each with its bars, and then its other charts, of which one is chosen."""
    written = []
    for grid in grids:
        if grid.measured and grid.section == part:
            bars = _chart(inline[grid.name]) + _note(MARKS) if grid.name in inline else ""
            written.append(f'<div class="beside valued">{_grid(grid)}<div>{bars}</div></div>')
    panels = []
    for chart in drawn:
        if not isinstance(chart, Grid):
            title = "Values" if isinstance(chart, Lines) or chart.kind == "forgetting" else "The pairs confused most"
            values = _details(title, _table(charts.values(chart)))
            panels.append((chart.title, chart.name, f'<div class="valued">{_chart(inline[chart.name])}{values}</div>'))
    return "".join(written) + _switch(panels)


def _chart(svg: str) -> str:
    return f'<div class="chart">{svg}</div>\n'


def _note(sentence: str) -> str:
    return f'<p class="note">{sentence}</p>'


def _details(summary: str, content: str) -> str:
    return f'<details class="values"><summary>{summary}</summary>{content}</details>' if content else ""


def _switch(panels: Sequence[tuple[str, str, str]]) -> str:
    """Write panels of which one is seen at a time where there is JavaScript: label, name and content."""
    if len(panels) < 2:
        return "".join(content for _, _, content in panels)
    first = next((name for label, name, _ in panels if " 10 classes per step" in label), None)
    written = []
    for short, (_, name, content) in zip(_telling_parts([label for label, _, _ in panels]), panels, strict=True):
        opened = " data-first" if name == first else ""
        shown = f'id="panel-{escape(name)}" role="tabpanel" aria-label="{escape(short)}"{opened}'
        written.append(f"<div {shown}>{content}</div>")
    return f'<div class="switch">{"".join(written)}</div>\n'


def _telling_parts(labels: Sequence[str]) -> list[str]:
    """Return the labels without the parts, between commas, that all begin or end with."""
    parts = [label.split(", ") for label in labels]
    for end in (0, -1):
        while all(len(part) > 1 and part[end] == parts[0][end] for part in parts):
            for part in parts:
                part.pop(end)
    return [", ".join(part) for part in parts]


def _grid(grid: Grid) -> str:
    """Write a table of the paper, ours above the paper's in every cell."""
    head = f'<tr><td></td><th scope="colgroup" colspan="{len(grid.columns)}">{grid.column_title}</th></tr>'
    rows = []
    for row in grid.rows:
        setting = row[0].setting
        note = f"<small>{escape(setting.note)}</small>" if setting.note else ""
        rows.append((setting.method_name, note, map(_grid_cell, row)))
    caption = f"{grid.title}. {METRICS[grid.rows[0][0].metric]}."
    return _layout(caption, ["method", *grid.columns], rows, head, _note(DIFFERENCES) if grid.measured else "")


def _grid_cell(cell: Cell) -> str:
    paper = f'<span class="paper">paper {text.COLUMNS["paper"](cell)}</span>'
    if cell.mean is None:
        return f'<span class="missing">not run</span>{paper}'
    deviation = "" if cell.deviation is None else f" <small>± {cell.deviation:.1f}</small>"
    difference = (
        f'<span class="difference {cell.agreement}" title="{cell.agreement}">{text.signed(cell.difference)}</span>'
    )
    orders = f'<span class="paper">over {cell.orders} orders</span>' if cell.orders > 1 else ""
    return f'<span class="ours">{text.number(cell.mean)}{deviation}</span> {difference}{paper}{orders}'


def _table(table: Table, shape: str = "") -> str:
    rows = [(row[0], "", map(escape, row[1:])) for row in table.rows]
    return _layout(table.title, table.columns, rows, shape=shape) if table.rows else ""


def _layout(
    caption: str,
    titles: Sequence[str],
    rows: Iterable[tuple[str, str, Iterable[str]]],
    head: str = "",
    note: str = "",
    shape: str = "",
) -> str:
    """Write a table in a box of its own that scrolls sideways; each row is a heading, a note to it, and cells."""
    label = escape(caption)
    kinds = [" class=word" if title in text.WORDS else "" for title in titles]
    columns = "".join(f'<th scope="col"{kind}>{escape(title)}</th>' for kind, title in zip(kinds, titles, strict=True))
    body = []
    for name, under, cells in rows:
        row = "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds[1:], cells, strict=True))
        body.append(f'<tr><th scope="row">{escape(name)}{under}</th>{row}</tr>\n')
    return (
        f'<div class="tabled"><p class="caption">{label}</p>'
        f'<div class="scroll {shape}" role="region" tabindex="0" aria-label="{label}">\n'
        f'<table aria-label="{label}">\n<thead>{head}<tr>{columns}</tr></thead>\n'
        f"<tbody>\n{''.join(body)}</tbody></table></div>{note}</div>\n"
    )
