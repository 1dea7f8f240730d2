"""What the figures show: hand-computed means, deviations, groups and matrices."""

from __future__ import annotations

import math
from typing import Any

import pytest
from report_helper import cifar, result

from treering.report import charts
from treering.report.charts import Lines, Matrices
from treering.report.results import METHODS
from treering.report.tables import Grid


def only(results: list[dict[str, Any]], part: str, kind: type) -> Any:
    found = [chart for chart in charts.every_chart(results)[part] if isinstance(chart, kind)]
    assert len(found) == 1, [chart.name for chart in found]
    return found[0]


def one_step(accuracy: float) -> dict[str, Any]:
    """The upper bound, all six classes in one step."""
    same = {"method": "joint", "memory": {"kind": "total", "size": 0}, "classes_per_step": 6}
    return result(accuracy=[accuracy], average_without_first=None, class_accuracy=[[accuracy] * 6], **same)


def test_a_line_is_the_mean_over_class_orders_with_their_sample_deviation() -> None:
    other = result(order=1, accuracy=[92.0, 84.0, 70.0], average_without_first=77.0)
    line = only([result(), other], "own", Lines).lines[0]
    assert line.x == [2, 4, 6]
    assert line.y == [91.0, 82.0, 70.0]
    assert line.deviation == [1.4, 2.8, 0.0]  # |a - b| / sqrt(2)
    assert line.summary == "76.0 ± 1.4"


def test_seeds_of_one_order_are_averaged_before_the_orders_are() -> None:
    runs = [
        result(seed=0, average_without_first=70.0, accuracy=[90.0, 80.0, 60.0]),
        result(seed=1, average_without_first=74.0, accuracy=[90.0, 80.0, 68.0]),
        result(order=1, average_without_first=78.0, accuracy=[90.0, 80.0, 76.0]),
    ]
    line = only(runs, "own", Lines).lines[0]
    assert line.y[-1] == 70.0  # the mean of 64 and 76; over the three runs it would be 68
    assert line.summary == "75.0 ± 4.2"


def test_one_order_has_no_band() -> None:
    assert only([result()], "own", Lines).lines[0].deviation is None


def test_methods_without_memory_and_the_upper_bound_join_every_group_of_their_steps() -> None:
    none = {"kind": "total", "size": 0}
    runs = [
        result(),
        result(memory={"kind": "per-class", "size": 5}),
        result(method="finetune", memory=none),
        one_step(88.0),
    ]
    drawn = [chart for chart in charts.every_chart(runs)["own"] if isinstance(chart, Lines)]
    assert [[line.look for line in chart.lines] for chart in drawn] == [["eeil", "finetune", "joint"]] * 2


def test_the_upper_bound_is_one_point_at_the_end() -> None:
    joint = result(method="joint", memory={"kind": "total", "size": 0})
    line = only([result(), joint], "own", Lines).lines[1]
    assert (line.x, line.y, line.summary) == ([6], [70.0], "70.0 after the last step")


def test_the_upper_bound_of_the_same_steps_is_preferred_to_that_of_one_step() -> None:
    none = {"kind": "total", "size": 0}
    runs = [
        result(),
        result(method="joint", memory=none),
        one_step(99.0),
    ]
    drawn = next(chart for chart in charts.every_chart(runs)["own"] if "-2-" in chart.name)
    assert isinstance(drawn, Lines)
    assert [line.y[-1] for line in drawn.lines] == [70.0, 70.0]


def test_gem_stands_beside_the_methods_with_its_memory_over_all_steps() -> None:
    gem = result(method="gem", memory={"kind": "per-step", "size": 20})  # three steps
    assert [line.look for line in only([result(), gem], "own", Lines).lines] == ["eeil", "gem"]


def test_uneven_steps_are_drawn_at_the_number_of_classes_they_reach() -> None:
    uneven = result(classes_per_step=[3, 2, 1], class_accuracy=None, class_order=None, confusion=None)
    chart = only([uneven], "own", Lines)
    assert chart.lines[0].x == [3, 5, 6]
    assert chart.title == "birds, 3 + 2 + 1 classes per step, 60 exemplars"


def test_forgetting_follows_the_classes_of_each_step() -> None:
    matrix = only([result()], "forgetting", Matrices).matrices[0]
    assert matrix.values == [[90.0, 80.0, 60.0], [None, 80.0, 70.0], [None, None, 80.0]]
    # Lost since their best: 20 and 40 of the first step's classes, 10 and 10 of the second's.
    assert matrix.note == "mean forgetting 20.0 points"


def long_run(steps: int, **changes: Any) -> dict[str, Any]:
    """A run of many steps of one class, of which each loses a fifth of a point in each later step."""
    rows = [[90 - 0.2 * (step - label) for label in range(step + 1)] for step in range(steps)]
    none = dict.fromkeys(("top5", "task_aware_accuracy", "class_order", "confusion"))
    same = {"accuracy": [50.0] * steps, "classes_per_step": 1, "class_accuracy": rows}
    return result(**(same | none | changes))


