"""The tables of the README: the paper's numbers beside those in results/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treering import TreeringError
from treering.experiments import tables

ROOT = Path(__file__).parent.parent


def result(**changes: Any) -> dict[str, Any]:
    made = {
        "dataset": "cifar100",
        "classes_per_step": 10,
        "method": "eeil",
        "memory": {"kind": "total", "size": 2000},
        "selection": "herding",
        "order": 0,
        "average_without_first": 61.25,
        "average": 64.0,
        "seconds": 90.0,
    }
    return made | changes


def row_of(text: str, *cells: str) -> list[str]:
    """The cells of the one row that has these."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    found = [row for row in rows if all(cell in row for cell in cells)]
    assert len(found) == 1, (cells, found)
    return found[0]


def test_the_readme_shows_what_the_results_hold(tmp_path: Path) -> None:
    copy = tmp_path / "README.md"
    copy.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    tables.update(copy, ROOT / "results")
    assert copy.read_text(encoding="utf-8") == (ROOT / "README.md").read_text(encoding="utf-8"), "run `make tables`"


def test_every_result_names_the_commit_and_the_recipe_it_was_made_with() -> None:
    for path in (ROOT / "results").glob("*.json"):
        made = json.loads(path.read_text())
        assert len(made["commit"]) == 40, path
        assert made["recipe"]["run"]["order"] == made["order"], path


def test_a_run_stands_beside_the_papers_number() -> None:
    text = tables.markdown([result()])
    assert row_of(text, "10", "EEIL", "63.6 ± 1.3") == ["10", "EEIL", "2000", "63.6 ± 1.3", "61.2", "64.0", "1.5"]


def test_cells_without_a_run_say_so_and_tables_without_any_are_left_out() -> None:
    text = tables.markdown([result()])
    assert row_of(text, "20", "EEIL", "63.7 ± 1.1")[4] == "not run yet"
    assert "table 2a" not in text
    assert tables.markdown([]) == ""


def test_runs_of_several_orders_are_averaged() -> None:
    text = tables.markdown([result(), result(order=1, average_without_first=62.25, runs_at_once=4)])
    row = row_of(text, "10", "EEIL", "63.6 ± 1.3")
    assert row[4] == "61.8 (2 orders)"
    assert row[6] == "1.5, 1.5 (4 at once)"


@pytest.mark.parametrize(
    "changes",
    [
        {"selection": "random"},
        {"memory": {"kind": "per-class", "size": 2000}},
        {"memory": {"kind": "total", "size": 1000}},
        {"dataset": "digits"},
        {"method": "eeil-base"},
        {"classes_per_step": [10, 90]},
    ],
)
def test_a_run_with_other_settings_is_not_taken_for_the_papers(changes: dict[str, Any]) -> None:
    text = tables.markdown([result(classes_per_step=20), result(**changes)])
    assert row_of(text, "10", "EEIL", "63.6 ± 1.3")[4] == "not run yet"


def test_selection_rules_and_budgets_have_tables_of_their_own() -> None:
    text = tables.markdown([result(selection="random"), result(memory={"kind": "per-class", "size": 50})])
    assert row_of(text, "63.1")[4] == "61.2"
    assert row_of(text, "62.7")[4] == "61.2"


def test_a_run_of_one_step_has_no_average_without_its_first() -> None:
    assert row_of(tables.markdown([result(average_without_first=None)]), "10", "EEIL", "63.6 ± 1.3")[4] == ""


def test_a_readme_without_a_place_for_the_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    with pytest.raises(TreeringError, match="no place for the tables"):
        tables.update(tmp_path / "README.md", tmp_path)
    assert (tmp_path / "README.md").read_text() == "nothing here"
