"""The tables of the README and of reports: the paper's numbers beside those in results/."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_helper import cifar
from report_helper import result as own_result

from treering.experiments.result import run_name
from treering.recipe import Recipe, ready_names
from treering.report import markdown, results, tables, text

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


def test_every_result_names_the_commit_and_the_recipe_it_was_made_with() -> None:
    for path in (ROOT / "results").glob("*.json"):
        made = json.loads(path.read_text())
        assert {len(commit) for commit in made["commit"].split(", ")} == {40}, path
        assert made["recipe"]["run"]["order"] == made["order"], path


def test_results_are_of_the_ready_recipes_as_they_are_now() -> None:
    """So that a clone's `reproduce` takes them for done."""
    names = [name for name in ready_names() if name.startswith("cifar100-")]
    ready = {run_name(recipe): recipe for recipe in map(Recipe.find, names)}
    checked = 0
    for path in (ROOT / "results").glob("*.json"):
        made = Recipe.from_dict(json.loads(path.read_text())["recipe"])
        first_order = replace(made, run=replace(made.run, order=0))
        if run_name(first_order) in ready:
            assert first_order == ready[run_name(first_order)], path.name
            checked += 1
    assert checked > 10


def test_a_run_stands_beside_the_papers_number() -> None:
    written = markdown.measured([result()])
    assert row_of(written, "10", "EEIL", "63.6 ± 1.3") == ["10", "EEIL", "2000", "63.6 ± 1.3", "61.2", "64.0", "1.5"]


def test_rows_without_a_run_are_counted_and_tables_without_any_are_left_out() -> None:
    written = markdown.measured([result()])
    assert "63.7 ± 1.1" not in written
    assert "\nNot run yet: 19 of the paper's 20 numbers.\n" in written
    assert "table 2a" not in written
    assert markdown.measured([]) == ""


def test_runs_of_several_orders_are_averaged() -> None:
    written = markdown.measured([result(), result(order=1, average_without_first=62.25, runs_at_once=4)])
    row = row_of(written, "10", "EEIL", "63.6 ± 1.3")
    assert row[4] == "61.8 ± 0.7 (2 orders)"
    assert row[6] == "1.5; 1.5 (4 at once)"


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
    written = markdown.measured([result(classes_per_step=20), result(**changes)])
    assert "63.7 ± 1.1" in written
    assert "63.6 ± 1.3" not in written


def test_a_result_of_a_method_that_is_not_here_is_one_of_a_method_of_its_own(tmp_path: Path) -> None:
    recipe = Recipe.find("cifar100-10").to_dict() | {"method": "replay"}
    (tmp_path / "one.json").write_text(json.dumps(cifar(61.25, recipe=recipe, method="replay")))
    (read,) = results.read_results(tmp_path)
    (cell,) = tables.beyond_the_paper([read])
    assert (cell.setting.method, cell.orders) == ("replay", 1)


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("training.epochs=1", True),
        ("augmentation.kind=crop-mirror", True),
        ("engine=eager", False),
        ("run.seed=3", False),
    ],
)
def test_a_run_of_the_papers_with_changed_settings_has_a_name_of_its_own(
    tmp_path: Path, change: str, changed: bool
) -> None:
    recipe = Recipe.find("cifar100-10").changed([change]).to_dict()
    (tmp_path / "one.json").write_text(json.dumps(cifar(61.25, recipe=recipe)))
    (read,) = results.read_results(tmp_path)
    assert results.setting_of(read).method_name == ("EEIL (changed settings)" if changed else "EEIL")
    assert read["method"] == "eeil", "what a run is stays apart from what it is called"
    assert bool(tables.beyond_the_paper([read])) is changed
    assert (markdown.measured([read]) == "") is changed


def test_runs_of_ones_own_with_different_settings_are_not_averaged(tmp_path: Path) -> None:
    for order, epochs in enumerate((1, 2, 1, 3)):
        recipe = Recipe.find("digits").changed([f"run.order={order}", f"training.epochs={epochs}"])
        made = own_result(dataset="digits", order=order, recipe=recipe.to_dict())
        (tmp_path / f"{order}.json").write_text(json.dumps(made))
    methods = [results.setting_of(read).method_name for read in results.read_results(tmp_path)]
    one, other = "EEIL (changed settings)", "EEIL (changed settings 2)"
    assert methods == [one, other, one, "EEIL (changed settings 3)"]
    assert sorted(cell.orders for cell in tables.beyond_the_paper(results.read_results(tmp_path))) == [1, 1, 2]


