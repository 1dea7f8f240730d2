"""Runs: what a result holds, what a run does when it is interrupted, and what it refuses."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import run_helper
import safetensors.torch
import torch
from conftest import Dropping
from rich.console import Console
from run_helper import (
    TINY,
    Interruptible,
    digest,
    result_files,
    run_in_console,
    tiny_dataset,
    tiny_images,
    without_times,
)

import treering
from treering import Augmentation, Budget, Optimizer, Recipe, Schedule, TreeringError, data, methods
from treering.core import backbones, trainer
from treering.experiments import result, scheduler, stored
from treering.experiments import run as runner
from treering.experiments.result import run_name
from treering.experiments.run import RunProgress, StreamRun
from treering.recipe import Run, ready_names
from treering.runtime import commit as commits
from treering.runtime import file_lock, files
from treering.storage import resume as in_flight

KEYS = {
    *("method", "dataset", "classes_per_step", "memory", "selection", "order", "seed", "accuracy", "top5"),
    *("average_without_first", "average", "image_passes", "seconds", "images_per_second", "device", "versions"),
    *("commit", "recipe"),
}
"""Of DESIGN.md, "A result"."""


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREERING_COMMIT", "of the tests")  # somebody may commit while they run
    monkeypatch.setitem(backbones.BACKBONES, "tiny", run_helper.TinyFeatures)
    monkeypatch.setitem(backbones.BACKBONES, "tiny-dropping", Dropping)


# --- The result -------------------------------------------------------------------------------------------------------


class Watched:
    """A finished run over twelve classes in uneven steps, and what its network said after each step."""

    def __init__(self, folder: Path) -> None:
        self.images = tiny_images(classes=12, per_class=5, tests_per_class=3)
        sizes = (4, 5, 3)
        self.recipe = replace(
            TINY,
            training=Schedule(epochs=1, lr=0.01),  # so little that it is often wrong
            memory=Budget(size=25, selection="random"),
            run=Run("tiny", sizes, order=2, seed=7),
        )
        self.shown: list[torch.Tensor] = []
        self.probabilities: list[list[list[float]]] = []
        answer = methods.Method.probabilities

        def probabilities(method: methods.Method, images: torch.Tensor) -> torch.Tensor:
            self.shown.append(images.clone())
            said = answer(method, images)
            self.probabilities.append(said.tolist())
            return said

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(backbones.BACKBONES, "tiny", run_helper.TinyFeatures)
            patch.setattr(methods.Method, "probabilities", probabilities)
            run = StreamRun(self.recipe, self.images, folder)
            self.result = run()
        self.method, self.file = run.method, run.result_file
        self.order = np.random.RandomState(1993 + 2).permutation(12).tolist()
        labels = self.images.test_labels.tolist()
        seen = [self.order[: sum(sizes[: step + 1])] for step in range(3)]
        self.tests = [[index for index, label in enumerate(labels) if label in known] for known in seen]
        self.truth = [[self.order.index(labels[index]) for index in tests] for tests in self.tests]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return Watched(tmp_path_factory.mktemp("results"))


def test_a_result_has_every_promised_key_and_the_file_holds_it(watched: Watched) -> None:
    assert set(watched.result) >= KEYS
    assert stored.read(watched.file) == json.loads(json.dumps(watched.result))
    assert watched.file.name == "tiny-4+5+3-eeil-bf-total25-random-order2-seed7.json"


def test_a_result_says_what_was_run_and_where(watched: Watched) -> None:
    result = json.loads(watched.file.read_text())
    expected = {
        "method": "eeil-bf",
        "dataset": "tiny",
        "classes_per_step": [4, 5, 3],
        "memory": {"kind": "total", "size": 25},
        "selection": "random",
        "order": 2,
        "seed": 7,
        "device": "CPU",
        "versions": {
            "treering": treering.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "recipe": watched.recipe.to_dict(),
        "class_order": [f"class {label}" for label in watched.order],
    }
    assert {key: result[key] for key in expected} == expected
    assert Recipe.from_dict(result["recipe"]) == watched.recipe
    assert isinstance(result["commit"], str)


def test_after_each_step_the_test_images_of_all_classes_so_far_are_shown_as_they_are(watched: Watched) -> None:
    assert len(watched.shown) == 3
    for shown, tests in zip(watched.shown, watched.tests, strict=True):
        assert torch.equal(shown, watched.images.test_images[tests])
    last = watched.method.network.predict_logits(watched.images.test_images[watched.tests[-1]]).softmax(1)
    assert last.tolist() == watched.probabilities[-1]


def predictions(probabilities: list[list[float]]) -> list[int]:
    return [max(range(len(row)), key=row.__getitem__) for row in probabilities]


def test_accuracy_and_top5_are_the_shares_of_the_networks_own_predictions(watched: Watched) -> None:
    accuracy, top5 = [], []
    for probabilities, truth in zip(watched.probabilities, watched.truth, strict=True):
        right = among_five = 0
        for row, label in zip(probabilities, truth, strict=True):
            right += predictions([row])[0] == label
            among_five += sum(other > row[label] for other in row) < 5
        accuracy.append(100 * right / len(truth))
        top5.append(100 * among_five / len(truth))
    assert watched.result["accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert watched.result["top5"] == pytest.approx(top5, abs=1e-9)
    assert top5[0] == 100 > top5[2] > accuracy[2] > 0, "the data tell them apart"
    assert watched.result["average"] == pytest.approx(sum(accuracy) / 3)
    assert watched.result["average_without_first"] == pytest.approx((accuracy[1] + accuracy[2]) / 2)


def test_class_accuracy_and_confusion_follow_the_order_of_the_classes(watched: Watched) -> None:
    for step, (probabilities, truth) in enumerate(zip(watched.probabilities, watched.truth, strict=True)):
        predicted = predictions(probabilities)
        expected = []
        for label in range([4, 9, 12][step]):
            own = [guess for guess, true in zip(predicted, truth, strict=True) if true == label]
            expected.append(100 * own.count(label) / len(own))
        assert watched.result["class_accuracy"][step] == pytest.approx(expected, abs=1e-4)
    confusion = [[0] * 12 for _ in range(12)]
    for true, guess in zip(watched.truth[-1], predictions(watched.probabilities[-1]), strict=True):
        confusion[true][guess] += 1
    assert watched.result["confusion"] == confusion


def test_times_add_up_and_count_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def slow(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def slowed(*args: Any, **settings: Any) -> Any:
            clock.now += seconds
            return function(*args, **settings)

        return slowed

    monkeypatch.setattr(torch, "randperm", slow(torch.randperm, 10.0))  # drawn once an epoch
    monkeypatch.setattr(trainer.Trainer, "fit", slow(trainer.Trainer.fit, 1.0))
    monkeypatch.setattr(methods.Method, "rank", slow(methods.Method.rank, 0.25))
    monkeypatch.setattr(methods.Method, "probabilities", slow(methods.Method.probabilities, 0.5))
    run = StreamRun(TINY, tiny_images(), tmp_path)
    seen: list[float] = []
    run.watch = lambda progress: seen.append(progress.seconds)
    result = run()
    assert {key: value for key, value in result["seconds_by_stage"].items() if value} == {
        "construction of training sets": 3 * 1.0 + 2 * 1.25,  # of stage 3: its selection too
        "training": 60.0,
        "balanced": 40.0,
        "selection and evaluation": 3 * 0.75,
    }
    assert result["seconds"] == sum(result["seconds_by_stage"].values())
    assert result["images_per_second"] == pytest.approx(result["image_passes"] / result["seconds"])
    assert seen[:3] == [11.0, 21.0, 32.75]


def test_the_commit_is_the_one_given_or_that_of_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TREERING_COMMIT", "0123abc")
    assert commits.current_commit() == "0123abc"
    assert StreamRun(replace(TINY, run=Run("tiny", 6)), tiny_images(), tmp_path)()["commit"] == "0123abc"
    monkeypatch.delenv("TREERING_COMMIT")
    folder = Path(treering.__file__).parent
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
    assert commits.current_commit().rstrip("+") == (git.stdout.strip() or "unknown")
    monkeypatch.setenv("PATH", str(tmp_path))
    commits._commit_of.cache_clear()
    assert commits.current_commit() == "unknown"


def test_a_commit_is_that_of_the_code_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not that of a project it is installed below, and marked where its files are not those of the commit."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.delenv("TREERING_COMMIT")
    package = tmp_path / "src" / "treering"
    (package / "experiments").mkdir(parents=True)
    monkeypatch.setattr(commits, "__file__", str(package / "runtime" / "commit.py"))
    (package / "__init__.py").write_text("")

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    monkeypatch.setenv("GIT_DIR", str(Path(__file__).parents[1] / ".git"))  # as git's hooks do

    def git(*arguments: str) -> str:
        settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *settings, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout.strip()

    def commit() -> str:
        commits._commit_of.cache_clear()
        return commits.current_commit()

    git("init")
    git("commit", "--allow-empty", "-m", "another project")
    assert commit() == "unknown"
    git("add", ".")
    git("commit", "-m", "its own")
    assert commit() == git("rev-parse", "HEAD")
    (package / "__init__.py").write_text("changed = True\n")
    assert commit() == git("rev-parse", "HEAD") + "+"
    git("checkout", ".")
    assert commits.current_commit() == git("rev-parse", "HEAD") + "+", "that of the code as it was loaded"


@pytest.mark.parametrize(
    ("method", "kind", "epochs", "label"),
    [
        ("eeil", "none", 0, "eeil-base"),
        ("eeil", "twelvefold", 0, "eeil-da"),
        ("eeil", "none", 30, "eeil-bf"),
        ("eeil", "twelvefold", 30, "eeil"),
        ("eeil", "twofold", 1, "eeil"),
        ("eeil", "twofold", 0, "eeil-da"),
        ("finetune", "none", 0, "finetune"),
        ("finetune", "twelvefold", 30, "finetune"),
    ],
)
def test_the_ablations_of_eeil_have_names_of_their_own(method: str, kind: Any, epochs: int, label: str) -> None:
    balanced = Schedule(epochs=epochs, lr=0.01)
    recipe = Recipe(method=method, balanced=balanced, augmentation=Augmentation(kind=kind))
    assert result.method_label(recipe) == label


def ready() -> dict[str, Recipe]:
    return {name: Recipe.find(name) for name in ready_names() if not name.startswith("photos")}


def test_no_two_ready_recipes_share_a_result_file_in_any_order_and_seed() -> None:
    recipes = [
        recipe.changed([f"run.order={order}", f"run.seed={seed}"])
        for recipe in ready().values()
        for order, seed in ((0, 0), (1, 0), (0, 1), (4, 3))
    ]
    names = [run_name(recipe) for recipe in recipes]
    assert len(set(names)) == len(names) >= 4 * 27
    assert all(re.fullmatch(r"[a-z0-9.+-]+", name) for name in names), "safe in any file system"


# --- Image passes -----------------------------------------------------------------------------------------------------

UNEVEN = (7, 1, 5, 3, 9, 2, 6, 4)


@pytest.mark.parametrize("steps", [3, (3, 1, 4), (1,) * 8, 8], ids=str)
@pytest.mark.parametrize("budget", [Budget("total", 17), Budget("per-class", 3)], ids=lambda budget: budget.kind)
@pytest.mark.parametrize("ablation", ["eeil", "eeil-base", "eeil-da", "eeil-bf", "finetune"])
def test_a_run_takes_the_image_passes_that_were_planned(
    tmp_path: Path, ablation: str, budget: Budget, steps: Any
) -> None:
    augmented, balanced = ablation in ("eeil", "eeil-da"), ablation in ("eeil", "eeil-bf")
    recipe = replace(
        TINY,
        method=ablation.split("-")[0],
        memory=budget,
        training=Schedule(epochs=1, lr=0.01),
        balanced=Schedule(epochs=2 * balanced, lr=0.01),
        augmentation=Augmentation(kind="twelvefold" if augmented else "none", padding=1),
        run=Run("tiny", steps),
    )
    run = StreamRun(recipe, tiny_images(classes=8, per_class=UNEVEN), tmp_path)
    seen: list[RunProgress] = []
    run.watch = seen.append
    trained: list[int] = []
    fit = run.method.trainer.fit
    run.method.trainer.fit = lambda stage, data, *rest: (trained.append(len(data.images)), fit(stage, data, *rest))  # type: ignore[method-assign,func-returns-value]
    result = run()
    assert result["method"] == ablation
    assert result["image_passes"] == run.image_passes_planned == seen[-1].image_passes
    assert run._largest_stage == max(trained), "what is captured on a GPU has room for every stage, and no more"

    # The same from the definition: every batch is full, so an epoch is a whole number of batches.
    expected = 0
    for images, stage in zip(trained, stages_of(balanced, len(result["accuracy"])), strict=True):
        size = max(2, min(16, images))
        expected += (2 if stage == "balanced" else 1) * size * -(-images // size)
    assert result["image_passes"] == expected


def stages_of(balanced: bool, steps: int) -> list[str]:
    return ["training"] + ["training", *["balanced"] * balanced] * (steps - 1)


@pytest.mark.parametrize(("classes_per_step", "millions"), [(2, 110), (5, 60), (10, 41), (20, 32), (50, 26)])
def test_the_papers_runs_take_the_image_passes_that_were_measured(classes_per_step: int, millions: int) -> None:
    recipe = Recipe.find(f"cifar100-{classes_per_step}")
    steps = [dict.fromkeys(range(first, first + classes_per_step), 500) for first in range(0, 100, classes_per_step)]
    planned = sum(stage.image_passes for step in methods.find(recipe.method).plan(recipe, steps) for stage in step)
    assert planned == pytest.approx(millions * 1e6, rel=0.03)


def test_progress_tells_step_stage_and_epoch(tmp_path: Path) -> None:
    run = StreamRun(TINY, tiny_images(), tmp_path)
    seen: list[RunProgress] = []
    run.watch = seen.append
    run()
    stages = [(1, "training"), (2, "training"), (2, "balanced"), (3, "training"), (3, "balanced")]
    assert [(now.step, now.stage, now.epoch) for now in seen] == [
        (*stage, epoch) for stage in stages for epoch in (1, 2)
    ]
    assert {(now.steps, now.epochs, now.image_passes_planned) for now in seen} == {(3, 2, run.image_passes_planned)}
    assert all(a.image_passes < b.image_passes and a.seconds < b.seconds for a, b in itertools.pairwise(seen))


def shown(results: Path, monkeypatch: pytest.MonkeyPatch, recipes: Sequence[Recipe] = (TINY,), **terminal: Any) -> str:
    """What is seen of runs."""
    monkeypatch.setitem(data.DATASETS, "tiny", lambda folder, download: tiny_dataset())
    screen = Console(file=io.StringIO(), **{"width": 160} | terminal)
    run_in_console(screen, recipes, results, results)
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("terminal", [{}, {"force_terminal": True, "force_interactive": False}], ids=["file", "dumb"])
def test_a_log_gets_a_line_for_each_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: dict[str, bool]
) -> None:
    name = run_name(TINY)
    lines = shown(tmp_path, monkeypatch, **terminal).splitlines()
    first, *said = [line for line in lines if line.startswith(f"{name}: ")]
    planned = json.loads((tmp_path / f"{name}.json").read_text())["image_passes"]
    assert first == f"{name}: {planned:,} image passes in all", "the first epoch may take long"
    stages = ["1/3 training", "2/3 training", "2/3 balanced", "3/3 training", "3/3 balanced"]
    accuracy = json.loads((tmp_path / f"{name}.json").read_text())["accuracy"]
    for line, stage in zip(said, stages, strict=True):
        done = int(stage[0]) - 1
        after = f"; {accuracy[done - 1]:.1f} % after step {done}" if done else ""
        line_of_stage = rf"{name}: \d+ s left, step {stage} epoch 1/2, [\d,]+ images/s{re.escape(after)}"
        assert re.fullmatch(line_of_stage, line)


def test_a_terminal_gets_a_bar_and_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(tmp_path, monkeypatch, force_terminal=True, force_interactive=True)
    assert re.search(r"100 % 0 s left, step 3/3 balanced epoch 2/2, [\d,]+ images/s", said)
    assert "after step" not in said


def test_a_narrow_terminal_shows_all_but_the_end_of_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (scheduler, run_helper):
        monkeypatch.setattr(module, "run_name", lambda recipe: "cifar100-10-eeil-total2000-herding-order0-seed0")
    said = shown(tmp_path, monkeypatch, force_terminal=True, force_interactive=True, width=80)
    assert re.search(r"100 % 0 s left, step 3/3 balanced epoch 2/2, [\d,]+ images/s cifar100-10\S*…", said)


def test_runs_at_once_are_shown_by_what_tells_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [TINY, TINY.changed(["run.order=1"]), TINY.changed(["run.order=1", "balanced.epochs=0"])]
    said = shown(tmp_path, monkeypatch, recipes, force_terminal=True, force_interactive=True, width=80)
    labels = set(re.findall(r"images/s +(\S+) *(?:\n|$)", said))
    assert labels == {"bf-order0", "bf-order1", "base-order1"}


def test_the_speed_of_a_resumed_run_is_that_of_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 1.0)
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    run = StreamRun(TINY, tiny_images(), tmp_path)
    seen: list[RunProgress] = []

    def slowly(now: RunProgress) -> None:
        seen.append(now)
        next(itertools.islice(clock, 5000, None))  # the rest of this part takes for ever
        if len(seen) == 3:
            raise KeyboardInterrupt

    run.watch = slowly
    with pytest.raises(KeyboardInterrupt):
        run()
    resumed = StreamRun(TINY, tiny_images(), tmp_path)
    resumed.watch = seen.append
    resumed()
    assert seen[3].seconds > 10_000
    assert seen[3].images_per_second > 100 * seen[3].image_passes / seen[3].seconds


# --- Interruption -----------------------------------------------------------------------------------------------------

VARIANTS = {
    "plain": (TINY, 6),
    "momentum kept": (replace(TINY, optimizer=Optimizer(batch_size=8, reset_momentum=False)), 6),
    "augmented": (replace(TINY, augmentation=Augmentation(padding=1), optimizer=Optimizer(batch_size=64)), 6),
    "random selection": (replace(TINY, memory=Budget("per-class", 2, "random")), 6),
    "fine-tuning": (replace(TINY, method="finetune", training=Schedule(epochs=3, lr=0.05)), 6),
    "joint": (replace(TINY, method="joint"), 6),
    "icarl": (replace(TINY, method="icarl", outputs=6), 6),
    "tuned": (replace(TINY, method="tuned", augmentation=Augmentation(kind="photo", crop_size=8)), 6),
    "resnet": (replace(TINY, backbone="small"), 6),
    "dropout": (replace(TINY, backbone="tiny-dropping"), 6),
    "many classes": (replace(TINY, memory=Budget(size=30), run=Run("tiny", (6, 6, 1))), 13),
}


def interruptible(variant: str, folder: Path) -> Interruptible:
    recipe, classes = VARIANTS[variant]
    return Interruptible(recipe, folder, tiny_images(classes, per_class=4))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_interrupted_after_any_epoch_goes_on_from_there_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible(variant, tmp_path)
    assert case.epochs == {"fine-tuning": 9, "joint": 6, "icarl": 6}.get(variant, 10)
    for epoch in range(1, case.epochs + 1):
        case.interrupt(str(epoch), epoch)
        case.check_the_end(str(epoch), case.epochs - epoch)


@pytest.mark.parametrize("variant", ["plain", "momentum kept", "many classes"])
def test_a_run_interrupted_twice_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible(variant, tmp_path)
    for first, second in ((1, 1), (3, 2), (4, 1), (5, 4), (6, 3), (9, 1)):
        results = f"{first}+{second}"
        case.interrupt(results, first)
        case.interrupt(results, second)
        case.check_the_end(results, case.epochs - first - second)


@pytest.mark.parametrize("variant", ["plain", "momentum kept", "many classes"])
def test_a_run_interrupted_between_saves_goes_on_from_the_start_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 1e9)
    case = interruptible(variant, tmp_path)
    for epoch, left in ((1, 10), (2, 10), (3, 8), (5, 8), (6, 8), (7, 4), (10, 4)):
        case.interrupt(str(epoch), epoch)
        case.check_the_end(str(epoch), left)


def test_dropout_follows_the_seed_alone(tmp_path: Path) -> None:
    def learnt(seed: int, global_seed: int) -> str:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(global_seed)
            recipe = replace(TINY, backbone="tiny-dropping", run=replace(TINY.run, seed=seed))
            run = StreamRun(recipe, tiny_images(), tmp_path / f"{seed} {global_seed}")
            state = torch.get_rng_state()
            run()
            assert torch.equal(torch.get_rng_state(), state)
            return digest(run.method)

    assert learnt(0, 1) == learnt(0, 2) != learnt(1, 1)


def test_the_state_is_saved_at_the_start_of_a_step_and_then_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    recipe = replace(TINY, method="finetune", training=Schedule(epochs=7, lr=0.01), run=Run("tiny", 3))
    run = StreamRun(recipe, tiny_images(), tmp_path)
    saved: list[Any] = []
    save = run._save

    def watched_save(in_flight: Any) -> None:
        saved.append(in_flight and in_flight.current.epoch)
        save(in_flight)

    def minute_and_a_half_in_two_epochs(now: RunProgress) -> None:
        clock.now += 45.0

    run._save, run.watch = watched_save, minute_and_a_half_in_two_epochs  # type: ignore[method-assign]
    run()
    assert runner.SAVE_EVERY == 60.0
    assert saved == [None, 3, 5, 7] * 2


def test_a_run_whose_folder_is_removed_makes_it_anew_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    run = case.start("removed")
    run.watch = lambda progress: shutil.rmtree(run.result_file.parent)
    run()
    assert result_files(run.result_file.parent) == case.results


def test_the_time_before_an_interruption_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    draw = torch.randperm

    def slow(*args: Any, **settings: Any) -> torch.Tensor:  # drawn once an epoch
        clock.now += 10.0
        return draw(*args, **settings)

    monkeypatch.setattr(torch, "randperm", slow)
    recipe, images = replace(TINY, run=Run("tiny", 3)), tiny_images()
    run = StreamRun(recipe, images, tmp_path)

    def interrupt(now: RunProgress) -> None:
        if (now.step, now.stage, now.epoch) == (2, "training", 1):
            clock.now += 1000.0
            raise KeyboardInterrupt

    run.watch = interrupt
    with pytest.raises(KeyboardInterrupt):
        run()
    result = StreamRun(recipe, images, tmp_path)()
    assert result["seconds"] == 60.0
    assert {key: result["seconds_by_stage"][key] for key in ("training", "balanced")} == {
        "training": 40.0,
        "balanced": 20.0,
    }


def test_a_run_killed_at_any_moment_ends_the_same_when_it_is_started_again(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(treering.__file__).parents[1]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, run_helper.__file__, tmp_path, "0", "40"],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    peace, *killed = json.loads(done.stdout)
    assert peace["kills"] == 0
    assert sum(one["kills"] for one in killed) >= 40
    assert sum(one["resumed_in_flight"] for one in killed) >= 10
    for one in killed:
        assert without_times(one["result"]) == without_times(peace["result"])
        assert one["digest"] == peace["digest"]


# --- States that cannot be taken up -----------------------------------------------------------------------------------


def broken_state(kind: str, good: bytes) -> bytes:
    """A state file that is not one of this run, from a good one."""
    tensors = safetensors.torch.load(good)
    size = int.from_bytes(good[:8], "little")
    facts = json.loads(json.loads(good[8 : 8 + size])["__metadata__"]["facts"])
    one_tensor = {"start.weight": torch.zeros(2)}
    if kind.startswith("without "):
        name = kind.removeprefix("without ")
        kept = {key: value for key, value in facts.items() if key != name}
        return in_flight.to_bytes({key: part for key, part in tensors.items() if not key.startswith(name)}, kept)
    return {
        "empty": lambda: b"",
        "a text": lambda: b"this is no state\n" * 10,
        "half": lambda: good[: len(good) // 2],
        "last byte missing": lambda: good[:-1],
        "no facts": lambda: safetensors.torch.save(one_tensor),
        "other facts": lambda: safetensors.torch.save(one_tensor, {"model": "other"}),
        "facts that are no JSON": lambda: safetensors.torch.save(one_tensor, {"facts": "{"}),
        "no checksum": lambda: safetensors.torch.save(tensors, {"facts": json.dumps(facts)}),
        "a bit flipped": lambda: good[:-9] + bytes([good[-9] ^ 1]) + good[-8:],
        "facts of nothing": lambda: in_flight.to_bytes(one_tensor, {}),
        "facts as a list": lambda: in_flight.to_bytes(one_tensor, []),  # type: ignore[arg-type]
        "another network": lambda: in_flight.to_bytes(
            tensors | {"start.features.convolution.weight": torch.zeros(3, 3)}, facts
        ),
        "no tensors": lambda: in_flight.to_bytes(one_tensor, facts),
        "another network in flight": lambda: in_flight.to_bytes(tensors | {"current.weight": torch.zeros(3, 3)}, facts),
        "other momenta": lambda: in_flight.to_bytes(tensors | {"current.momenta": torch.zeros(16)}, facts),
        "half a random state": lambda: in_flight.to_bytes(
            tensors | {"start.generator": tensors["start.generator"][:2000].clone()}, facts
        ),
    }[kind]()


def forged_state(kind: str, good: bytes) -> bytes:
    """A state with a right checksum and seal that no run can have written."""
    tensors = safetensors.torch.load(good)
    size = int.from_bytes(good[:8], "little")
    facts = json.loads(json.loads(good[8 : 8 + size])["__metadata__"]["facts"])
    label = next(name for name in tensors if name.startswith("memory."))
    scores = facts["scores"]["eeil-bf"]
    change: dict[str, Callable[[], Any]] = {
        "more epochs than the recipe has": lambda: facts["fits"].update(current=[1, 99]),
        "a training that no step has": lambda: facts["fits"].update(current=[7, 1]),
        "all steps done": lambda: facts.update(steps_done=3),
        "no step done": lambda: facts.update(steps_done=0),
        "a negative time": lambda: facts.update(seconds=-1.0),
        "seconds as a text": lambda: facts.update(seconds="1"),
        "an accuracy of 200": lambda: scores.update(accuracy=[200.0]),
        "no accuracy": lambda: scores.update(accuracy=[]),
        "accuracies of no class": lambda: scores.update(class_accuracy=[3.0]),
        "scores as a number": lambda: facts.update(scores=3),
        "no device": lambda: facts.update(devices=[]),
        "other heads": lambda: facts.update(head_sizes=[*facts["head_sizes"], 1]),
        "an unknown fact": lambda: facts.update(more=3),
        "exemplars of an unknown class": lambda: tensors.update({"memory.99": tensors[label].clone()}),
        "exemplars of another size": lambda: tensors.update({label: tensors[label][:, :, 1:].clone()}),
        "exemplars that are no bytes": lambda: tensors.update({label: tensors[label].float()}),
    }
    change[kind]()
    return in_flight.to_bytes(tensors, facts)


FORGED = ("more epochs than the recipe has", "a training that no step has", "all steps done", "no step done")
FORGED += ("a negative time", "seconds as a text", "an accuracy of 200", "no accuracy", "accuracies of no class")
FORGED += ("scores as a number", "no device", "other heads", "an unknown fact", "exemplars of an unknown class")
FORGED += ("exemplars of another size", "exemplars that are no bytes")


@pytest.mark.parametrize("kind", FORGED)
def test_a_state_that_no_run_can_have_written_is_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    state = case.interrupt("forged", 6).state.file
    state.write_bytes(forged_state(kind, state.read_bytes()))
    with caplog.at_level(logging.WARNING):
        case.check_the_end("forged", case.epochs)
    (record,) = caplog.records
    assert "cannot be restored, so the run starts anew" in record.getMessage()


STATES = ("empty", "a text", "half", "last byte missing", "no facts", "other facts", "facts that are no JSON")
STATES += ("no checksum", "a bit flipped")
FOREIGN_STATES = ("facts of nothing", "facts as a list", "another network", "no tensors")
FOREIGN_STATES += ("without recipe", "without head_sizes", "without start.generator", "without current.momenta")
FOREIGN_STATES += ("another network in flight", "other momenta", "half a random state", "without devices")


@pytest.mark.parametrize("kind", [*STATES, *FOREIGN_STATES])
def test_a_state_that_cannot_be_taken_up_is_named_in_a_warning_and_the_run_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    state = case.interrupt("broken", 6).state.file
    content = broken_state(kind, state.read_bytes())
    state.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        case.check_the_end("broken", case.epochs)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(state) in record.getMessage()
    assert "starts anew" in record.getMessage()
    assert state.with_suffix(".set-aside-1").read_bytes() == content


@pytest.mark.parametrize("method", methods.METHODS)
def test_the_state_of_every_method_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    memory = Budget("per-step", 4, "random") if method == "gem" else TINY.memory
    kind = Augmentation(kind="photo", crop_size=8) if method == "tuned" else Augmentation(kind="none")
    recipe = replace(TINY, method=method, outputs=6, memory=memory, augmentation=kind)
    run = StreamRun(recipe, tiny_images(), tmp_path)
    monkeypatch.setattr(run.state, "remove", lambda: None)  # the state before the last step stays
    first = run()
    run.result_file.unlink()
    again = StreamRun(recipe, tiny_images(), tmp_path)
    progress: list[RunProgress] = []
    again.watch = progress.append
    assert without_times(again()) == without_times(first)
    assert {now.step for now in progress} <= {3}


@pytest.mark.parametrize("kind", ["empty space", "large tensors", "a link"])
def test_no_more_of_a_state_is_read_than_the_run_can_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(in_flight, "parse", lambda content: pytest.fail(f"{len(content)} bytes were read"))
    case = interruptible("plain", tmp_path)
    state = case.interrupt("results", 6).state.file
    if kind == "a link":
        state.rename(tmp_path / "elsewhere")
        state.symlink_to(tmp_path / "elsewhere")
    elif kind == "empty space":
        state.write_bytes(b"")
        os.truncate(state, 2**24)  # within the bound, since a header may be as long
    else:
        size = 2**26
        header = json.dumps({"start.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        state.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(state, 8 + len(header) + size)
    with caplog.at_level(logging.WARNING):
        case.check_the_end("results", case.epochs)
    (record,) = caplog.records
    said = {
        "empty space": "bytes than it has|no JSON|Expecting",
        "large tensors": "more than .* bytes",
        "a link": "is a link",
    }
    assert re.search(said[kind], record.getMessage())


def test_the_state_of_a_run_with_other_settings_is_set_aside_with_a_warning_and_the_run_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    other = case.recipe
    case.recipe = replace(other, temperature=3.0)
    state = case.interrupt("results", 6).state.file
    case.recipe = other
    content = state.read_bytes()
    with caplog.at_level(logging.WARNING):
        case.check_the_end("results", case.epochs)
    (record,) = caplog.records
    assert str(state) in record.getMessage()
    assert "other settings" in record.getMessage()
    assert state.with_suffix(".set-aside-1").read_bytes() == content


def test_every_state_that_is_set_aside_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    contents = []
    for number in range(3):
        case.recipe = replace(case.recipe, temperature=2.5 + number)
        contents.append(case.interrupt("results", 4).state.file.read_bytes())
    kept = sorted((tmp_path / "results" / ".unfinished").glob("*.set-aside-*"))
    assert [file.read_bytes() for file in kept] == contents[:2]


def test_what_a_killed_program_was_writing_is_removed_and_what_another_writes_is_not(tmp_path: Path) -> None:
    case = interruptible("plain", tmp_path)
    folder = tmp_path / "results" / ".unfinished"
    folder.mkdir(parents=True)
    abandoned, fresh = (folder / f"{files.TEMPORARY}{uuid.uuid4().hex}" for _ in range(2))
    foreign = folder / f"{files.TEMPORARY}of-somebody-else"
    for file in (abandoned, fresh, foreign):
        file.write_bytes(b"half")
    with fresh.open("rb") as stream:
        assert files.try_lock(stream.fileno())
        case.check_the_end("results", case.epochs)
    assert [file.exists() for file in (abandoned, fresh, foreign)] == [False, True, True]


def test_a_good_state_stays_where_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    case.interrupt("results", 6)
    run = case.start("results")

    def full(snapshot: Any) -> None:
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(run.method, "restore", full)
    with pytest.raises(torch.OutOfMemoryError):
        run()
    case.check_the_end("results", case.epochs - 6)


def test_a_run_begun_on_another_kind_of_device_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its generator's state, which here has 16 bytes as on a GPU, only seeds ours: other draws, the same each time."""
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("momentum kept", tmp_path)
    ends = []
    for place, number in (("one", 1), ("again", 1), ("other", 2)):
        state = case.interrupt(place, 5).state.file
        content = state.read_bytes()
        size = int.from_bytes(content[:8], "little")
        facts = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["facts"]) | {"devices": ["a GPU"]}
        tensors = safetensors.torch.load(content)
        elsewhere = {name: torch.full((16,), number, dtype=torch.uint8) for name in tensors if "generator" in name}
        state.write_bytes(in_flight.to_bytes(tensors | elsewhere, facts))
        run = case.start(place)
        seen: list[RunProgress] = []
        run.watch = seen.append
        caplog.clear()
        result = run()
        (record,) = caplog.records
        assert "was saved on a GPU" in record.getMessage()
        assert len(seen) == case.epochs - 5
        assert result["image_passes"] == run.image_passes_planned
        assert result["device"] == "a GPU, CPU"
        ends.append(digest(run.method))
    assert ends[0] == ends[1] != ends[2]


