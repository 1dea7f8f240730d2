"""The report as one HTML page that needs nothing else: tables written out here, charts drawn by `page.js`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from treering import speed
from treering.core import metrics
from treering.report import charts, tables
from treering.report.charts import Bars, Chart, Lines, Matrices
from treering.report.tables import Cell, Comparison, Result, Setting

MOST_CONFUSED = 5
"""Pairs of classes that are named under each confusion matrix."""
CLOSE = 1.0
"""Points within which a number agrees with a paper's that has no deviation, or a smaller one."""

Layout = tuple[str, str, Callable[[Setting], str], Callable[[Setting], str]]
"""What the rows are, what the columns are, and both of a cell."""


def _method(setting: Setting) -> str:
    return tables.method_name(setting.method)


LAYOUTS: dict[str, Layout] = {
    "1a": ("method", "classes per step", _method, lambda setting: setting.steps),
    "1b": ("method", "dataset", _method, lambda setting: tables.dataset_name(setting.dataset)),
    "2a": (
        "method, exemplars per class",
        "classes per step",
        lambda setting: f"{_method(setting)}, {setting.memory[1]}",
        lambda setting: setting.steps,
    ),
    "2b": ("method", "classes per step", _method, lambda setting: setting.steps),
    "selection": ("selection", "classes per step", lambda setting: setting.selection, lambda setting: setting.steps),
    "gem": ("method", "exemplars in memory", _method, lambda setting: setting.memory_name),
    "similar": ("method", "classes per step", _method, lambda setting: setting.steps),
}
METRICS = {
    "top1": "Accuracy in percent, averaged over the steps after the first, as the paper reports it",
    "top5": "In percent, averaged over the steps after the first",
    "final-task-aware": "In percent, a mean over the tasks",
}


