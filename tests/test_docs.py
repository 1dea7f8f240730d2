"""What the pages in docs/ say is so: the worked example runs, and what they name is there."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RECIPE, examples, state_of
from scipy import stats

from treering import Learner, methods
from treering.data.stream import Dataset, ResidentImages
from treering.experiments.run import StreamRun
from treering.recipe import Run
from treering.report import tables

PROJECT = Path(__file__).parent.parent
PAGE = PROJECT / "docs" / "adding-a-method.md"


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> type[methods.Method]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    monkeypatch.setitem(methods.METHODS, "replay", names["Replay"])
    return names["Replay"]


def test_the_example_learns_remembers_and_is_saved(replay: type[methods.Method], tmp_path: Path) -> None:
    learner = Learner(recipe=replace(RECIPE, method="replay"), device="cpu")
    learner.partial_fit(*examples({"cat": 6, "dog": 5})).partial_fit(*examples({"owl": 4, "cat": 2}))
    assert [len(learner.exemplars_[name]) for name in ("cat", "dog", "owl")] == [4, 4, 4]
    learner.save(tmp_path / "model")
    assert state_of(Learner.load(tmp_path / "model", device="cpu")) == state_of(learner)


def test_the_example_runs_over_a_stream_as_planned(replay: type[methods.Method], tmp_path: Path) -> None:
    labels = np.arange(6).repeat(5)
    images, _ = examples(dict.fromkeys(range(6), 5))
    dataset = Dataset("tiny", images, labels, images, labels, tuple("abcdef"))
    recipe = replace(RECIPE, method="replay", run=Run("tiny", 2))
    run = StreamRun(recipe, ResidentImages.of(dataset, torch.device("cpu")), tmp_path)
    result = run()
    assert result["method"] == "replay"
    assert result["image_passes"] == run.image_passes_planned
    assert len(result["accuracy"]) == 3


def test_every_row_of_the_method_names_code_and_a_test_that_are_there() -> None:
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    tests = "".join(file.read_text(encoding="utf-8") for file in PROJECT.glob("tests/test_*.py"))
    source = PROJECT / "src" / "treering"
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) > 25
    for _, where, named in rows:
        assert all(f"def {test}(" in tests for test in re.findall(r"`([^`]+)`", named)), named
        file, *names = re.findall(r"`([^`]+)`", where)
        code = (source / file).read_text(encoding="utf-8")
        assert all(f"def {name}(" in code for name in names), where


MEANS = {"first-step": "the first step's mean", "own-step": "each step's own mean"}


def test_the_curves_are_those_that_were_measured() -> None:
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    runs = json.loads((PROJECT / "benchmarks/results/step_means_resnet32.json").read_bytes())["runs"]
    shown = [run for run in runs if run["classes_per_step"] in (2, 10)]
    assert len(shown) == 4
    for run in shown:
        steps = run["classes_per_step"]
        after_tens = " | ".join(f"{value:.1f}" for value in run["accuracy"][10 // steps - 1 :: 10 // steps])
        assert f"| {steps} per step, less {MEANS[run['mean_image']]} | {after_tens} |" in page


def papers(table: str, method: str) -> dict[int, tuple[float, float]]:
    """The paper's means and, where it has them, deviations, by classes per step."""
    rows = [row for row in tables.paper_rows() if (row["table"], row["method"]) == (table, method)]
    return {int(row["classes_per_step"]): (float(row["value"]), float(row["std"] or 0)) for row in rows}