def test_a_good_state_is_taken_up_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    case.interrupt("results", 6)
    with caplog.at_level(logging.WARNING):
        case.check_the_end("results", case.epochs - 6)
    assert caplog.records == []


def test_a_run_on_other_images_of_the_same_name_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    state = case.interrupt("results", 6).state.file
    more = StreamRun(case.recipe, tiny_images(6, per_class=5), tmp_path / "results")
    result = more()
    assert "other images" in caplog.text
    assert state.with_suffix(".set-aside-1").exists()
    assert result["images"] == {"train": 30, "test": 24}
    with pytest.raises(TreeringError, match="holds a run on other images"):
        case.start("results")()


@pytest.mark.parametrize("part", ["train_images", "train_labels", "test_images", "test_labels"])
def test_one_pixel_or_label_tells_other_images(tmp_path: Path, part: str) -> None:
    images = tiny_images()
    result = StreamRun(TINY, images, tmp_path)()
    assert StreamRun(TINY, tiny_images(), tmp_path)() == result
    changed = getattr(images, part).clone()
    changed.view(-1)[0] = (changed.view(-1)[0] + 1) % len(images.class_names)
    with pytest.raises(TreeringError, match="holds a run on other images"):
        StreamRun(TINY, replace(images, **{part: changed}), tmp_path)()