def html(results: Sequence[Result], parts: dict[str, list[Chart]]) -> str:
    """The whole page."""
    sections = [section for section in _sections(results, parts) if section.body]
    assets = files("treering.report")
    embedded = {chart.name: _chart_data(chart) for charts_of_part in parts.values() for chart in charts_of_part}
    # "<" cannot end the script element that holds the data, whatever the classes are called.
    data = json.dumps(embedded, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Template(assets.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        style=assets.joinpath("page.css").read_text(encoding="utf-8") + _colours(),
        script=assets.joinpath("page.js").read_text(encoding="utf-8"),
        overview=_overview(results),
        contents="\n".join(f'<li><a href="#{section.name}">{section.short}</a></li>' for section in sections),
        main="\n".join(
            f'<section id="{section.name}" aria-labelledby="{section.name}-title">\n'
            f'<h2 id="{section.name}-title">{section.title}</h2>\n{section.body}\n</section>'
            for section in sections
        ),
        charts=data,
    )


def _colours() -> str:
    looks = [*charts.STYLES.values(), *charts.OWN_STYLES]
    variables = "".join(f"--c{index}: light-dark({look.colour}, {look.on_dark}); " for index, look in enumerate(looks))
    return f":root {{ {variables}}}\n"


def _chart_data(chart: Chart) -> dict[str, Any]:
    """What `page.js` draws: the chart, and how each of its methods looks."""
    made = asdict(chart)
    for series in [*made.get("lines", []), *made.get("bars", [])]:
        look = charts.style(series["method"])
        index = [*charts.STYLES.values(), *charts.OWN_STYLES].index(look)
        series |= {"colour": f"var(--c{index})", "dash": " ".join(map(str, look.dash)), "marker": look.marker}
    return made


# Overview


def _overview(results: Sequence[Result]) -> str:
    settings = sorted({tables.setting_of(run) for run in results}, key=tables.sort_key)
    datasets = dict.fromkeys(setting.dataset for setting in settings)
    names = _listed(escape(tables.dataset_name(dataset)) for dataset in datasets)
    methods = len({run["method"] for run in results})
    used = {device for run in results for device in str(run.get("device", "an unknown device")).split(", ")}
    devices = _listed(escape(device) for device in sorted(used))
    trainings = device_seconds(results)
    seconds = sum(trainings)
    spent = speed.as_text(seconds)
    lead = (
        f"{_counted(len(trainings), 'run')} of {_counted(methods, 'method')} on {names}, {spent} on {devices}. "
        "Ours stands beside what the paper printed; what has not been run says so."
    )
    return f'<p class="lead">{lead}</p>\n<ul class="cards">\n{"".join(_cards(results))}</ul>'


def device_seconds(results: Iterable[Result]) -> list[float]:
    """Each training's time on the device: those at once share it, and two readouts of one training are one."""
    trainings = {}
    for run in results:
        training = (run["seconds"], run["order"], run["seed"], json.dumps(run.get("recipe"), sort_keys=True))
        trainings[training] = run["seconds"] / max(1, run.get("runs_at_once", 1))
    return list(trainings.values())


def _cards(results: Sequence[Result]) -> list[str]:
    """The few numbers to begin with."""
    made = []
    headline = {
        cell.setting.method: cell for cell in tables.table("1a", results) if cell.setting.classes_per_step == 10
    }
    measured = [cell for name in tables.TITLES for cell in tables.table(name, results) if cell.mean is not None]
    first = [headline[method] for method in ("eeil", "icarl") if headline[method].mean is not None]
    for cell in first or measured[:2]:
        title = f"{_method(cell.setting)}, {charts.steps_name(cell.setting)}"
        under = f"paper {tables.with_deviation(cell.paper, cell.paper_deviation)} {_difference(cell)}"
        made.append(_card(title, _ours(cell), under))
    against_icarl = next(
        test for test in tables.comparisons(results) if test.paper and test.setting.classes_per_step == 10
    )
    if against_icarl.lead is not None:
        published = (headline["eeil"].paper or 0) - (headline["icarl"].paper or 0)
        under = f"in {_counted(against_icarl.orders, 'class order')}; paper {tables.signed(published)}"
        big = f"{tables.signed(against_icarl.lead)} <small>points</small>"
        made.append(_card("EEIL&rsquo;s lead over iCaRL", big, under))
    if measured:
        differences = [cell.difference or 0.0 for cell in measured]
        close = sum(_agreement(cell) == "close" for cell in measured)
        under = f"{close} agree; on average {tables.signed(metrics.average(differences))} points from the paper"
        total = len(tables.paper_rows())
        made.append(_card("The paper&rsquo;s numbers, measured", f"{len(measured)} <small>of {total}</small>", under))
    own = [cell for cell in tables.beyond_the_paper(results) if not _in_paper(cell.setting.dataset)]
    for dataset in dict.fromkeys(cell.setting.dataset for cell in own):
        ranked = [cell for cell in own if cell.setting.dataset == dataset and cell.setting.method != "joint"]
        best = max((cell for cell in ranked if cell.mean is not None), key=lambda cell: cell.mean or 0, default=None)
        if best:
            title = f"Best on {escape(tables.dataset_name(dataset))}"
            made.append(
                _card(title, _ours(best), f"{escape(_method(best.setting))}, {charts.steps_name(best.setting)}")
            )
    return made


def _card(title: str, big: str, under: str) -> str:
    return f'<li class="card"><strong>{title}</strong><span class="big">{big}</span>{under}</li>\n'


def _ours(cell: Cell) -> str:
    deviation = "" if cell.deviation is None else f" <small>± {cell.deviation:.1f}</small>"
    return f"{tables.number(cell.mean)}{deviation}"


def _in_paper(dataset: str) -> bool:
    return any(row["dataset"] == dataset for row in tables.paper_rows())


# Sections


@dataclass(frozen=True)
class Section:
    """A part of the page, listed in its contents."""

    name: str
    short: str
    title: str
    body: str


def _sections(results: Sequence[Result], parts: dict[str, list[Chart]]) -> list[Section]:
    """What the page is made of; a section with nothing in it is left out."""
    everything = {name: tables.table(name, results) for name in tables.TITLES}
    run = {name: cells for name, cells in everything.items() if any(cell.runs for cell in cells)}
    missing = {name: cells for name, cells in everything.items() if name not in run}

    tests = tables.comparisons(results)
    any_test = any(test.orders for test in tests)

    def beside(part: str, *names: str) -> str:
        written = "".join(_paper_table(name, run[name]) for name in names if name in run)
        return _beside(written, parts.get(part, []))

    return [
        Section("fixed-memory", "Fixed memory", "Fixed memory", beside("fixed-memory", "1a", "1b")),
        Section("accuracy", "Step by step", "Step by step", beside("accuracy")),
        Section("ablation", "Ablation", "Ablation", beside("ablation", "2b")),
        Section("budgets", "Budgets", "Exemplars per class", beside("budgets", "2a")),
        Section("selection", "Selection", "Selection rule", beside("selection", "selection")),
        Section("gem", "GEM", "Against GEM", beside("gem", "gem")),
        Section("similar", "Similar", "Similar classes", beside("similar", "similar")),
        Section("own", "Beyond", "Beyond the paper", _beyond(results) + _beside("", parts["own"])),
        Section("p-values", "p-values", "Is the lead real?", _tests(tests) if any_test else ""),
        Section("forgetting", "Forgetting", "Forgetting", _matrices(parts["forgetting"])),
        Section("confusion", "Confusion", "Confusion", _matrices(parts["confusion"])),
        Section("runs", "Runs", "Every run", _runs(results)),
        Section("not-run", "Not run", "Not run", _not_run(missing, [] if any_test else tests)),
    ]


def _paper_table(name: str, cells: Sequence[Cell]) -> str:
    """A table of the paper as a grid, ours above the paper's in every cell."""
    row_title, column_title, row_of, column_of = LAYOUTS[name]
    columns = list(dict.fromkeys(column_of(cell.setting) for cell in cells))
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(row_of(cell.setting), {})[column_of(cell.setting)] = cell
    lines = []
    for title, row in rows.items():
        part = tables.ABLATIONS.get(next(iter(row.values())).setting.method)
        under = f"<small>{escape(part)}</small>" if part else ""
        values = "".join(_paper_cell(row[column]) if column in row else "<td></td>" for column in columns)
        lines.append(f'<tr><th scope="row">{escape(title)}{under}</th>{values}</tr>')
    caption = f"{tables.TITLES[name]}. {METRICS[cells[0].metric]}."
    return _table(caption, [row_title, *columns], lines, over=column_title)


def _paper_cell(cell: Cell) -> str:
    paper = f'<span class="paper">paper {tables.with_deviation(cell.paper, cell.paper_deviation)}</span>'
    if cell.mean is None:
        return f'<td class="missing">not run{paper}</td>'
    orders = f'<span class="paper">over {cell.orders} orders</span>' if cell.orders > 1 else ""
    return f'<td><span class="ours">{_ours(cell)}</span> {_difference(cell)}{paper}{orders}</td>'


def _difference(cell: Cell) -> str:
    words = {"close": "agrees", "over": "above the paper", "under": "below the paper"}
    kind = _agreement(cell)
    return f'<span class="difference {kind}" title="{words[kind]}">{tables.signed(cell.difference)}</span>'


def _agreement(cell: Cell) -> str:
    difference = cell.difference or 0.0
    if abs(difference) <= max(CLOSE, cell.paper_deviation or 0.0):
        return "close"
    return "over" if difference > 0 else "under"


def _table(
    caption: str, titles: Sequence[str], lines: Iterable[str], words: int = 1, tall: bool = False, over: str = ""
) -> str:
    """A table in a box of its own that scrolls sideways; the first `words` columns are text, `over` the others."""
    group = f'<tr><td></td><th scope="colgroup" colspan="{len(titles) - 1}">{escape(over)}</th></tr>' if over else ""
    head = "".join(
        f'<th scope="col"{" class=word" if index < words else ""}>{escape(title)}</th>'
        for index, title in enumerate(titles)
    )
    label = escape(caption)
    return (
        f'<div class="tabled"><p class="caption">{label}</p>'
        f'<div class="scroll{" tall" if tall else ""}" role="region" tabindex="0" aria-label="{label}">\n'
        f'<table aria-label="{label}">\n<thead>{group}<tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div></div>\n"
    )


def _row(words: Sequence[str], numbers: Sequence[str]) -> str:
    """A row whose first word is its heading."""
    text = "".join(f'<td class="word">{escape(word)}</td>' for word in words[1:])
    return (
        f'<tr><th scope="row">{escape(words[0])}</th>{text}{"".join(f"<td>{number}</td>" for number in numbers)}</tr>'
    )


def _beside(table: str, made: Sequence[Chart]) -> str:
    """A table; bar charts, a single one beside it where there is room; and line charts of which one is chosen."""
    bars = [_figure(chart.name, chart.title, _bar_values(chart)) for chart in made if isinstance(chart, Bars)]
    lines = [chart for chart in made if isinstance(chart, Lines)]
    curves = _switch(
        [(chart.title, chart.name, _figure(chart.name, chart.title, _line_values(chart))) for chart in lines]
    )
    if table and len(bars) == 1:
        return f'<div class="beside">{table}{bars[0]}</div>{curves}'
    if table and not bars and len(lines) == 1:
        return f'<div class="beside">{table}{curves}</div>'
    return table + (f'<div class="row">{"".join(bars)}</div>' if bars else "") + curves


def _figure(name: str, title: str, values: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><div class="chart" data-chart="{escape(name)}"></div>\n'
        f'<details class="values"><summary>Values</summary>{values}</details></figure>'
    )


def _switch(panels: Sequence[tuple[str, str, str]]) -> str:
    """Panels of which one is seen at a time where there is JavaScript: label, name and content."""
    if len(panels) < 2:
        return "".join(content for _, _, content in panels)
    first = next((name for label, name, _ in panels if " 10 classes per step" in label), None)
    written = []
    for short, (_, name, content) in zip(_telling_parts([label for label, _, _ in panels]), panels, strict=True):
        opened = " data-first" if name == first else ""
        written.append(f'<div id="panel-{escape(name)}" data-label="{escape(short)}"{opened}>{content}</div>')
    return f'<div class="switch">{"".join(written)}</div>\n'


def _telling_parts(labels: Sequence[str]) -> list[str]:
    """The labels without the parts, between commas, that all begin or end with."""
    parts = [label.split(", ") for label in labels]
    while all(len(part) > 1 and part[0] == parts[0][0] for part in parts):
        parts = [part[1:] for part in parts]
    while all(len(part) > 1 and part[-1] == parts[0][-1] for part in parts):
        parts = [part[:-1] for part in parts]
    return [", ".join(part) for part in parts]


def _line_values(chart: Lines) -> str:
    classes = sorted({x for line in chart.lines for x in line.x})
    lines = []
    for line in chart.lines:
        deviations = line.deviation or [None] * len(line.x)
        known = {
            x: tables.with_deviation(y, deviation) for x, y, deviation in zip(line.x, line.y, deviations, strict=True)
        }
        lines.append(_row([line.label], [known.get(x, "") for x in classes]))
    return _table("Accuracy in percent by classes learnt", ["method", *map(str, classes)], lines)


def _bar_values(chart: Bars) -> str:
    lines = []
    for bar in chart.bars:
        ours = [
            "not run" if value is None else tables.with_deviation(value, deviation)
            for value, deviation in zip(bar.values, bar.deviation, strict=True)
        ]
        both = [
            f"{value} <small>paper {tables.number(paper)}</small>" for value, paper in zip(ours, bar.paper, strict=True)
        ]
        lines.append(_row([bar.label], both))
    return _table(f"Accuracy in percent by {chart.x_label}", ["method", *chart.groups], lines)


def _beyond(results: Sequence[Result]) -> str:
    """Datasets, methods and settings that the paper has not."""
    titles = ("method", "classes per step", "memory", "selection", "average", "first step included", "last step")
    cells = tables.beyond_the_paper(results)
    parts = []
    for dataset in dict.fromkeys(cell.setting.dataset for cell in cells):
        lines = []
        for cell in cells:
            if cell.setting.dataset == dataset:
                setting = cell.setting
                words = [_method(setting), setting.steps, setting.memory_name, setting.selection]
                numbers = [_ours(cell), tables.number(cell.mean_with_first), tables.number(tables.last_step(cell))]
                lines.append(_row(words, [*numbers, str(cell.orders)]))
        caption = "Accuracy in percent; the average is over the steps after the first"
        parts.append(f"<h3>{escape(tables.dataset_name(dataset))}</h3>{_table(caption, [*titles, 'orders'], lines, 4)}")
    return "".join(parts)


def _tests(tests: Sequence[Comparison]) -> str:
    """A row for each setting, a column for each rival."""
    rivals = [rival for rival in tables.RIVALS if any(test.rival == rival for test in tests)]
    rows: dict[Setting, dict[str, Comparison]] = {}
    for test in tests:
        rows.setdefault(test.setting, {})[test.rival] = test
    lines = []
    for setting, row in rows.items():
        dataset = tables.dataset_name(setting.dataset)
        where = f"{setting.steps} classes per step, memory {setting.memory_name}, {setting.selection}"
        cells = "".join(_test_cell(row[rival]) if rival in row else "<td></td>" for rival in rivals)
        lines.append(f'<tr><th scope="row">{escape(dataset)}<small>{escape(where)}</small></th>{cells}</tr>')
    intro = (
        "<p>A paired t-test over the class orders that both methods have: how likely a difference this large is "
        "by chance alone.</p>"
    )
    titles = ["setting", *(tables.method_name(rival) for rival in rivals)]
    return intro + _table("Two-sided p-values; leads in points", titles, lines, over="EEIL against")


def _test_cell(test: Comparison) -> str:
    lead = f'<span class="paper">lead {tables.signed(test.lead)}, {_counted(test.orders, "order")}</span>'
    paper = f'<span class="paper">paper {test.paper}</span>' if test.paper else ""
    if test.orders < 2:
        return f'<td class="missing">{tables.tested(test)}{paper}</td>'
    return f'<td><span class="ours">{escape(tables.tested(test))}</span>{lead}{paper}</td>'


def _matrices(made: Sequence[Chart]) -> str:
    found = [chart for chart in made if isinstance(chart, Matrices)]
    if not found:
        return ""
    if found[0].kind == "forgetting":
        intro = (
            "<p>Each row follows the classes that one step brought: how well they are recognised after that step and "
            "after every later one. A row that darkens to the right is forgetting.</p>"
            '<p class="scale" aria-hidden="true">0 % <i></i> 100 %</p>'
        )
    else:
        intro = (
            "<p>What the images of each class are taken for after the last step. Lines separate the steps that brought "
            "the classes; a faint cell is a few images.</p>"
        )
    return intro + _switch([(chart.title, chart.name, _panel(chart)) for chart in found])


def _panel(chart: Matrices) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(matrix.label)}<small>{escape(matrix.note)}</small></figcaption>"
        f'<div class="chart matrix" data-chart="{escape(chart.name)}" data-matrix="{index}"></div></figure>'
        for index, matrix in enumerate(chart.matrices)
    )
    if chart.kind == "forgetting":
        titles = ["method", "first step's classes at first", "at the end", "in all"]
        lines = [
            _row(
                [matrix.label],
                [tables.number(matrix.values[0][0]), tables.number(matrix.values[0][-1]), escape(matrix.note)],
            )
            for matrix in chart.matrices
        ]
        values = _table("What became of the first step's classes, accuracy in percent", titles, lines)
    else:
        lines = [
            _row([matrix.label, true, taken], [f"{images} of {total}"])
            for matrix in chart.matrices
            for true, taken, images, total in charts.most_confused(matrix, MOST_CONFUSED)
        ]
        values = _table("The pairs confused most", ["method", "true class", "taken for", "images"], lines, 3)
    summary = "Values" if chart.kind == "forgetting" else "The pairs confused most"
    return (
        f"<h3>{escape(chart.title)}</h3><div class=row>{figures}</div>"
        f'<details class="values"><summary>{summary}</summary>{values}</details>'
    )


