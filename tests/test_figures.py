"""Charts as pictures: they open, they are the same every time, and odd names do no harm."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import rcParams
from PIL import Image
from report_helper import cifar, result

from treering.report import charts, figures
from treering.report.charts import Bar, Bars, Chart, Line, Lines, Matrices, Matrix


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


def test_bars_are_drawn_with_gaps_and_marks() -> None:
    chart = charts.every_chart([cifar(62.0, selection="random")])["selection"][0]
    assert isinstance(chart, Bars)
    with_paper = figures.render(chart)["png"]
    bar = chart.bars[0]
    bare = Bars(chart.name, chart.title, chart.x_label, chart.groups, [Bar(**(vars(bar) | {"paper": [None] * 3}))])
    assert with_paper != figures.render(bare)["png"]


def test_the_papers_mark_does_not_hide_how_far_a_bar_goes() -> None:
    def upper_half(paper: float) -> np.ndarray:
        chart = Bars("b", "t", "x", ["one"], [Bar("EEIL", "eeil", [64.6], [None], [paper])])
        picture = np.asarray(Image.open(io.BytesIO(figures.render(chart)["png"])).convert("L")).astype(int)
        return picture[: len(picture) // 2]

    bare, marked = upper_half(20.0), upper_half(64.0)
    assert (marked < bare).any()
    assert (marked <= bare).all(), "nothing is paler for the mark"


def test_few_steps_are_marked_on_the_axis() -> None:
    chart = Lines("l", "t", [Line("EEIL", "eeil", [50, 100], [90.0, 80.0], None, "80.0")])
    assert figures._lines(chart).axes[0].get_xticks().tolist() == [50, 100]
    uneven = Lines("l", "t", [Line("EEIL", "eeil", [33, 66, 99, 100], [90.0] * 4, None, "80.0")])
    assert 99 not in figures._lines(uneven).axes[0].get_xticks(), "its label would lie on that of 100"


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
        matrix = Matrix("EEIL", names, names, values, [classes // 2], "")
        return len(figures.render(Matrices("m", "t", "confusion", [matrix]))["svg"])

    assert size(100) < size(12)


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(rcParams)
    figures.render(first("own"))
    assert dict(rcParams) == before