def test_a_share_of_the_memory_for_held_out_images_is_refused(tmp_path: Path) -> None:
    recipe = replace(TINY, memory=replace(TINY.memory, held_out=0.5))
    with pytest.raises(TreeringError, match=r"memory\.held_out is for `treering learn`"):
        StreamRun(recipe, tiny_images(), tmp_path)


def test_a_run_of_more_steps_than_a_result_can_have_is_refused_before_any_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MOST_STEPS", 2)
    with pytest.raises(TreeringError, match="2 steps at most, not 3: set run"):
        StreamRun(TINY, tiny_images(), tmp_path)


def test_a_memory_that_is_too_small_for_the_last_step_is_refused_before_any_training(tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match="3 images cannot hold 6 classes: set memory to at least 6"):
        StreamRun(replace(TINY, memory=Budget(size=3)), tiny_images(), tmp_path)


def test_a_resumed_run_names_the_code_of_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible("plain", tmp_path)
    case.interrupt("results", 6)
    this_torch = torch.__version__
    monkeypatch.setenv("TREERING_COMMIT", "a later one")
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    result = case.start("results")()
    assert result["commit"] == "of the tests, a later one"
    assert result["versions"]["torch"] == f"{this_torch}, 9.9.0"


# --- Results that are there already -----------------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    images = tiny_images()
    first = StreamRun(TINY, images, tmp_path)()
    (file,) = tmp_path.glob("*.json")
    before = file.read_bytes()
    again = StreamRun(TINY, images, tmp_path)

    def fail(*args: Any) -> None:
        raise AssertionError("it trains")

    again.method.learn_step = fail  # type: ignore[method-assign]
    assert json.loads(json.dumps(again())) == json.loads(json.dumps(first))
    assert file.read_bytes() == before