def test_base_and_bf_with_crops_are_every_run_that_was_made() -> None:
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    runs = json.loads((PROJECT / "benchmarks/results/step_means_crops.json").read_bytes())["runs"]
    rows: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in runs:
        assert run["recipe"]["augmentation"]["kind"] == "crop-mirror"
        row = "BF" if run["recipe"]["balanced"]["epochs"] else "Base", run["mean_image"]
        rows.setdefault(row, {5: [], 10: [], 20: []})[run["classes_per_step"]].append(run["average_without_first"])
    for (part, mean), by_size in rows.items():
        cells = (", ".join(f"{value:.1f}" for value in values) for values in by_size.values())
        assert f"| {part}, less {MEANS[mean]} | {' | '.join(cells)} |" in page

    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    average = {row: [statistics.fmean(values) for values in by_size.values()] for row, by_size in rows.items()}
    for part, words in (("Base", "on average Base reaches"), ("BF", "BF")):
        five, ten, twenty = average[part, "first-step"]
        assert f"{words} {five:.1f}, {ten:.1f} and {twenty:.1f} " in readme
    paper = {"Base": papers("2b", "eeil-base"), "BF": papers("2b", "eeil-bf")}
    above: dict[str, list[float]] = {"first-step": [], "own-step": []}
    for (part, mean), by_size in rows.items():
        for size, values in by_size.items():
            above[mean] += [value - paper[part][size][0] for value in values]
    without, lowest, highest = max(map(abs, above["first-step"])), min(above["own-step"]), max(above["own-step"])
    gains = [values[0] - values[2] for values in (average["Base", "first-step"], average["Base", "own-step"])]
    prose = " ".join(page.split())
    assert f"at most {without:.1f} points" in prose
    assert f"{lowest:.1f} to {highest:.1f} above" in prose
    assert f"{gains[0]:.1f} without the leak and {gains[1]:.1f} with it" in prose


