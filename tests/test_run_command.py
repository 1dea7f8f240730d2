"""`treering run`: what it prints and writes, its exit codes, and the ready recipes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from test_cifar import FILES, NAMES, published_files, write_cifar

from treering import Augmentation, Budget, Recipe, TreeringError, cli, methods
from treering.data import cifar
from treering.experiments.result import method_label, run_name
from treering.recipe import Run, ready_names

TOML = """
backbone = "small"
[training]
epochs = 1
drop_at = []
[balanced]
epochs = 1
drop_at = []
[optimizer]
batch_size = 32
[memory]
size = 28
[augmentation]
kind = "none"
[run]
classes_per_step = 7
"""
NAME = "cifar100-7-eeil-bf-total28-herding-order0-seed0"
COLUMNS = ["run", "average without first", "average", "last step", "images/s", "minutes"]


class Finished:
    """A command that has ended: its exit code, what it printed, and its table."""

    def __init__(self, code: Any, captured: Any) -> None:
        self.code, self.out, self.err = code, captured.out, captured.err

    @property
    def table(self) -> list[list[str]]:
        """The cells of each row, the head first."""
        lines = [re.split("[│┃]", line)[1:-1] for line in self.out.splitlines() if line.startswith(("│", "┃"))]
        return [[cell.strip() for cell in cells] for cells in lines]


@pytest.fixture
def treering_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs `treering run` as the program does, on the CPU, in a folder of its own that holds a tiny CIFAR-100."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cli, "console", Console(width=160))
    monkeypatch.chdir(tmp_path)
    write_cifar(tmp_path / "data")
    (tmp_path / "tiny.toml").write_text(TOML)

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["treering", "run", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Finished(ended.value.code, capsys.readouterr())

    return run


def assert_one_line(done: Finished, *fragments: str) -> None:
    assert done.code == 2
    assert done.err.startswith("treering: ")
    assert done.err.count("\n") == 1
    assert done.out == ""
    for fragment in fragments:
        assert fragment in done.err


def results(folder: Path) -> dict[str, Any]:
    return {file.name: json.loads(file.read_text()) for file in folder.glob("*.json")}


# --- A run ------------------------------------------------------------------------------------------------------------


def test_a_run_prints_a_table_and_writes_its_result_and_a_second_call_says_the_same_at_once(
    treering_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = treering_run("tiny.toml")
    assert (first.code, first.err) == (0, "")
    ((file, result),) = results(tmp_path / "results").items()
    assert file == f"{NAME}.json"
    figures = [f"{result[key]:.2f}" for key in ("average_without_first", "average")]
    figures += [f"{result['accuracy'][-1]:.2f}", f"{result['images_per_second']:,.0f}", f"{result['seconds'] / 60:.1f}"]
    assert first.table == [COLUMNS, [NAME, *figures]]
    assert f"Results are in {tmp_path / 'results'}\n" in first.out
    assert "\x1b" not in first.out, "no progress bar where nobody watches"
    assert len(result["accuracy"]) == 2
    assert result["dataset"] == "cifar100"
    assert sorted(result["class_order"]) == NAMES

    def fail(*args: Any) -> None:
        raise AssertionError("it trains")

    monkeypatch.setattr(methods.EEIL, "learn_step", fail)
    second = treering_run("tiny.toml")
    line, _, rest = second.out.partition("\n")
    assert line == f"{NAME} was run before: remove {Path('results') / NAME}.json to run it again"
    assert (second.code, rest, second.err) == (0, first.out[first.out.index("┏") :], "")
    other = treering_run("tiny.toml", "--set", "optimizer.batch_size=3")
    assert (other.code, other.out) == (2, "")
    assert "holds a run with other settings" in other.err


def test_recipes_settings_and_folders_are_taken_from_the_command_line(treering_run: Any, tmp_path: Path) -> None:
    (tmp_path / "vehicles.toml").write_text(TOML.replace("classes_per_step = 7", 'dataset = "cifar100-vehicles"'))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    changes = ("--set", "run.classes_per_step=[7, 3]", "--set", "run.order=1", "--set", "memory.selection=random")
    where = ("--data", "elsewhere", "--results", "a/b", "--device", "cpu")
    done = treering_run("vehicles.toml", *changes, *where)
    assert (done.code, done.err) == (0, "")
    ((file, result),) = results(tmp_path / "a" / "b").items()
    assert file == "cifar100-vehicles-7+3-eeil-bf-total28-random-order1-seed0.json"
    assert (result["dataset"], result["order"], result["selection"]) == ("cifar100-vehicles", 1, "random")
    assert len(result["class_order"]) == 10
    assert not (tmp_path / "results").exists()


def test_several_recipes_run_in_one_call_and_a_failing_one_is_named(treering_run: Any, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(TOML.replace("[training]", "[training]\nlr = 1e29") + "order = 1\n")
    done = treering_run("other.toml", "tiny.toml")
    assert done.code == 2
    assert f"{NAME.replace('order0', 'order1')}: training diverged" in done.err
    assert [row[0] for row in done.table] == ["run", NAME]
    assert list(results(tmp_path / "results")) == [f"{NAME}.json"]
    assert "Traceback" not in done.out + done.err


def test_a_run_that_is_out_of_memory_is_one_line(treering_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(methods.EEIL, "learn_step", fail)
    done = treering_run("tiny.toml")
    assert (done.code, done.err) == (2, f"treering: {NAME}: out of memory: close other programs and try again\n")


def test_a_run_of_a_single_step_has_no_average_without_the_first(treering_run: Any, tmp_path: Path) -> None:
    done = treering_run("tiny.toml", "--set", "run.classes_per_step=14")
    assert (done.code, done.err) == (0, "")
    (result,) = results(tmp_path / "results").values()
    assert result["average_without_first"] is None
    row = done.table[1]
    assert not re.search(r"\d", row[1])
    assert row[2] == row[3] == f"{result['accuracy'][0]:.2f}"


def test_the_digits_run_without_a_data_folder(treering_run: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    quick = ("training.epochs=1", "balanced.epochs=0", "augmentation.kind=none", "run.classes_per_step=5")
    changes = [part for change in quick for part in ("--set", change)]
    done = treering_run("digits", *changes, "--data", "nowhere")
    assert (done.code, done.err) == (0, "")
    (result,) = results(tmp_path / "results").values()
    assert (result["dataset"], result["method"], result["classes_per_step"]) == ("digits", "eeil-base", 5)
    assert not (tmp_path / "nowhere").exists()


def test_an_interrupted_run_has_its_own_exit_code_and_goes_on_when_called_again(
    treering_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = methods.EEIL.learn_step
    steps: list[int] = []

    def interrupted(method: methods.EEIL, step: Any) -> None:
        steps.append(len(method.network.head_sizes))
        if len(steps) == 2:
            raise KeyboardInterrupt
        learn(method, step)

    monkeypatch.setattr(methods.EEIL, "learn_step", interrupted)
    stopped = treering_run("tiny.toml")
    assert stopped.code == 130
    assert re.fullmatch("treering: interrupted; run the same command again .*\n", stopped.err)
    assert results(tmp_path / "results") == {}
    assert treering_run("tiny.toml").code == 0
    assert steps == [0, 1, 1], "the first step is not learnt again"
    assert len(results(tmp_path / "results")) == 1
    assert list((tmp_path / "results" / ".unfinished").glob("*.safetensors")) == []


# --- Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fragments"),
    [
        ("run.ordr=1", ["run.ordr", "did you mean run.order?"]),
        ("runs.order=1", ["runs", "did you mean run?"]),
        ("traning.epochs=1", ["traning", "did you mean training?"]),
        ("training.epochs=many", ["training.epochs", "'many'"]),
        ("training.epochs=-1", ["training.epochs"]),
        ("memory.selection=herd", ["memory.selection", "'herding'"]),
        ("memory.size=0", ["memory.size"]),
        ("method.name=eeil", ["method.name"]),
        ("run=3", ["run must be a table"]),
        ("run.order.deep=1", ["run.order"]),
        ("run.order", ["'run.order'", "key=value"]),
        ("=1", ["unknown setting", "training"]),
        ("run.dataset=cifar10", ["cifar10", "did you mean cifar100?"]),
        ("method=eel", ["eel", "did you mean eeil?"]),
        ("backbone=resnet23", ["resnet23", "did you mean resnet32?"]),
        ("run.classes_per_step=[3, 4]", ["[3, 4]", "14"]),
        ("run.classes_per_step=0", ["run.classes_per_step"]),
        ("memory.size=5", ["memory of 5 images", "classes"]),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(treering_run: Any, change: str, fragments: list[str]) -> None:
    assert_one_line(treering_run("tiny.toml", "--set", change), *fragments)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("cifar100-11", "cifar100-10"), ("cifar100-10-rnd", "cifar100-10-random"), ("digit", "digits")],
)
def test_an_unknown_recipe_is_one_line_with_the_nearest(treering_run: Any, name: str, nearest: str) -> None:
    assert_one_line(treering_run(name), name, f"did you mean {nearest}?")


def test_an_unknown_recipe_with_no_near_name_is_answered_with_the_ready_ones(treering_run: Any) -> None:
    assert_one_line(treering_run("xyz"), "xyz", "cifar100-10,", "cifar100-vehicles", "digits")


def test_a_recipe_file_that_is_missing_or_broken_is_one_line_that_names_it(treering_run: Any, tmp_path: Path) -> None:
    assert_one_line(treering_run("no/such.toml"), "no/such.toml")
    (tmp_path / "broken.toml").write_text("[run\n")
    assert_one_line(treering_run("broken.toml"), "broken.toml")
    (tmp_path / "wrong.toml").write_text("[run]\nordr = 1\n")
    assert_one_line(treering_run("tiny.toml", "wrong.toml"), "wrong.toml", "did you mean run.order?")


def test_a_file_goes_by_its_path_even_beside_a_ready_recipe(treering_run: Any, tmp_path: Path) -> None:
    (tmp_path / "cifar100-10.toml").write_text(TOML)
    assert Recipe.find("cifar100-10.toml").run.classes_per_step == 7
    assert Recipe.find("cifar100-10").run.classes_per_step == 10


def test_two_recipes_with_one_result_file_are_refused_before_anything_runs(treering_run: Any, tmp_path: Path) -> None:
    (tmp_path / "same.toml").write_text(TOML + "seed = 0\n")
    assert_one_line(treering_run("tiny.toml", "same.toml"), f"{NAME}.json", "same result file")
    assert not (tmp_path / "results").exists()


def test_a_missing_data_folder_is_one_line_that_names_it(treering_run: Any, tmp_path: Path) -> None:
    assert_one_line(treering_run("tiny.toml", "--data", "nowhere"), "nowhere", "cifar-100-python", "--download")
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "results").exists()


def test_a_broken_dataset_is_one_line_that_names_the_file(treering_run: Any, tmp_path: Path) -> None:
    (tmp_path / "data" / cifar.FOLDER / "test").write_bytes(FILES["test"][:1000])
    assert_one_line(treering_run("tiny.toml"), f"data/{cifar.FOLDER}/test")


def test_a_missing_dataset_is_fetched_if_that_is_asked_for(
    treering_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []

    def fetch(folder: Path) -> None:
        fetched.append(folder)
        write_cifar(folder, published_files(train=2, test=1))

    monkeypatch.setattr(cifar, "fetch", fetch)
    done = treering_run("tiny.toml", "--data", "new", "--download")
    assert (done.code, fetched) == (0, [Path("new")])


def test_a_result_with_other_settings_is_named_and_kept(treering_run: Any, tmp_path: Path) -> None:
    assert treering_run("tiny.toml").code == 0
    before = (tmp_path / "results" / f"{NAME}.json").read_bytes()
    done = treering_run("tiny.toml", "--set", "temperature=3")
    assert done.code != 0
    assert "other settings" in done.out + done.err
    assert f"{NAME}.json" in done.out + done.err
    assert "Traceback" not in done.out + done.err
    assert (tmp_path / "results" / f"{NAME}.json").read_bytes() == before


@pytest.mark.parametrize("where", ["file", "file/inside"])
def test_results_that_cannot_be_written_are_one_line_that_names_the_folder(
    treering_run: Any, tmp_path: Path, where: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    done = treering_run("tiny.toml", "--results", where)
    assert done.code != 0
    assert "file" in done.out + done.err
    assert "Traceback" not in done.out + done.err


def test_a_device_that_is_not_there_is_one_line_that_names_it(treering_run: Any) -> None:
    assert_one_line(treering_run("tiny.toml", "--device", "abacus"), "abacus", "cpu")


def test_a_call_without_a_recipe_is_exit_code_2(treering_run: Any) -> None:
    done = treering_run()
    assert done.code == 2
    assert "RECIPES" in done.err.upper()


# --- Changes of settings ----------------------------------------------------------------------------------------------


def test_values_are_written_as_in_toml_and_texts_may_go_without_quotes() -> None:
    changed = Recipe().changed(
        [
            "run.order=3",
            "training.lr = 0.5",
            "training.drop_at=[1, 2]",
            "run.classes_per_step=[40,60]",
            "optimizer.reset_momentum=false",
            "memory.selection=random",
            'memory.kind="per-class"',
            "method=finetune",
            "run.order=4",
        ]
    )
    default = Recipe()
    assert changed == replace(
        default,
        method="finetune",
        run=replace(default.run, order=4, classes_per_step=(40, 60)),
        training=replace(default.training, lr=0.5, drop_at=(1, 2)),
        optimizer=replace(default.optimizer, reset_momentum=False),
        memory=Budget("per-class", 2000, "random"),
    )
    assert default.changed([]) == default
    assert default == Recipe()


def test_a_change_of_a_wrong_type_is_an_error() -> None:
    with pytest.raises(TreeringError, match=r"run.order must be a whole number, not 1.5"):
        Recipe().changed(["run.order=1.5"])


# --- Ready recipes ----------------------------------------------------------------------------------------------------


def expected_recipes() -> dict[str, Recipe]:
    """What the names of the ready recipes say, with the paper's settings for all else."""
    full = Recipe()
    recipes = {}
    for sizes in (2, 5, 10, 20, 50):
        recipes[f"cifar100-{sizes}"] = replace(full, run=Run("cifar100", sizes))
    plain, no_balance = Augmentation(kind="none"), replace(full.balanced, epochs=0)
    for sizes in (5, 10, 20):
        one = recipes[f"cifar100-{sizes}"]
        recipes[f"cifar100-{sizes}-base"] = replace(one, augmentation=plain, balanced=no_balance)
        recipes[f"cifar100-{sizes}-bf"] = replace(one, augmentation=plain)
        recipes[f"cifar100-{sizes}-da"] = replace(one, balanced=no_balance)
    for rule in ("random", "histogram"):
        recipes[f"cifar100-10-{rule}"] = replace(recipes["cifar100-10"], memory=Budget("total", 2000, rule))  # type: ignore[arg-type]
    recipes["cifar100-vehicles"] = replace(full, memory=Budget(size=200), run=Run("cifar100-vehicles", 2))
    return recipes