def test_a_result_with_other_settings_is_refused_and_stays(tmp_path: Path) -> None:
    images = tiny_images()
    StreamRun(TINY, images, tmp_path)()
    (file,) = tmp_path.glob("*.json")
    before = file.read_bytes()
    with pytest.raises(TreeringError) as error:
        StreamRun(replace(TINY, temperature=3.0), images, tmp_path)()
    assert str(file) in str(error.value)
    assert "other settings" in str(error.value)
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\xff"], ids=repr)
def test_a_result_file_that_is_no_result_is_an_error_that_names_it(tmp_path: Path, content: str) -> None:
    run = StreamRun(TINY, tiny_images(), tmp_path)
    run.result_file.write_bytes(content.encode("latin-1"))
    with pytest.raises(TreeringError) as error:
        run()
    assert str(run.result_file) in str(error.value)
    assert run.result_file.read_bytes() == content.encode("latin-1")


# --- Trouble ----------------------------------------------------------------------------------------------------------


def test_a_learning_rate_that_is_far_too_high_is_a_clear_error_and_no_result(tmp_path: Path) -> None:
    run = StreamRun(replace(TINY, training=Schedule(epochs=3, lr=1e29)), tiny_images(), tmp_path)
    with pytest.raises(TreeringError, match=r"diverged.*lower the learning rate"):
        run()
    assert not run.result_file.exists()


