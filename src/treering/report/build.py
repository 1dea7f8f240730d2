"""`treering report`: everything measured, beside the paper, as tables, figures and one page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from treering.errors import TreeringError
from treering.report import charts, figures, markdown, page
from treering.report.charts import Chart
from treering.report.results import read_results
from treering.runtime import files


def write(results: Path, out: Path) -> list[Path]:
    """Write `out`/index.html, `out`/tables.md and `out`/figures from a folder of results; returns the files.

    Figures of an earlier report there that this one has not are removed.
    """
    _need_libraries()
    runs = read_results(results)
    parts = charts.every_chart(runs)
    every = [chart for charts_of_part in parts.values() for chart in charts_of_part]
    drawn = {chart.name: figures.render(chart) for chart in every}
    svgs = {name: pictures["svg"] for name, pictures in drawn.items()}
    contents = {
        out / "index.html": page.html(runs, parts, svgs).encode(),
        out / "tables.md": (markdown.report(runs) + _gallery(every)).encode(),
    }
    for name, pictures in drawn.items():
        contents |= {out / "figures" / f"{name}.{ending}": picture for ending, picture in pictures.items()}
    try:
        (out / "figures").mkdir(parents=True, exist_ok=True)
        earlier = _figures_of_earlier(out)
        for file, content in contents.items():
            files.write(file, content)
        for file in earlier - contents.keys():
            file.unlink(missing_ok=True)
    except OSError as error:
        raise TreeringError(f"{files.why(out, error)}; choose another folder") from None
    return list(contents)


def _gallery(drawn: Sequence[Chart]) -> str:
    titles = [re.sub(r"([\[\]<>\\])", r"\\\1", chart.title) for chart in drawn]
    images = [f"![{title}](figures/{chart.name}.svg)" for title, chart in zip(titles, drawn, strict=True)]
    return "\n## Figures\n\n" + "\n\n".join(images) + "\n"


def _figures_of_earlier(out: Path) -> set[Path]:
    """The files that a report written there before lists in its tables.md."""
    gallery = out / "tables.md"
    text = gallery.read_text(encoding="utf-8", errors="replace") if gallery.exists() else ""
    names = re.findall(r"\]\(figures/([^)/]+)\.svg\)", text)
    return {out / "figures" / f"{name}.{ending}" for name in names for ending in figures.FORMATS}


def _need_libraries() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise TreeringError("reports need matplotlib: pip install 'treering[report]'") from None