def test_selection_rules_and_budgets_have_tables_of_their_own() -> None:
    written = markdown.measured([result(selection="random"), result(memory={"kind": "per-class", "size": 50})])
    assert row_of(written, "63.1")[4] == "61.2"
    assert row_of(written, "62.7")[4] == "61.2"


def test_a_run_of_one_step_has_no_average_without_its_first() -> None:
    assert row_of(markdown.measured([result(average_without_first=None)]), "10", "EEIL", "63.6 ± 1.3")[4] == ""


def test_a_run_without_memory_belongs_to_the_papers_whatever_its_budget_would_be() -> None:
    lwf = cifar(41.0, method="lwf-mc", memory={"kind": "per-class", "size": 0}, selection="random")
    assert row_of(markdown.measured([lwf]), "40.4 ± 2.0")[4] == "41.0"


def test_a_report_has_the_difference_and_the_deviations() -> None:
    written = markdown.report([cifar(63.0), cifar(65.0, order=1), cifar(60.0, method="icarl")])
    fixed = written[written.index("table 1a") : written.index("table 1b")]
    eeil, icarl = row_of(fixed, "10", "63.6 ± 1.3"), row_of(fixed, "10", "60.5 ± 1.6")
    assert eeil == ["10", "EEIL", "2000", "63.6 ± 1.3", "64.0 ± 1.4", "+0.4", "64.0", "2"]
    assert icarl == ["10", "iCaRL", "2000", "60.5 ± 1.6", "60.0", "−0.5", "60.0", "1"]  # noqa: RUF001
    assert row_of(fixed, "20", "63.7 ± 1.1")[4:] == ["not run", "", "", ""]


def test_a_report_has_every_table_of_the_paper_and_every_number() -> None:
    written = markdown.report([own_result()])
    assert [written.count(title) for title in tables.TITLES.values()] == [1] * len(tables.TITLES)
    assert written.count("| not run ") == len(tables.paper_rows()) + 2 * 5  # and the five t-tests, in two columns


def test_the_tables_count_top5_and_known_tasks_where_the_paper_does() -> None:
    image_net = cifar(1.0, dataset="imagenet100", memory={"kind": "total", "size": 20000}, top5=[99.0, 80.0, 90.0])
    gem = cifar(1.0, method="gem", classes_per_step=5, memory={"kind": "per-step", "size": 20})
    gem["task_aware_accuracy"] = [90.0] * 9 + [47.0]  # ten steps of 20 exemplars are the paper's 200
    written = markdown.report([image_net, gem])
    assert row_of(written, "90.4")[4:7] == ["85.0", "−5.4", "89.7"]  # noqa: RUF001
    assert row_of(written, "48.0")[4:7] == ["47.0", "−1.0", ""]  # noqa: RUF001


def test_seeds_are_averaged_before_orders() -> None:
    runs = [cifar(60.0), cifar(64.0, seed=1), cifar(68.0, order=1)]
    (cell,) = (cell for cell in tables.table("1a", runs) if cell.runs)
    assert cell.mean == 65.0  # of 62 and 68; over the three runs it would be 64
    assert cell.deviation == pytest.approx(6 / math.sqrt(2))


def test_the_t_test_pairs_the_orders_that_both_methods_have() -> None:
    eeil = [cifar(average, order=order) for order, average in ((0, 63.0), (1, 66.0), (2, 99.0))]
    icarl = [cifar(average, order=order, method="icarl") for order, average in ((1, 62.0), (0, 61.0), (3, 1.0))]
    (found,) = (test for test in tables.comparisons(eeil + icarl) if test.orders)
    # Two differences, 2 and 4: t = 3 with one degree of freedom, where Student's distribution is Cauchy's.
    assert found.two_sided == pytest.approx(1 - 2 / math.pi * math.atan(3.0))
    assert found.one_sided == pytest.approx(0.5 - math.atan(3.0) / math.pi)
    assert (found.orders, found.lead, found.paper) == (2, 3.0, "0.003")