def _runs(results: Sequence[Result]) -> str:
    lines = []
    for run in sorted(results, key=lambda run: (*tables.sort_key(tables.setting_of(run)), run["order"], run["seed"])):
        setting = tables.setting_of(run)
        words = [
            _method(setting),
            tables.dataset_name(setting.dataset),
            setting.steps,
            setting.memory_name,
            setting.selection,
        ]
        at_once = run.get("runs_at_once", 1)
        shared = f" <small>({at_once} at once)</small>" if at_once > 1 else ""
        accuracy = [
            tables.number(value) for value in (run["average_without_first"], run["average"], run["accuracy"][-1])
        ]
        rate = f"{run['images_per_second']:,.0f}" if "images_per_second" in run else ""
        code = f"<code>{escape(tables.short_commit(str(run.get('commit', ''))))}</code>"
        spent = [f"{run['seconds'] / 60:.1f}{shared}", rate, escape(str(run.get("device", ""))), code]
        lines.append(_row(words, [str(run["order"]), str(run["seed"]), *accuracy, *spent]))
    titles = [
        "method",
        "dataset",
        "classes per step",
        "memory",
        "selection",
        "order",
        "seed",
        "average",
        "first included",
    ]
    more = ["last step", "minutes", "images/s", "device", "commit"]
    return _table("One line for each result file; accuracy in percent", [*titles, *more], lines, 5, tall=True)


def _not_run(missing: dict[str, list[Cell]], tests: Sequence[Comparison]) -> str:
    """Tables of the paper without a single run of ours, out of the way."""
    if not missing and not tests:
        return ""
    written = "".join(_paper_table(name, cells) for name, cells in missing.items())
    written += _tests(tests) if tests else ""
    return (
        "<p>Nothing in these tables of the paper has been run yet.</p>"
        f'<details class="values"><summary>Show the paper&rsquo;s numbers</summary>{written}</details>'
    )


def _listed(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = list(words)
    return f"{', '.join(most)} and {last}" if most else last


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