def test_of_very_many_steps_the_first_the_last_and_some_between_are_in_the_heat_map() -> None:
    matrix = only([long_run(450)], "forgetting", Matrices).matrices[0]
    assert len(matrix.names) == len(matrix.values) == len(matrix.values[0]) == 151
    assert [*matrix.names[:3], matrix.names[-1]] == ["step 1", "step 3", "step 6", "step 450"]
    assert [*matrix.values[0][:3], matrix.values[0][-1]] == [90.0, 89.6, 89.0, 0.2]
    assert matrix.values[1][:3] == [None, 89.9, 89.3]  # steps 2 and 3 after steps 3 and 6
    assert matrix.note == "mean forgetting 45.0 points"


def test_a_class_without_test_images_is_left_out_of_the_mean() -> None:
    unseen = [[100.0, math.nan], [90.0, math.nan, 80.0, 80.0], [80.0, math.nan, math.nan, math.nan, 80.0, 80.0]]
    matrix = only([result(class_accuracy=unseen)], "forgetting", Matrices).matrices[0]
    assert matrix.values == [[100.0, 90.0, 80.0], [None, 80.0, None], [None, None, 80.0]]


def test_confusion_is_that_of_the_first_order_with_the_steps_marked() -> None:
    matrix = only([result(order=1, confusion=[[0] * 6] * 6), result()], "confusion", Matrices).matrices[0]
    assert matrix.boundaries == [2, 4]
    assert matrix.names[1] == "robin"


def test_the_pairs_confused_most_are_named_the_worst_first() -> None:
    rows = charts.values(only([result()], "confusion", Matrices)).rows
    assert rows[:2] == [["EEIL", "robin", "swift", "6 of 10"], ["EEIL", "blue tit", "crane", "3 of 10"]]


def test_bars_have_the_papers_numbers_and_gaps_where_nothing_was_run() -> None:
    grid = only([cifar(62.0, selection="random")], "selection", Grid)
    assert grid.columns == ["herding", "random", "histogram"]
    assert [cell.mean for cell in grid.rows[0]] == [None, 62.0, None]
    assert [cell.paper for cell in grid.rows[0]] == [63.6, 63.1, 59.1]


def test_selection_rules_share_one_plot() -> None:
    runs = [cifar(63.0), cifar(62.0, selection="random"), cifar(59.0, selection="histogram")]
    lines = only(runs, "selection", Lines).lines
    assert [line.label for line in lines] == ["EEIL, herding", "EEIL, histogram", "EEIL, random"]
    assert len({charts.style(line.look)["colour"] for line in lines}) == 3


def test_ablations_are_drawn_apart_from_the_rivals() -> None:
    runs = [cifar(63.0), cifar(60.0, method="icarl"), cifar(50.0, method="eeil-base")]
    assert [line.look for line in only(runs, "accuracy", Lines).lines] == ["eeil", "icarl"]
    assert [line.look for line in only(runs, "ablation", Lines).lines] == ["eeil", "eeil-base"]
    own = charts.every_chart([result(), result(method="icarl"), result(method="eeil-base")])["own"]
    assert len(own) == len({chart.title for chart in own}) == 2, "titles tell them apart"


GROUPS = {"ablation": "10", "selection": "herding"}
"""The column of the bar of EEIL itself."""


@pytest.mark.parametrize("part", [{"method": "eeil-base"}, {"selection": "random"}], ids=["ablation", "selection"])
def test_parts_are_compared_in_the_class_orders_that_all_have(part: dict[str, str]) -> None:
    whole = [cifar(60.0), cifar(66.0, order=1), cifar(63.0, order=2)]
    for orders, mean in (([0], 60.0), ([0, 1], 63.0), ([1, 2, 7], 64.5), ([7], 63.0)):
        runs = [*whole, *(cifar(50.0, order=order, **part) for order in orders)]
        name = "ablation" if "method" in part else "selection"
        assert only(runs, name, Lines).lines[0].y == [mean] * 10, orders
        grid = only(runs, name, Grid)
        row = next(row for row in grid.rows if row[0].setting.method == "eeil")
        assert row[grid.columns.index(GROUPS[name])].mean == mean
    assert charts.every_chart(runs)["accuracy"][0].lines[0].y == [63.0] * 10, "all orders elsewhere"


def test_titles_of_all_curves_differ() -> None:
    runs = [cifar(63.0), cifar(62.0, selection="random"), cifar(50.0, method="eeil-base")]
    five = {"classes_per_step": 5, "accuracy": [50.0] * 20}
    runs += [cifar(50.0, **five), cifar(50.0, method="gem", memory={"kind": "per-step", "size": 100}, **five)]
    drawn = [chart for made in charts.every_chart(runs).values() for chart in made if isinstance(chart, Lines)]
    assert len(drawn) == 5
    assert len({chart.title for chart in drawn}) == 5


