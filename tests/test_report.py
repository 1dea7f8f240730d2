"""`report.write`: the files it makes, and one clear line for what it cannot use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_helper import result, save

from treering import TreeringError
from treering.report import build as report
from treering.report import figures

ROOT = Path(__file__).parent.parent
SVG = b'<svg width="1pt" viewBox="0 0 1 1"></svg>'


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures have tests of their own."""
    monkeypatch.setattr(figures, "render", lambda chart: {"png": chart.name.encode(), "svg": SVG})


def test_a_report_is_a_page_tables_and_figures(tmp_path: Path) -> None:
    written = report.write(save(tmp_path / "results", result()), tmp_path / "new" / "report")
    names = [str(file.relative_to(tmp_path / "new" / "report")) for file in written]
    plots = [f"figures/{plot}-birds-2-total60" for plot in ("accuracy", "forgetting", "confusion")]
    assert names == ["index.html", "tables.md", *(f"{plot}.{ending}" for plot in plots for ending in ("png", "svg"))]
    assert all(file.stat().st_size > 0 for file in written)
    text = (tmp_path / "new" / "report" / "tables.md").read_text(encoding="utf-8")
    assert all(f"({plot}.svg)" in text for plot in plots)


@pytest.mark.usefixtures("no_drawing")
def test_the_committed_results_make_a_report(tmp_path: Path) -> None:
    written = report.write(ROOT / "results", tmp_path)
    assert tmp_path / "index.html" in written
    assert len(set(written)) == len(written)


@pytest.mark.usefixtures("no_drawing")
def test_a_second_report_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    results = save(tmp_path / "results", result())
    first = {file: file.read_bytes() for file in report.write(results, tmp_path / "out")}
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "out" / "index.html").write_text("old")
    assert {file: file.read_bytes() for file in report.write(results, tmp_path / "out")} == first
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.usefixtures("no_drawing")
def test_figures_that_only_an_earlier_report_had_are_removed(tmp_path: Path) -> None:
    report.write(save(tmp_path / "results", result()), tmp_path / "out")
    mine = tmp_path / "out" / "figures" / "mine.svg"
    mine.write_text("<svg/>")
    others = save(tmp_path / "others", result(dataset="fish"))
    written = report.write(others, tmp_path / "out")
    left = {file for file in (tmp_path / "out").rglob("*") if file.is_file()}
    assert left == {*written, mine}


def broken(**changes: Any) -> Callable[[Path], Path]:
    return lambda folder: save(folder, result(**changes))


def text(content: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        save(folder, result())
        (folder / "other.json").write_text(content)
        return folder

    return write


@pytest.mark.parametrize(
    "make",
    [
        text("not JSON"),
        text("[]"),
        text("{}"),
        text('"a"'),
        text("null"),
        broken(accuracy=[]),
        broken(accuracy="high"),
        broken(accuracy=[float("nan"), 1.0, 2.0]),
        broken(average=None, accuracy=None),
        broken(memory=2000),
        broken(order="first"),
        broken(classes_per_step=None),
        broken(class_accuracy=[[1.0, 2.0]]),
        broken(confusion=[[1, 2], [3, 4]]),
    ],
)
def test_a_file_that_is_not_a_result_is_named(make: Callable[[Path], Path], tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match=r"\.json is not a result .* move it") as caught:
        report.write(make(tmp_path / "results"), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_result_that_is_a_link_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    save(tmp_path / "elsewhere", result())
    results = save(tmp_path / "results", result())
    (results / "other.json").symlink_to(tmp_path / "elsewhere" / "run-0.json")
    with pytest.raises(TreeringError, match=r"cannot read .*other\.json: other\.json is a link: remove it"):
        report.write(results, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there_or_has_no_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match=r"there is no folder .*nowhere"):
        report.write(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(TreeringError, match="holds no results"):
        report.write(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_drawing")
def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(TreeringError, match=r"cannot write .*out: .*; choose another folder"):
        report.write(save(tmp_path / "results", result()), tmp_path / "out")


@pytest.mark.parametrize("library", ["matplotlib"])
def test_a_missing_library_is_named_with_the_way_to_get_it(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(TreeringError, match=r"pip install 'treering\[report\]'"):
        report.write(save(tmp_path / "results", result()), tmp_path / "out")


@pytest.mark.usefixtures("no_drawing")
def test_names_do_not_break_the_pictures_of_the_tables(tmp_path: Path) -> None:
    report.write(save(tmp_path / "results", result(dataset="a](x) <b>")), tmp_path / "out")
    assert r"![a\](x) \<b\>, 2 classes per step" in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")