def test_a_loss_that_is_not_a_number_in_a_later_step_is_a_clear_error_and_no_result(tmp_path: Path) -> None:
    run = StreamRun(TINY, tiny_images(), tmp_path)
    loss = run.method.trainer.loss

    def sometimes(*args: torch.Tensor) -> torch.Tensor:
        return loss(*args) * (float("nan") if len(run.method.network.head_sizes) == 2 else 1.0)

    run.method.trainer.loss = sometimes
    with pytest.raises(TreeringError, match="diverged"):
        run()
    assert not run.result_file.exists()


def test_a_new_folder_of_states_is_open_to_its_owner_alone(tmp_path: Path) -> None:
    """States hold images."""
    case = interruptible("plain", tmp_path)
    case.interrupt("results", 1)
    assert (tmp_path / "results" / ".unfinished").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "results").stat().st_mode & 0o077


@pytest.mark.parametrize("kind", ["a link", "a dangling link", "a file"])
def test_states_are_kept_in_a_folder_of_the_results_and_nowhere_else(tmp_path: Path, kind: str) -> None:
    results, outside = tmp_path / "results", tmp_path / "outside"
    for folder in (results, outside):
        folder.mkdir()
    precious = outside / f"{files.TEMPORARY}{uuid.uuid4().hex}"
    precious.write_text("mine")
    if kind == "a file":
        (results / ".unfinished").write_text("mine")
    else:
        (results / ".unfinished").symlink_to(outside if kind == "a link" else tmp_path / "nothing")
    with pytest.raises(TreeringError, match=r"\.unfinished is a link or a file: remove it"):
        StreamRun(TINY, tiny_images(), results)()
    assert list(outside.iterdir()) == [precious]
    assert not (tmp_path / "nothing").exists()


def test_a_folder_of_states_that_becomes_a_link_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    run = StreamRun(TINY, tiny_images(), tmp_path / "results")
    states, moved = run.state.file.parent, tmp_path / "moved"

    def replace_by_link(now: RunProgress) -> None:
        if not moved.exists():
            states.rename(moved)
            states.symlink_to(tmp_path / "outside")

    (tmp_path / "outside").mkdir()
    run.watch = replace_by_link
    with pytest.raises(TreeringError, match="is a link"):
        run()
    assert list((tmp_path / "outside").iterdir()) == []


def test_two_processes_cannot_be_at_one_run(tmp_path: Path) -> None:
    run = StreamRun(TINY, tiny_images(), tmp_path)
    run.state.file.parent.mkdir(parents=True)
    lock = run.state.file.with_suffix(".lock")
    other_run = file_lock.held(lock, lock.with_suffix(".writer"))
    with other_run, pytest.raises(TreeringError, match=rf"\(process {os.getpid()}, since .*\) is doing this run"):
        run()
    assert not run.result_file.exists()
