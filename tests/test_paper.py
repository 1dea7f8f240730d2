"""The paper's experiments by name: which runs they have, and what a dry run says of them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import report_helper
import torch
from rich.console import Console

from treering import cli
from treering.data.stream import split_steps
from treering.errors import TreeringError
from treering.experiments import console, forecast, paper
from treering.experiments.result import method_label, run_name
from treering.experiments.scheduler import Place
from treering.methods import speed
from treering.recipe import Recipe
from treering.report.tables import paper_rows

TABLES = {
    "table-1a": "1a",
    "table-1b": "1b",
    "table-2a": "2a",
    "table-2b": "2b",
    "selection": "selection",
    "gem": "gem",
    "vehicles": "similar",
}


def cell_of(recipe: Recipe) -> set[tuple[str, ...]]:
    """The cells of the paper that a run fills: dataset, classes per step, memory and method."""
    memory, sizes = recipe.memory, recipe.run.classes_per_step
    size = f"{memory.size}/class" if memory.kind == "per-class" else str(memory.size)
    if memory.kind == "per-step":
        size = str(memory.size * (100 // int(sizes)))  # type: ignore[call-overload]
    labels = {method_label(recipe)} | ({"hybrid1"} if recipe.method == "icarl" else set())
    size = "0" if recipe.method == "lwf-mc" else size
    return {(recipe.run.dataset, str(sizes), size, label) for label in labels}


@pytest.mark.parametrize(("name", "table"), TABLES.items())
def test_the_runs_of_an_experiment_fill_every_cell_of_its_table(name: str, table: str) -> None:
    rows = [row for row in paper_rows() if row["table"] == table]
    wanted = {(row["dataset"], row["classes_per_step"], row["memory"], row["method"]) for row in rows}
    filled = set().union(*(cell_of(recipe) for recipe in paper.find(name).runs(1)))
    assert wanted <= filled
    beyond = {cell for cell in filled - wanted if cell[3] not in ("joint", "hybrid1") and cell[2] != "2000"}
    assert not beyond, "only the upper bound, a second readout and GEM's curve are more than the table has"


def test_the_runs_of_every_experiment_are_known_without_pytorch() -> None:
    code = (
        "import sys; from treering.experiments import paper; "
        "runs = [list(experiment.runs()) for experiment in paper.EXPERIMENTS.values()]; "
        "sys.exit(not all(runs) or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_selection_experiment_has_the_three_rules() -> None:
    assert [recipe.memory.selection for recipe in paper.find("selection").runs()] == ["herding", "random", "histogram"]


@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_no_two_runs_of_an_experiment_share_a_result_file(name: str) -> None:
    names = [run_name(recipe) for recipe in paper.find(name).runs(3)]
    assert len(set(names)) == len(names)


def test_table_1a_has_the_papers_five_orders_unless_told_otherwise() -> None:
    table = paper.find("table-1a")
    assert {recipe.run.order for recipe in table.runs()} == {0, 1, 2, 3, 4}
    assert {recipe.run.order for recipe in table.runs(2)} == {0, 1}
    assert len(list(table.runs(2))) == 2 * len(list(table.runs(1))) == 2 * 16


def test_only_chooses_by_every_key_and_by_any_of_its_values() -> None:
    runs = list(paper.find("table-1a").runs(2))
    found = paper.chosen(runs, ["method=icarl", "method=lwf-mc", "classes_per_step=10", "order=1"])
    assert [(method_label(run), run.run.classes_per_step, run.run.order) for run in found] == [
        ("icarl", 10, 1),
        ("lwf-mc", 10, 1),
    ]
    assert paper.chosen(runs, []) == runs


def test_a_second_readout_is_found_by_its_own_name() -> None:
    runs = list(paper.find("vehicles").runs())
    assert paper.chosen(runs, ["method=hybrid1"]) == paper.chosen(runs, ["method=icarl"])


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["methd=icarl"], "--only takes KEY=VALUE, not methd=icarl; did you mean method"),
        (["icarl"], "--only takes KEY=VALUE, not icarl"),
        (["method=ewc"], "no run of this experiment has method=ewc"),
    ],
)
def test_a_choice_that_makes_no_sense_is_one_clear_line(only: list[str], message: str) -> None:
    with pytest.raises(TreeringError, match=message):
        paper.chosen(list(paper.find("vehicles").runs()), only)


def plan_of(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(speed, "images_per_second", lambda *arguments: 1000.0)
    screen = Console(file=io.StringIO(), width=160)
    runs = list(paper.find(name).runs(1))
    place = Place(tmp_path / "data", tmp_path / "results", torch.device("cpu"))
    console.show_forecast(screen, forecast.forecast(runs, place), "CPU")
    return screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_dry_run_lists_image_passes_and_times_without_any_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = plan_of("vehicles", tmp_path, monkeypatch)
    # Five steps of 2 x 500 images, twelvefold, 40 epochs; memory 0, 200, 200, 198, 200; 30 balanced epochs.
    steps = split_steps(range(10), 2)
    passes = 0
    for known in range(0, 2 * len(steps), 2):
        quota = 200 // known if known else 0
        for images, epochs in ((1000 + quota * known, 40), (quota * (known + 2), 30)):
            passes += -(-images * 12 // 128) * 128 * epochs
    assert f"{passes:,}" in said
    assert f"{round(passes / 1000 / 60)} min" in said
    assert "cifar100-vehicles needs" in said
    assert "--download fetches it" in said
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_a_dry_run_tells_what_is_done_and_what_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, begun = paper.find("vehicles").runs(1)
    result = tmp_path / "results" / f"{run_name(done)}.json"
    state = tmp_path / "results" / ".unfinished" / f"{run_name(begun)}.safetensors"
    state.parent.mkdir(parents=True)
    result.write_text(json.dumps(report_helper.result(recipe=done.to_dict())))
    state.write_text("")

    def rows() -> dict[str, str]:
        lines = plan_of("vehicles", tmp_path, monkeypatch).splitlines()
        return {line.split("│")[1].strip(): line for line in lines if "│" in line}

    assert "done" in rows()[run_name(done)]
    assert "unfinished" in rows()[run_name(begun)]
    result.write_text(json.dumps(report_helper.result(recipe=replace(done, temperature=3.0).to_dict())))
    assert "another run is in the way" in rows()[run_name(done)]


@pytest.mark.parametrize(
    ("experiment", "memory", "methods"),
    [("gem", 200, {"gem", "eeil"}), ("table-1a", 0, {"lwf-mc", "joint"}), ("table-1a", 2000, {"eeil", "icarl"})],
)
def test_only_knows_the_memory_as_the_tables_name_it(experiment: str, memory: int, methods: set[str]) -> None:
    runs = paper.chosen(list(paper.find(experiment).runs(1)), [f"memory={memory}"])
    assert {run.method for run in runs} == methods


@pytest.mark.parametrize("memory", ["75", "75/class"])
def test_only_knows_a_number_per_class_with_and_without_the_word(memory: str) -> None:
    runs = paper.chosen(list(paper.find("table-2a").runs(1)), [f"memory={memory}"])
    assert {(run.memory.kind, run.memory.size) for run in runs} == {("per-class", 75)}
    assert len(runs) == 6


def test_image_folders_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = plan_of("dogs", tmp_path, monkeypatch)
    assert "stanford-dogs needs" in said
    assert "train/<class>/" in said


def test_reproduce_runs_what_is_missing_and_says_what_cannot_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(tmp_path)
    monkeypatch.setattr("sys.argv", ["treering", "reproduce", "dogs", "--data", place, "--results", place + "/r"])
    with pytest.raises(SystemExit) as exit_code:
        cli.main()
    assert exit_code.value.code == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 2
    assert all("no dataset stanford-dogs" in line for line in errors)