EXPECTED = expected_recipes()
READY = [name for name in ready_names() if not name.startswith("photos")]  # those are for a Learner


@pytest.mark.parametrize("name", EXPECTED)
def test_a_ready_recipe_is_the_papers_but_for_what_its_name_says(name: str) -> None:
    assert Recipe.find(name) == EXPECTED[name]


@pytest.mark.parametrize("name", READY)
def test_every_ready_recipe_can_be_run_and_its_result_file_tells_what_its_name_tells(name: str) -> None:
    recipe = Recipe.find(name)
    methods.find(recipe.method)
    names = r"(cifar100-vehicles|mini-imagenet|stanford-dogs|[a-z0-9]+)-?(.*)"
    dataset, *rest = re.match(names, name).groups()  # type: ignore[union-attr]
    assert recipe.run.dataset == dataset
    for word in rest[0].split("-"):
        if recipe.method == "gem" and word.isdigit() and int(word) >= 100:
            assert recipe.memory.size * 100 // 5 == int(word)
        elif word.isdigit():
            assert recipe.run.classes_per_step == int(word)
        elif word in ("base", "da", "bf"):
            assert method_label(recipe) == f"eeil-{word}"
        elif word in ("random", "histogram"):
            assert recipe.memory.selection == word
        elif word:
            assert word in recipe.method.split("-")
    assert run_name(recipe).startswith(f"{dataset}-{recipe.run.classes_per_step}-")


