"""A learner's parameters as scikit-learn's tools use them, down to every setting of its recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import RECIPE, examples, tiny_learner

from treering import Budget, Learner, Recipe, Schedule, TreeringError


def test_a_recipe_may_be_given_by_its_name() -> None:
    learner = Learner(recipe="photos", memory=Budget("per-class", 9))
    assert learner.recipe == "photos"
    assert learner.resolved_recipe() == replace(Recipe.find("photos"), memory=Budget("per-class", 9))
    assert repr(Learner(recipe="photos")) == "Learner(recipe='photos')"


def test_a_misspelt_name_is_told_before_anything_is_trained() -> None:
    learner = Learner(recipe="fotos")
    for act in (lambda: learner.partial_fit(*examples({"a": 2, "b": 2})), learner.get_params):
        with pytest.raises(TreeringError, match="no ready recipe is called fotos; did you mean photos"):
            act()


@pytest.mark.parametrize("recipe", [None, "photos", RECIPE])
def test_every_setting_is_a_parameter(recipe: Recipe | str | None) -> None:
    meant = Recipe() if recipe is None else Recipe.find("photos") if recipe == "photos" else RECIPE
    found = Learner(recipe=recipe).get_params()
    assert found["recipe"] is recipe
    assert found["recipe__training"] == meant.training
    for name, section in meant.to_dict().items():
        for inner, value in section.items() if isinstance(section, dict) else ():
            assert np.array_equal(found[f"recipe__{name}__{inner}"], value)
        assert isinstance(section, dict) or found[f"recipe__{name}"] == section
    assert set(Learner(recipe=recipe).get_params(deep=False)) == {name for name in found if "__" not in name}


def test_settings_can_be_changed_one_by_one_and_by_section() -> None:
    learner = Learner(recipe="photos")
    learner.set_params(recipe__training__epochs=np.int64(3), recipe__memory__size=10, seed=4)
    photos = Recipe.find("photos")
    expected = replace(photos, training=replace(photos.training, epochs=3), memory=replace(photos.memory, size=10))
    assert (learner.recipe, learner.seed) == (expected, 4)
    section = Schedule(epochs=5, lr=0.5)
    learner.set_params(recipe__training__lr=0.25, recipe__training=section, recipe=RECIPE)
    assert learner.recipe == replace(RECIPE, training=replace(section, lr=0.25))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"recipe__training__epoch": 3}, "unknown setting training.epoch; did you mean training.epochs?"),
        ({"recipe__trainin__epochs": 3}, "unknown setting trainin; did you mean training?"),
        ({"recipe__method__epochs": 3}, "unknown setting method.epochs"),
        ({"recipe__training__epochs": -1}, "training.epochs must be from 0 to 1,000,000, not -1"),
        ({"recipe__training__epochs": "many"}, "epochs must be a whole number"),
        ({"sed": 3}, "unknown parameter sed; did you mean seed?"),
    ],
)
def test_wrong_parameters_are_named_and_change_nothing(wrong: dict[str, Any], message: str) -> None:
    learner = Learner(recipe=RECIPE)
    with pytest.raises(TreeringError) as error:
        learner.set_params(memory=5, **wrong)
    assert message in str(error.value)
    assert (learner.recipe, learner.memory) == (RECIPE, None)


@pytest.mark.parametrize("recipe", [None, "photos", RECIPE])
def test_a_clone_has_identical_parameters(recipe: Recipe | str | None) -> None:
    base = pytest.importorskip("sklearn.base")
    learner = Learner(recipe=recipe, memory=7)
    assert base.clone(learner).get_params() == learner.get_params()
    assert type(base.clone(learner).recipe) is type(recipe)


def test_a_grid_search_finds_the_best_setting() -> None:
    """A learner that hardly trains tells the classes worse than one that trains for long."""
    selection = pytest.importorskip("sklearn.model_selection")
    images, labels = examples({"cat": 12, "dog": 12})
    grid = {"recipe__training__epochs": [0, 8], "recipe__training__lr": [0.05]}
    learner = tiny_learner(backbone="small").set_params(recipe__balanced__epochs=0, recipe__training__drop_at=())
    search = selection.GridSearchCV(learner, grid, cv=2, error_score="raise").fit(images, labels)
    few, many = search.cv_results_["mean_test_score"]
    assert many > few
    assert search.best_params_ == {"recipe__training__epochs": 8, "recipe__training__lr": 0.05}
    assert search.best_estimator_.recipe.training.epochs == 8
    assert search.best_estimator_.learnt_model().method.recipe.training.epochs == 8
    assert set(search.predict(images)) <= {"cat", "dog"}