def p_values(runs: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The classes per step, and the one-sided, the two-sided and the paper's p-value, of each test."""
    return [(row[1], *row[-3:]) for row in text.tests(runs).rows]


def test_the_papers_p_values_are_shown_with_or_without_ours() -> None:
    paper = {"2": "0.00005", "5": "0.0005", "10": "0.003", "20": "0.0077", "50": "0.9886"}
    assert p_values([own_result()]) == [(steps, "not run", "not run", p_value) for steps, p_value in paper.items()]


def test_one_order_is_too_few_for_a_t_test_and_equal_methods_have_no_p_value() -> None:
    one = [cifar(63.0), cifar(60.0, method="icarl")]
    assert ("10", "one order only", "one order only", "0.003") in p_values(one)
    equal = [cifar(60.0, order=order, method=method) for order in (0, 1) for method in ("eeil", "icarl")]
    assert ("10", "undefined", "undefined", "0.003") in p_values(equal)


def test_a_run_with_changed_settings_is_not_tested_for_eeil_or_its_rival() -> None:
    eeil = [cifar(63.0, order=0), cifar(64.0, order=1)]
    changed = [cifar(60.0 + 3 * order, order=order, method="icarl", variant=1) for order in (0, 1)]
    assert all(test.orders == 0 for test in tables.comparisons(eeil + changed))


@pytest.mark.parametrize(
    ("average", "agreement"),
    [(62.4, "agrees"), (64.9, "agrees"), (65.0, "above"), (62.2, "below")],
)
def test_a_number_agrees_within_the_papers_deviation(average: float, agreement: str) -> None:
    (cell,) = (cell for cell in tables.table("1a", [cifar(average)]) if cell.runs)  # the paper has 63.6 ± 1.3
    assert cell.agreement == agreement


def test_a_number_of_the_paper_without_deviation_agrees_within_one_point() -> None:
    cells = [tables.table("similar", [similar(average)])[0] for average in (72.3, 72.2)]  # the paper has 73.3
    assert [cell.agreement for cell in cells] == ["agrees", "below"]


def similar(average: float) -> dict[str, Any]:
    memory = {"kind": "total", "size": 200}
    return cifar(average, dataset="cifar100-vehicles", classes_per_step=2, memory=memory)


def test_the_headline_counts_the_papers_numbers_and_lists_those_that_fall_short() -> None:
    runs = [cifar(63.0), cifar(64.0, method="icarl"), cifar(50.0, method="hybrid1"), similar(70.0)]
    sentence, below = text.headline(runs)
    measured = [cell for name in tables.TITLES for cell in tables.table(name, runs) if cell.mean is not None]
    kinds = [cell.agreement for cell in measured]
    counts = [len(measured), len(tables.paper_rows()), *map(kinds.count, ("agrees", "above", "below"))]
    assert [int(word) for word in sentence.replace(":", " ").split() if word.isdigit()] == counts
    assert [row[:3] for row in below.rows][:2] == [["hybrid1", "−5.8", "50.0"], ["hybrid1", "−5.1", "50.0"]]  # noqa: RUF001
    assert len(below.rows) == kinds.count("below") > 2


def test_what_the_paper_has_not_is_listed_with_its_names_escaped() -> None:
    runs = [
        own_result(dataset="a|b<i>"),
        cifar(20.0, method="finetune", memory={"kind": "total", "size": 0}),
        cifar(1.0),
    ]
    written = markdown.report(runs)
    others = written[written.index("Not in the paper") :]
    assert "| a\\|b&lt;i> | 2 | EEIL | 60 | herding | 75.0 | 80.0 | 1 | 70.0 |" in others
    assert row_of(others, "CIFAR-100") == ["CIFAR-100", "10", "fine-tuning", "0", "", "20.0", "20.0", "1", "20.0"]


@pytest.mark.parametrize(("value", "shown"), [(0.04, "0.0"), (-0.04, "0.0"), (1.25, "+1.2"), (-3.0, "−3.0")])  # noqa: RUF001
def test_differences_have_a_sign_unless_they_are_none(value: float, shown: str) -> None:
    assert text.signed(value) == shown


def test_a_short_commit_keeps_the_mark_of_changed_code() -> None:
    assert text.short_commit("0123456789, abcdefghij+") == "0123456, abcdefg+"
    assert text.short_commit("unknown") == "unknown"