def test_the_digits_recipe_is_small_and_quick() -> None:
    recipe = Recipe.find("digits")
    assert (recipe.backbone, recipe.run.dataset, recipe.run.classes_per_step) == ("small", "digits", 2)
    assert recipe.method == "eeil"
    assert max(recipe.training.drop_at) < recipe.training.epochs < 40
    assert max(recipe.balanced.drop_at) < recipe.balanced.epochs < 30


# --- Runs that are finished already -----------------------------------------------------------------------------------


def test_a_finished_run_needs_neither_data_nor_a_network(treering_run: Any, tmp_path: Path) -> None:
    assert treering_run("tiny.toml").code == 0
    (tmp_path / "data").rename(tmp_path / "gone")
    again = treering_run("tiny.toml")
    assert (again.code, again.err) == (0, "")
    assert "was run before" in again.out


def test_a_finished_run_on_other_images_is_refused_where_the_data_are_loaded_for_another(
    treering_run: Any, tmp_path: Path
) -> None:
    assert treering_run("tiny.toml").code == 0
    shutil.rmtree(tmp_path / "data")
    write_cifar(tmp_path / "data", published_files(train=4, test=2))
    (tmp_path / "other.toml").write_text(TOML + "order = 1\n")
    done = treering_run("tiny.toml", "other.toml")
    assert done.code == 2
    assert f"{NAME}.json holds a run on other images" in done.err
    assert [row[0] for row in done.table] == ["run", NAME.replace("order0", "order1")]


def test_a_result_that_cannot_be_read_ends_only_its_own_run(treering_run: Any, tmp_path: Path) -> None:
    (tmp_path / "results" / f"{NAME}.json").mkdir(parents=True)
    (tmp_path / "other.toml").write_text(TOML + "order = 1\n")
    done = treering_run("tiny.toml", "other.toml")
    assert done.code == 2
    assert f"cannot read results/{NAME}.json" in done.err
    assert [row[0] for row in done.table] == ["run", NAME.replace("order0", "order1")]
