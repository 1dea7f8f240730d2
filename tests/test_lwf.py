"""LwF.MC: iCaRL's training on the step's images alone, read out by the network's outputs."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TinyFeatures, examples, images_of, kept, method_of, tiny_learner
from run_helper import TINY, result_files, tiny_images
from test_draws import DRAWN, Fit, watch_fits
from test_icarl import assert_icarls_training, one_hot, outputs_of, pixels, ready

from treering import Augmentation, Budget, Schedule, methods
from treering.core import backbones
from treering.experiments.result import run_name
from treering.experiments.run import StreamRun
from treering.recipe import Run

FIRST, SECOND, THIRD = examples({0: 10, 1: 9}), examples({2: 8, 3: 10}, seed=1), examples({4: 7}, seed=2)
TESTS = images_of([0, 1, 2, 3, 4] * 6, seed=9)
RUN = replace(TINY, method="lwf-mc", augmentation=DRAWN, run=Run("tiny", (1, 3, 2)))


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    return watch_fits(monkeypatch)


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backbones.BACKBONES, "tiny", TinyFeatures)


def test_no_exemplars_are_kept_and_a_step_trains_on_its_images_alone(fits: list[Fit]) -> None:
    learner = tiny_learner(method="lwf-mc", augmentation=Augmentation(kind="none"))
    for step in (FIRST, SECOND, THIRD):
        learner.partial_fit(*step)
        assert learner.exemplars_ == {}
        assert len(fits[-1].trained) == 2
        for epoch in fits[-1].trained:
            trained = {(image, label) for image, label, _ in epoch}
            assert trained == set(zip(kept(step[0]), step[1], strict=True))
    assert method_of(learner).network.head_sizes == [2, 2, 1]


def test_old_classes_have_the_sigmoids_of_the_network_before_the_step_new_ones_0_and_1(fits: list[Fit]) -> None:
    learner = tiny_learner(method="lwf-mc", augmentation=DRAWN, training=Schedule(epochs=3, lr=0.5))
    learner.partial_fit(*FIRST).partial_fit(*SECOND)
    teacher = copy.deepcopy(method_of(learner).network)
    learner.partial_fit(*THIRD)
    for drawn in fits[0].draws:
        assert np.array_equal(drawn.targets.numpy(), one_hot(drawn.labels, drawn.targets.shape[1]))
    for drawn in fits[2].draws:
        expected = outputs_of(teacher, drawn.images)
        np.testing.assert_allclose(drawn.targets[:, :4].numpy(), expected, atol=1e-6, rtol=0)
        assert np.array_equal(drawn.targets[:, 4:].numpy(), one_hot(drawn.labels, drawn.targets.shape[1])[:, 4:])
    assert np.abs(outputs_of(fits[2].networks[-1], drawn.images)[:, :4] - expected).max() > 0.01


def test_it_is_read_out_by_its_sigmoid_outputs() -> None:
    learner = tiny_learner(method="lwf-mc", augmentation=DRAWN).partial_fit(*FIRST)
    for step in (SECOND, THIRD, examples({0: 4, 3: 5}, seed=5)):
        learner.partial_fit(*step)
        outputs = outputs_of(method_of(learner).network, pixels(TESTS))
        said = learner.predict_proba(TESTS)
        np.testing.assert_allclose(said, outputs / outputs.sum(1, keepdims=True), atol=1e-6, rtol=0)
        assert said.sum(1) == pytest.approx(1, abs=1e-6)
        assert said.argmax(1).tolist() == outputs.argmax(1).tolist()


def test_its_first_step_is_icarls_but_for_the_readout(fits: list[Fit]) -> None:
    lwf = tiny_learner(method="lwf-mc", augmentation=DRAWN).partial_fit(*FIRST)
    icarl = tiny_learner(method="icarl", augmentation=DRAWN).partial_fit(*FIRST)
    assert fits[0].trained == fits[1].trained
    weights = [method_of(learner).network.tensors() for learner in (lwf, icarl)]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert not np.allclose(lwf.predict_proba(TESTS), icarl.predict_proba(TESTS), atol=1e-3)


@pytest.mark.parametrize("budget", [Budget("total", 2), Budget("per-class", 3)], ids=lambda budget: budget.kind)
def test_a_run_has_no_memory_in_its_name_and_none_in_its_one_result(tmp_path: Path, budget: Budget) -> None:
    recipe = replace(RUN, memory=budget)  # two images could not hold six classes: nobody asks
    run = StreamRun(recipe, tiny_images(), tmp_path)
    run()
    assert run_name(recipe) == "tiny-1+3+2-lwf-mc-no-memory-order0-seed0"
    ((file, result),) = result_files(tmp_path).items()
    assert file == "tiny-1+3+2-lwf-mc-no-memory-order0-seed0.json"
    assert (result["method"], result["memory"]["size"]) == ("lwf-mc", 0)
    assert run.method.memory.exemplars == {}
    last = list(run.stream)[-1]
    guesses = outputs_of(run.method.network, last.test_images).argmax(1)
    assert result["accuracy"][-1] == pytest.approx(100 * np.mean(guesses == last.test_labels.numpy()))


def test_only_methods_that_keep_exemplars_within_the_budget_name_it() -> None:
    recipes = {name: replace(RUN, method=name) for name in methods.METHODS}
    named = {name for name, recipe in recipes.items() if "total14-herding" in run_name(recipe)}
    assert {"eeil", "icarl"} <= named
    assert not {"lwf-mc", "finetune", "joint"} & named


def test_the_ready_recipes_are_icarls_training() -> None:
    recipes = {name: recipe for name, recipe in ready("-lwf-mc").items() if name.startswith("cifar100")}
    assert set(recipes) == {f"cifar100-{size}-lwf-mc" for size in (2, 5, 10, 20, 50)}
    for name, recipe in recipes.items():
        assert_icarls_training(recipe)
        assert recipe.method == "lwf-mc"
        assert (recipe.run.dataset, recipe.run.classes_per_step) == ("cifar100", int(name.split("-")[1]))


def test_the_ready_recipes_of_fine_tuning_are_eeils_training_with_icarls_augmentation() -> None:
    recipes = ready("-finetune")
    assert set(recipes) == {f"cifar100-{size}-finetune" for size in (2, 5, 10, 20, 50)}
    for name, recipe in recipes.items():
        eeil = ready(f"cifar100-{name.split('-')[1]}")[f"cifar100-{name.split('-')[1]}"]
        assert recipe == replace(eeil, method="finetune", augmentation=Augmentation(kind="crop-mirror"))