def test_what_the_leak_and_crops_are_worth_to_base_is_what_was_measured() -> None:
    runs = json.loads((PROJECT / "benchmarks/results/step_means_base_small.json").read_bytes())["runs"]
    found = {
        (run["recipe"]["augmentation"]["kind"], run["mean_image"], run["classes_per_step"]): run[
            "average_without_first"
        ]
        for run in runs
    }
    said = {("none", "first-step"): "", ("none", "own-step"): " with the leak"}
    said |= {("crop-mirror", "first-step"): " with crops", ("crop-mirror", "own-step"): " with both"}
    page = " ".join((PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8").split())
    for (kind, mean), words in said.items():
        two, four = (found.pop((kind, mean, size)) for size in (2, 4))
        assert f"{two:.1f} and {four:.1f}{words or ' at 2 and 4 classes per step'}" in page
    assert not found


def results_of(name: str) -> list[dict[str, Any]]:
    """In every class order that was run."""
    return [json.loads(file.read_bytes()) for file in sorted(PROJECT.glob(f"results/{name}-order*-seed0.json"))]


def test_the_shortfall_at_two_classes_per_step_is_as_large_and_as_likely_as_is_said() -> None:
    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    ours = [run["average_without_first"] for run in results_of("cifar100-2-eeil-total2000-herding")]
    (mean, deviation), orders = papers("1a", "eeil")[2], 5
    below = [f"{mean - value:.1f}" for value in ours]
    assert f"EEIL is {', '.join(below[:-1])} and {below[-1]} points below the paper's mean" in readme
    own = statistics.fmean(ours), statistics.stdev(ours), len(ours)
    assert f"gives p = {stats.ttest_ind_from_stats(*own, mean, deviation, orders).pvalue:.2f}, for one" in readme


def test_leads_and_distances_from_the_paper_are_those_of_the_results() -> None:
    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    leads, above, sizes = {}, {}, (2, 5, 10, 20, 50)
    for size in sizes:
        ours, rival = (
            [run["average_without_first"] for run in results_of(f"cifar100-{size}-{method}-total2000-herding")]
            for method in ("eeil", "icarl")
        )
        leads[size] = np.array([one - other for one, other in zip(ours, rival, strict=False)])
        mean, deviation = papers("1a", "eeil")[size]
        above[size] = (statistics.fmean(ours) - mean) / deviation
        if size == 10:
            assert f"(paired t-test at ten: p = {stats.ttest_rel(ours, rival).pvalue:.4f})" in readme
    *smaller, (_, last) = leads.items()
    assert all((lead > 0).all() for _, lead in smaller)
    assert f"by {listed([lead.mean() for _, lead in smaller])} points on average" in readme
    assert f"and at 50 by {listed(last)}; the paper's leads are" in readme
    assert abs(above[5]) < 0.05
    assert f"at 10, 20 and 50 it is {listed([above[size] for size in (10, 20, 50)])} deviations above" in readme


def test_what_is_right_after_all_classes_is_what_was_measured() -> None:
    measured: dict[str, list[float]] = {"right class, the step being told": [], "right step": [], "right class": []}
    sizes = (2, 5, 10, 20, 50)
    for size in sizes:
        runs = results_of(f"cifar100-{size}-eeil-total2000-herding")
        step = np.arange(100) // size
        within = [np.array(run["confusion"])[step[:, None] == step].sum() / 100 for run in runs]
        told, right = ([run[key][-1] for run in runs] for key in ("task_aware_accuracy", "accuracy"))
        for row, values in zip(measured.values(), (told, within, right), strict=True):
            row.append(statistics.fmean(values))
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    for name, row in measured.items():
        assert f"| {name} | {' | '.join(f'{value:.1f}' for value in row)} |" in page

    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    told, _, right = (
        {size: f"{value:.0f}" for size, value in zip(sizes, row, strict=True)} for row in measured.values()
    )
    assert f"it knows {told[2]} % of the test images if it is told the step of each, and {right[2]} % if not" in readme
    assert f"at 10 classes per step {told[10]} and {right[10]} %, at 50 {told[50]} and {right[50]} %" in readme


def listed(values: Sequence[float]) -> str:
    """As a sentence has them."""
    *most, last = (f"{value:.1f}".replace("-", "\N{MINUS SIGN}") for value in values)
    return f"{', '.join(most)} and {last}"


def averages_by_mean(name: str) -> dict[str, list[float]]:
    """In the sequence in which they were written, by the mean image that was subtracted."""
    runs = json.loads((PROJECT / f"benchmarks/results/{name}.json").read_bytes())["runs"]
    return {mean: [run["average_without_first"] for run in runs if run["mean_image"] == mean] for mean in MEANS}


def test_how_averages_and_the_leak_depend_on_the_size_of_steps_is_what_was_measured() -> None:
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    prose = " ".join(page.split())
    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    sizes = (2, 5, 10, 20, 50)
    paper = np.array([papers("1a", "eeil")[size][0] for size in sizes])
    order_0 = averages_by_mean("step_means_resnet32")
    without, leak = np.array(order_0["first-step"]), np.array(order_0["own-step"])
    found = json.loads((PROJECT / "benchmarks/results/step_means_resnet32.json").read_bytes())["runs"]
    spread = " | ".join(f"{run['spread_of_means']:.1f}" for run in found if run["mean_image"] == "own-step")
    assert f"| how far steps' means deviate, grey levels | {spread} |" in page
    for mean, values in order_0.items():
        assert f"| less {MEANS[mean]} | {' | '.join(f'{value:.1f}' for value in values)} |" in page
    assert f"the smaller the steps are: {listed(leak - without)} points" in prose
    small = averages_by_mean("step_means_small")
    assert f"with crops, {listed(np.subtract(small['own-step'], small['first-step']))} at 2, 4, 8 and 20" in prose

    runs = [results_of(f"cifar100-{size}-eeil-total2000-herding") for size in sizes]
    assert [by_order[0]["average_without_first"] for by_order in runs] == without.tolist()
    above, level = leak - paper, slice(0, 4)
    assert f"level from 2 to 20 classes per step, {listed(paper[level])}." in prose
    assert f"nearly level with the leak, within {max(leak[level]) - min(leak[level]):.1f} points;" in prose
    assert f"the leak treering is {min(above):.1f} to {max(above):.1f} points above the paper" in prose
    nearer = np.abs(without - paper) < np.abs(above)
    assert nearer.tolist() == [size != 50 for size in sizes]
    assert f"rise with the size by {without[3] - without[0]:.1f} points" in prose
    ours = [statistics.fmean(run["average_without_first"] for run in by_order[:2]) for by_order in runs]
    rise = ours[3] - ours[0]
    assert (
        f"by {rise:.1f} in the mean of class orders 0 and 1, in which all sizes were run: {listed(ours[level])}."
        in prose
    )
    assert (
        f"order 0 reach {listed(leak)} % at 2, 5, 10, 20 and 50 classes per step instead of {listed(without)}:"
        in readme
    )
    assert f"with it treering is {min(above):.1f} to {max(above):.1f} points above them" in readme


def test_the_leak_on_the_vehicles_is_what_was_measured() -> None:
    averages = averages_by_mean("step_means_vehicles")
    without, leak = averages["first-step"], averages["own-step"]
    vehicles = results_of("cifar100-vehicles-2-eeil-total200-herding")
    assert [run["average_without_first"] for run in vehicles] == without
    with_and_without = statistics.fmean(leak), statistics.fmean(without)
    page = " ".join((PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8").split())
    assert "treering has {:.1f} on average with the leak and {:.1f} without it".format(*with_and_without) in page
    assert f"(paired t-test between these two: p = {stats.ttest_rel(leak, without).pvalue:.3f}; [all runs]" in page


def test_the_vehicles_in_two_precisions_are_those_that_were_measured() -> None:
    runs = json.loads((PROJECT / "benchmarks/results/precision.json").read_bytes())["runs"]
    bfloat16, float32 = (
        [run["average_without_first"] for run in runs if run["precision"] == name] for name in ("bfloat16", "float32")
    )
    assert len(bfloat16) == len(float32) == 8
    page = " ".join((PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8").split())
    assert f"it has {statistics.fmean(bfloat16):.1f} on average" in page
    assert f"and {statistics.fmean(float32):.1f} with the same kernels in float32" in page
    assert f"paired t-test: p = {stats.ttest_rel(bfloat16, float32).pvalue:.2f};" in page

    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    first = [run["average_without_first"] for run in results_of("cifar100-vehicles-2-eeil-total200-herding")]
    again, table = ("{:.1f}, {:.1f} and {:.1f}".format(*values[:3]) for values in (bfloat16, first))
    assert f"twice on the later code: {table} (the table's), then {again} " in readme
    rival = [run["average_without_first"] for run in results_of("cifar100-vehicles-2-icarl-total200-herding")]
    assert f"EEIL leads by {statistics.fmean(np.subtract(first, rival)):.1f} points in the eight class orders" in readme
    assert f"(paired t-test: p = {stats.ttest_rel(first, rival).pvalue:.2f}), where the paper's" in readme
    assert bfloat16[3:] == first[3:]


def test_what_earlier_code_measured_is_said_beside_the_later() -> None:
    runs = json.loads((PROJECT / "benchmarks/results/earlier_code.json").read_bytes())["runs"]
    earlier = {run["result"]: run["average_without_first"] for run in runs}
    names = [f"cifar100-{size}-eeil-total2000-herding-order0-seed0" for size in (5, 10, 20, 50)]
    later = [json.loads((PROJECT / f"results/{name}.json").read_bytes())["average_without_first"] for name in names]
    readme = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    assert f"had been {listed([earlier[name] for name in names])} at 5, 10, 20 and 50 classes per step" in readme
    assert f"on the earlier code and is {listed(later)} on the later" in readme


def test_the_details_of_the_released_code_are_those_that_were_measured() -> None:
    page = (PROJECT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    lines = page.partition("| | crops, seed 0 |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    shown = {(row[0].partition(":")[0], column): row[column] for row in rows for column in range(1, 5) if row[column]}
    columns = {("small", 40, 0): 1, ("small", 40, 1): 2, ("small", 20, 0): 3, ("resnet32", 100, 0): 4}
    runs = json.loads((PROJECT / "benchmarks/results/released_details.json").read_bytes())["runs"]
    measured = {}
    for run in runs:
        column = columns[run["recipe"]["backbone"].removesuffix("-fixed"), run["classes"], run["recipe"]["run"]["seed"]]
        measured[run["detail"], column] = f"{run['average_without_first']:.1f}"
    (steps,) = (run["steps_run"] for run in runs if run["classes"] == 100)
    whole = json.loads((PROJECT / "results/cifar100-2-eeil-total2000-herding-order0-seed0.json").read_bytes())
    measured["treering", 4] = f"{statistics.fmean(whole['accuracy'][1:steps]):.1f}"
    assert shown == measured


def test_links_lead_somewhere() -> None:
    for page in (PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *PROJECT.glob("docs/*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert link.startswith("https://") or (page.parent / link).exists(), (page.name, link)
