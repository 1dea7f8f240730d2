"""The upper bound: one training from the first weights on all images so far; streams of a single step."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from conftest import TinyFeatures, examples, images_of, kept, method_of, state_of, tiny_learner
from rich.console import Console
from run_helper import TINY, run_in_console, tiny_dataset, tiny_images
from test_draws import DRAWN, Fit, watch_fits
from test_icarl import ready

from treering import Augmentation, Budget, Learner, Recipe, data
from treering.core import backbones
from treering.experiments import stored
from treering.experiments.result import run_name
from treering.experiments.run import StreamRun
from treering.recipe import Run
from treering.report import markdown

FIRST, SECOND = examples({0: 10, 1: 9}), examples({2: 8, 3: 10, 4: 9}, seed=1)
AGAIN = examples({1: 4, 5: 6, 3: 2}, seed=2)
STEPS = (FIRST, SECOND, AGAIN)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    return watch_fits(monkeypatch)


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backbones.BACKBONES, "tiny", TinyFeatures)


def test_each_step_trains_on_all_images_so_far_and_returning_classes_join(fits: list[Fit]) -> None:
    learner = tiny_learner(method="joint", memory=1)  # the budget is not for it
    so_far: list[tuple[bytes, int]] = []
    for number, step in enumerate(STEPS):
        learner.partial_fit(*step)
        so_far += zip(kept(step[0]), step[1], strict=True)
        assert len(fits) == number + 1, "one training a step"
        for epoch in fits[-1].trained:
            assert {(image, label) for image, label, _ in epoch} == set(so_far)
        (drawn,) = fits[-1].draws
        assert sorted(zip(kept(drawn.images), drawn.labels.tolist(), strict=True)) == sorted(so_far)
    assert {name: len(images) for name, images in learner.exemplars_.items()} == {0: 10, 1: 13, 2: 8, 3: 12, 4: 9, 5: 6}


def test_each_step_starts_from_the_first_weights_with_one_head_for_all_classes(fits: list[Fit]) -> None:
    learner = tiny_learner(method="joint")
    for step in STEPS:
        learner.partial_fit(*step)
    assert [fit.before.head_sizes for fit in fits] == [[2], [5], [6]]
    first = fits[0].before
    fresh = TinyFeatures().state_dict()
    for fit in fits:
        for name, tensor in fit.before.features.state_dict().items():
            assert torch.equal(tensor, fresh[name]), name
        assert torch.equal(fit.before.mean_image, first.mean_image)
        assert fit.after is not None
        assert not torch.equal(fit.after.features.convolution.weight, first.features.convolution.weight)
    assert not torch.equal(fits[1].before.weight[:2], fits[0].after.weight[:2]), "the head is a fresh one, too"


def test_its_loss_is_the_cross_entropy_over_all_classes() -> None:
    learner = tiny_learner(method="joint").partial_fit(*FIRST).partial_fit(*SECOND)
    method, random = method_of(learner), np.random.RandomState(0)
    logits = random.normal(0, 3, (6, 5))
    given = torch.from_numpy(logits).requires_grad_()
    labels = [0, 4, 2, 3, 1, 4]
    loss = method.loss(given, torch.tensor(labels), torch.zeros(6, 5), method.network.head_of_class)
    assert loss.item() == pytest.approx(oracles.cross_entropy(logits, labels), abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, given)
    np.testing.assert_allclose(gradient.numpy(), oracles.cross_entropy_gradient(logits, labels), atol=1e-6)


def test_augmentation_is_drawn_anew_for_each_step(fits: list[Fit]) -> None:
    learner = tiny_learner(method="joint", augmentation=Augmentation(padding=1)).partial_fit(*FIRST)
    learner.partial_fit(*SECOND)
    assert [len(fit.draws[0].images) for fit in fits] == [12 * 19, 12 * 46]
    lit = [fit.draws[0].images[len(fit.draws[0].images) // 12 :][:19] for fit in fits]
    assert not torch.equal(*lit)


def test_nothing_is_forgotten() -> None:
    settings = {"training": replace(TINY.training, epochs=12, lr=0.1)}
    learner = tiny_learner(method="joint", **settings)
    first, second = examples({0: 15, 1: 15}), examples({2: 15, 3: 15}, seed=1)
    learner.partial_fit(*first).partial_fit(*second)
    tests = images_of([0, 1, 2, 3] * 10, seed=5), [0, 1, 2, 3] * 10
    assert learner.score(*tests) > 0.9
    floor = tiny_learner(method="finetune", **settings).partial_fit(*first).partial_fit(*second)
    assert floor.score(*tests) < 0.6


# --- A stream of a single step ----------------------------------------------------------------------------------------

ONE = replace(TINY, method="joint", augmentation=DRAWN, run=Run("tiny", 6))
NAME = "tiny-6-joint-no-memory-order0-seed0"


def test_a_run_of_one_step_has_no_average_without_the_first(tmp_path: Path) -> None:
    result = StreamRun(ONE, tiny_images(), tmp_path)()
    assert run_name(ONE) == NAME
    written = stored.read(tmp_path / f"{NAME}.json")
    assert written == json.loads(json.dumps(result))
    assert written["average_without_first"] is None
    assert [written["average"]] == written["accuracy"]
    assert (written["method"], written["memory"]["size"]) == ("joint", 0)


def test_a_run_of_several_steps_has_an_average_without_the_first(tmp_path: Path) -> None:
    result = StreamRun(replace(ONE, memory=Budget(size=1), run=Run("tiny", (1, 2, 3))), tiny_images(), tmp_path)()
    assert len(result["accuracy"]) == 3
    assert result["average_without_first"] == pytest.approx(sum(result["accuracy"][1:]) / 2)


def test_the_console_shows_a_run_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(data.DATASETS, "tiny", lambda folder, download: tiny_dataset())
    screen = io.StringIO()
    assert run_in_console(Console(file=screen, width=160), [ONE], tmp_path, tmp_path / "results") == []
    (row,) = [line for line in screen.getvalue().splitlines() if NAME in line and "│" in line]
    cells = [cell.strip() for cell in re.split("[│┃]", row)[1:-1]]
    result = json.loads((tmp_path / "results" / f"{NAME}.json").read_text())
    accuracy = f"{result['accuracy'][0]:.2f}"
    assert cells[:4] == [NAME, "", accuracy, accuracy]


def test_the_tables_bear_a_run_of_one_step(tmp_path: Path) -> None:
    one = StreamRun(ONE, tiny_images(), tmp_path)()
    of_the_paper = {"dataset": "cifar100", "method": "eeil", "memory": {"kind": "total", "size": 2000}}
    in_a_cell = one | of_the_paper | {"classes_per_step": 10, "average": 12.34}
    several = one | of_the_paper | {"classes_per_step": 5, "average_without_first": 23.45, "average": 34.56}

    def lines(results: list[dict[str, Any]], figure: str) -> list[list[str]]:
        """The measured accuracies in each line of the tables that has this figure."""
        found = [line for line in markdown.measured(results).splitlines() if f" {figure} " in line]
        return [[cell.strip() for cell in line.split("|")[5:7]] for line in found]

    expected = lines([several], "34.6")
    assert expected
    assert all(cells == ["23.4", "34.6"] for cells in expected)
    assert lines([one, several], "34.6") == expected, "a run that is in no table of the paper changes none"
    everything = [one, in_a_cell, several]
    assert lines(everything, "34.6") == expected
    assert lines(everything, "12.3")
    assert all(cells == ["", "12.3"] for cells in lines(everything, "12.3"))
    assert "None" not in markdown.measured(everything)


def test_the_ready_recipe_is_one_training_on_all_classes_with_eeils_settings() -> None:
    assert set(ready("-joint")) == {"cifar100-joint"}
    recipe = Recipe.find("cifar100-joint")
    assert recipe == Recipe(method="joint", run=Run("cifar100", 100))
    assert run_name(recipe) == "cifar100-100-joint-no-memory-order0-seed0"


def test_a_loaded_model_starts_each_step_from_the_weights_its_backbone_came_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(name: str, pretrained: bool) -> TinyFeatures:
        return TinyFeatures(seed=int(pretrained))

    monkeypatch.setitem(backbones.LIBRARIES, "elsewhere", make)
    learner = tiny_learner(method="joint", backbone="elsewhere:tiny").partial_fit(*FIRST)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    for one in (learner, loaded):
        one.partial_fit(*SECOND)
    assert state_of(loaded) == state_of(learner)