def test_charts_without_data_are_not_drawn() -> None:
    drawn = charts.every_chart([result()])
    assert {part for part, made in drawn.items() if made} == {"own", "forgetting", "confusion"}


def test_names_of_files_differ_and_bear_any_dataset() -> None:
    runs = [result(dataset=name) for name in ("a/b", "a b", "A?B", "../..")]
    names = [chart.name for made in charts.every_chart(runs).values() for chart in made]
    assert len(names) == 12
    assert len({name.lower() for name in names}) == len(names)
    assert not any("/" in name or name.startswith(".") for name in names)


def test_names_of_files_are_short_however_many_steps_and_alike_names_there_are() -> None:
    sizes = ([1] * 300, [1] * 299 + [2])
    many = [long_run(300, dataset="x" * 200, classes_per_step=steps) for steps in sizes]
    alike = [result(dataset=f"a{'/' * count}b") for count in range(1, 50)]
    names = [chart.name for made in charts.every_chart([*many, *alike]).values() for chart in made]
    assert len({name.lower() for name in names}) == len(names) == 2 * 2 + 49 * 3
    assert max(map(len, names)) <= 200
    titles = [chart.title for made in charts.every_chart(many).values() for chart in made]
    assert max(map(len, titles)) < 600


@pytest.mark.parametrize("method", ["my-method", "another"])
def test_a_method_of_ones_own_has_a_look_that_no_method_of_the_paper_has(method: str) -> None:
    assert charts.style(method) == charts.style(method)
    assert all(charts.style(method) != row for name, row in METHODS.items() if not name.startswith("own/"))


def test_methods_differ_in_more_than_colour() -> None:
    looks = {name: (row["dash"], row["marker"]) for name, row in METHODS.items() if not name.startswith("own/")}
    assert len(set(looks.values())) == len(looks)
    assert len({row["colour"] for row in METHODS.values()}) == len(METHODS)


def test_methods_without_exemplars_are_marked_where_they_are_compared() -> None:
    runs = [result(), result(method="lwf-mc", memory={"kind": "total", "size": 0}), one_step(88.0)]
    labels = [line.label for line in only(runs, "own", Lines).lines]
    assert labels == ["EEIL", "LwF.MC (no exemplars)", "upper bound (no exemplars)"]


def test_a_line_is_told_from_the_first_over_the_class_orders_of_both() -> None:
    eeil = [result(accuracy=[90.0, 80.0, 70.0]), result(order=1, accuracy=[50.0, 50.0, 50.0])]
    icarl = result(method="icarl", order=1, accuracy=[49.0, 52.0, 50.0])
    lines = only([*eeil, icarl], "own", Lines).lines
    assert [line.lead for line in lines] == [None, [-1.0, 2.0, 0.0]]
    row = charts.values(only([*eeil, icarl], "own", Lines)).rows[1]
    assert row == ["iCaRL", "49.0 (−1.0)", "52.0 (+2.0)", "50.0 (0.0)"]  # noqa: RUF001


def test_changed_settings_have_a_line_of_their_own() -> None:
    lines = only([result(), result(variant=1, accuracy=[80.0, 70.0, 60.0])], "own", Lines).lines
    assert [line.label for line in lines] == ["EEIL", "EEIL (changed settings)"]
    assert charts.style(lines[0].look) != charts.style(lines[1].look)


def test_gem_without_known_tasks_is_drawn_with_eeil_at_the_papers_memory() -> None:
    twenty = {"classes_per_step": 5, "accuracy": [50.0] * 20}
    gem = cifar(50.0, method="gem", memory={"kind": "per-step", "size": 100}, **twenty)
    drawn = charts.every_chart([cifar(50.0, **twenty), cifar(50.0, method="icarl", **twenty), gem])["gem"]
    assert [chart.name for chart in drawn] == ["gem-unknown-task"]
    assert isinstance(drawn[0], Lines)
    assert [line.look for line in drawn[0].lines] == ["eeil", "gem"]


def test_all_curves_beside_gem_say_that_the_task_is_not_known() -> None:
    twenty = {"classes_per_step": 5, "accuracy": [50.0] * 20}
    gem = [cifar(50.0, method="gem", memory={"kind": "per-step", "size": size}, **twenty) for size in (10, 100)]
    titles = [chart.title for chart in charts.every_chart([cifar(50.0, **twenty), *gem])["gem"]]
    assert any(" 200 exemplars, " in title for title in titles)
    assert any(" 2000 exemplars, " in title for title in titles)
    assert all(title.endswith(", the task not known") for title in titles if "the task known" not in title)


def test_the_upper_bound_of_another_dataset_is_none() -> None:
    drawn = charts.every_chart([result(), one_step(88.0) | {"dataset": "fish"}])["own"]
    assert [[line.look for line in chart.lines] for chart in drawn if isinstance(chart, Lines)] == [
        ["eeil"],
        ["joint"],
    ]
