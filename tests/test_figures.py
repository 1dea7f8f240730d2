"""Charts as pictures: they open, they are the same every time, and odd names do no harm."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rcParams
from PIL import Image
from report_helper import cifar, result

from treering.report import charts, figures
from treering.report.charts import Chart, Line, Lines, Matrices, Matrix
from treering.report.results import Setting
from treering.report.tables import Cell, Grid


def first(part: str, **changes: object) -> Chart:
    return charts.every_chart([result(**changes)])[part][0]


@pytest.mark.parametrize("part", ["own", "forgetting", "confusion"])
def test_a_chart_is_a_png_and_an_svg(part: str) -> None:
    contents = figures.render(first(part))
    assert set(contents) == {"png", "svg"}
    with Image.open(io.BytesIO(contents["png"])) as image:
        assert image.format == "PNG"
        assert image.width > 500
    assert ElementTree.fromstring(contents["svg"]).tag.endswith("svg")


def bars(mean: float, paper: float | None) -> Grid:
    runs = (cifar(mean),)
    setting = Setting("cifar100", 10, "eeil", ("total", 2000), "herding")
    return Grid("ablation", "ablation", "t", "x", ["one"], [[Cell(setting, runs, "2b", paper=paper)]])


def test_bars_are_drawn_with_marks_for_the_papers_numbers() -> None:
    assert figures.render(bars(64.6, 60.0))["png"] != figures.render(bars(64.6, None))["png"]


def test_the_papers_mark_does_not_hide_how_far_a_bar_goes() -> None:
    def upper_half(paper: float) -> np.ndarray:
        picture = np.asarray(Image.open(io.BytesIO(figures.render(bars(64.6, paper))["png"])).convert("L")).astype(int)
        return picture[: len(picture) // 2]

    bare, marked = upper_half(20.0), upper_half(64.0)
    assert (marked < bare).any()
    assert (marked <= bare).all(), "nothing is paler for the mark"


def test_few_steps_are_marked_on_the_axis() -> None:
    def words(*steps: int) -> list[str]:
        line = Line("EEIL", "eeil", list(steps), [90.0] * len(steps), None, "80.0")
        svg = ElementTree.fromstring(figures.render(Lines("l", "t", [line]))["svg"])
        return [element.text or "" for element in svg.iter("{http://www.w3.org/2000/svg}text")]

    assert {"50", "100"} <= set(words(50, 100))
    assert "99" not in words(33, 66, 99, 100), "its label would lie on that of 100"


def test_near_lines_are_told_apart_in_a_panel_of_differences_and_far_ones_need_none() -> None:
    def panels(*leads: float) -> int:
        lines = [Line("EEIL", "eeil", [1, 2], [60.0, 50.0], None, "")]
        lines += [
            Line(f"m{lead}", "icarl", [1, 2], [60.0 + lead, 50.0 + lead], None, "", [lead, lead]) for lead in leads
        ]
        return figures.render(Lines("l", "t", lines))["svg"].count(b">difference</text>")

    assert [panels(-1.0), panels(-40.0), panels(-40.0, 2.0), panels()] == [1, 0, 1, 0]


def test_the_same_results_give_the_same_bytes() -> None:
    bound = Line("upper bound", "joint", [2], [95.0], None, "95.0 after the last step")
    chart = Lines("l", "t", [Line("EEIL", "eeil", [1, 2], [90.0, 80.0], [1.0, 2.0], "80.0"), bound])
    assert figures.render(chart) == figures.render(chart)


def test_a_deviation_is_visible() -> None:
    lines = [Line("EEIL", "eeil", [1, 2], [60.0, 50.0], deviation, "50.0") for deviation in (None, [5.0, 9.0])]
    assert figures.render(Lines("l", "t", lines[:1])) != figures.render(Lines("l", "t", lines[1:]))


def test_names_are_not_formulas_and_rare_characters_do_not_warn() -> None:
    names = ["$x_", "鶴", "a" * 60, "<b>", "\\frac{", "%"]
    figures.render(first("confusion", class_order=names, dataset="a$b_$"))


def test_a_hundred_classes_have_no_numbers_in_their_cells() -> None:
    def size(classes: int) -> int:
        names = [f"class {index}" for index in range(classes)]
        values: list[list[float | None]] = [[1.0] * classes for _ in names]
        matrix = Matrix("EEIL", names, values, [classes // 2], "")
        return len(figures.render(Matrices("m", "t", "confusion", [matrix]))["svg"])

    assert size(100) < size(15)


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(rcParams)
    figures.render(first("own"))
    assert dict(rcParams) == before


def in_page(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(figures.inline(chart, figures.render(chart)["svg"]))


@pytest.mark.parametrize("part", ["own", "forgetting", "confusion"])
def test_in_the_page_names_are_a_charts_own_and_all_references_lead_to_them(part: str) -> None:
    chart = first(part)
    elements = list(in_page(chart).iter())
    ids = [element.attrib["id"] for element in elements if "id" in element.attrib]
    values = [value for element in elements for value in element.attrib.values()]
    used = {found for value in values for found in re.findall(r"^#(.+)$|url\(#(.+?)\)", value)}
    assert ids and len(ids) == len(set(ids))
    assert all(name.startswith(f"{chart.name}.") for name in ids)
    assert {one or other for one, other in used} == set(ids)


def test_in_the_page_a_line_chart_says_where_its_columns_end_and_which_line_is_whose() -> None:
    lines = [Line("EEIL", "eeil", [10, 20, 40], [90.0, 80.0, 70.0], None, "75.0")]
    elements = list(in_page(Lines("l", "t", lines)).iter())
    (hot,) = (element for element in elements if element.get("class") == "hot")
    edges = [float(edge) for edge in hot.attrib["data-x"].split()]
    assert (edges[0], edges[-1], len(edges)) == (0.0, 1.0, 4)
    assert edges[2] - edges[1] == pytest.approx(1.5 * (30 - 15) / (30 + 1.2) / 1.5, abs=1e-3)
    assert hot.get("tabindex") == "0" and "t" in hot.attrib["aria-label"]
    keys = [element.get("data-key") for element in elements if "data-key" in element.attrib]
    drawn = {element.get("data-line") for element in elements if "data-line" in element.attrib}
    assert (keys, drawn) == (["0"], {"0"})


def test_in_the_page_a_matrix_has_its_values_and_names() -> None:
    names = ["a<b>", 'x" id="y', "url(#c)"]
    chart = Matrices(
        "m", "t", "confusion", [Matrix("EEIL", names, [[1.0, 0.0, 2.0], [0.0] * 3, [3.0, 0.0, 0.5]], [1], "")]
    )
    (hot,) = (element for element in in_page(chart).iter() if element.get("class") == "hot")
    assert hot.attrib["data-names"].split() == " ".join(names).split()
    assert hot.attrib["data-cells"] == "1,,2;,,;3,,0.5"


def test_in_the_page_greys_and_the_colours_of_methods_follow_light_and_dark() -> None:
    text = figures.inline(first("own"), figures.render(first("own"))["svg"])
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", text)) == set()
    assert "var(--ink)" in text and "var(--c0)" in text


def test_an_unprintable_name_does_not_break_the_picture() -> None:
    ElementTree.fromstring(figures.render(first("confusion", class_order=["a\x0bb", *"bcdef"]))["svg"])
