"""Recipes: the paper's constants, TOML out and in, and errors that name the setting."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treering.errors import TreeringError
from treering.recipe import Augmentation, Budget, Optimizer, Recipe, Run, Schedule

POSITIVE = st.floats(1e-9, 1e9)
NATURAL = st.integers(0, 10_000)
# TOML forbids one character that JSON writes raw: see test_a_text_with_a_delete_character_comes_back.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=12)
SCHEDULES = st.builds(
    Schedule, epochs=NATURAL, lr=POSITIVE, drop_at=st.lists(NATURAL, max_size=5).map(tuple), drop_factor=POSITIVE
)
RECIPES = st.builds(
    dataclasses.replace,
    st.just(Recipe()),
    method=TEXT,
    backbone=TEXT,
    temperature=POSITIVE,
    pixel_scale=POSITIVE,
    engine=st.sampled_from(["fast", "eager"]),
    training=SCHEDULES,
    balanced=SCHEDULES,
    optimizer=st.builds(
        Optimizer,
        batch_size=st.integers(2, 10_000),
        momentum=st.floats(0, 1, exclude_max=True),
        reset_momentum=st.booleans(),
        weight_decay=st.floats(0, 10),
        decay=st.sampled_from(["norm-scaled", "plain"]),
        noise_eta=st.floats(0, 10),
        noise_gamma=st.floats(0, 10),
    ),
    memory=st.builds(
        Budget,
        kind=st.sampled_from(["total", "per-class"]),
        size=st.integers(1, 100_000),
        selection=st.sampled_from(["herding", "random", "histogram"]),
    ),
    augmentation=st.builds(
        Augmentation,
        kind=st.sampled_from(["twelvefold", "twofold", "none"]),
        brightness=st.floats(0, 255),
        contrast=st.tuples(st.floats(0, 1), st.floats(1, 9)),
        padding=NATURAL,
        crop_size=st.integers(1, 1000),
    ),
    run=st.builds(
        Run,
        dataset=TEXT.filter(lambda name: name and name[0] != "." and not set(name) & set("/\\\0")),
        classes_per_step=st.integers(1, 1000) | st.lists(st.integers(1, 1000), min_size=1, max_size=5).map(tuple),
        order=NATURAL,
        seed=st.integers(0, 2**63 - 1),
    ),
)


def table_of(name: str, value: Any) -> dict[str, Any]:
    """{"a.b": v} as the nested table {"a": {"b": v}}."""
    for key in reversed(name.split(".")):
        value = {key: value}
    return value


def error_of(name: str, value: Any) -> str:
    with pytest.raises(TreeringError) as error:
        Recipe.from_dict(table_of(name, value))
    return str(error.value)


def test_the_defaults_are_the_papers_constants():
    recipe = Recipe()
    assert (recipe.method, recipe.backbone) == ("eeil", "resnet32")
    assert (recipe.training.epochs, recipe.training.lr) == (40, 0.1)
    assert (recipe.balanced.epochs, recipe.balanced.lr) == (30, 0.01)
    assert (recipe.optimizer.batch_size, recipe.optimizer.momentum) == (128, 0.9)
    assert recipe.optimizer.reset_momentum is True
    assert (recipe.optimizer.weight_decay, recipe.optimizer.decay) == (1e-4, "norm-scaled")
    assert (recipe.optimizer.noise_eta, recipe.optimizer.noise_gamma) == (0.3, 0.55)
    assert recipe.temperature == 2
    assert (recipe.memory.kind, recipe.memory.size, recipe.memory.selection) == ("total", 2000, "herding")
    assert recipe.augmentation.kind == "twelvefold"
    assert (recipe.augmentation.brightness, recipe.augmentation.contrast) == (63, (0.2, 1.8))
    assert (recipe.augmentation.padding, recipe.augmentation.crop_size) == (4, 224)
    assert recipe.pixel_scale == 255


@pytest.mark.parametrize(("stage", "start", "epochs"), [("training", 0.1, 40), ("balanced", 0.01, 30)])
def test_the_learning_rate_is_divided_by_ten_every_ten_epochs(stage: str, start: float, epochs: int):
    schedule = getattr(Recipe(), stage)
    assert schedule.epochs == epochs
    for epoch in range(epochs):
        assert schedule.lr_at(epoch) == pytest.approx(start / 10 ** (epoch // 10), rel=1e-12)


def test_the_learning_rate_drops_where_the_schedule_says_whatever_the_order():
    icarl = Schedule(epochs=70, lr=2.0, drop_at=(63, 49), drop_factor=5)
    assert [icarl.lr_at(epoch) for epoch in (0, 48, 49, 62, 63, 69)] == pytest.approx([2, 2, 0.4, 0.4, 0.08, 0.08])
    assert Schedule(epochs=3, lr=0.5).lr_at(2) == 0.5


def test_a_recipe_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().temperature = 3.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().optimizer.momentum = 0.5  # type: ignore[misc]


def test_the_default_recipe_survives_a_file(tmp_path: Path):
    Recipe().write(tmp_path / "recipe.toml")
    assert Recipe.read(tmp_path / "recipe.toml") == Recipe()


@settings(max_examples=100)
@given(recipe=RECIPES)
def test_any_recipe_survives_toml_and_a_dict(recipe: Recipe):
    again = Recipe.from_dict(tomllib.loads(recipe.to_toml()))
    assert again == recipe
    assert again.to_toml() == recipe.to_toml()
    assert Recipe.from_dict(recipe.to_dict()) == recipe


def test_texts_of_any_language_survive_a_file(tmp_path: Path):
    recipe = Recipe(method='jahr\u00adring "年輪" \\ \t\n\x01', backbone="custom")
    recipe.write(tmp_path / "recipe.toml")
    assert Recipe.read(str(tmp_path / "recipe.toml")) == recipe


def test_a_text_with_a_delete_character_comes_back():
    recipe = Recipe(method="a\x7fb")
    assert Recipe.from_dict(tomllib.loads(recipe.to_toml())) == recipe


def test_every_setting_is_written():
    recipe = Recipe().changed(
        [
            "optimizer.kind=adam",
            "optimizer.clip=1",
            "training.shape=cosine",
            "balanced.shape=cosine",
            "training.most_images=9",
            "balanced.most_images=9",
        ]
    )
    table = tomllib.loads(recipe.to_toml())
    assert Recipe.from_dict(table) == recipe

    def assert_complete(part: Any, section: dict[str, Any]) -> None:
        assert list(section) and set(section) == {field.name for field in dataclasses.fields(part)}
        for name, value in section.items():
            if isinstance(value, dict):
                assert_complete(getattr(part, name), value)

    assert_complete(recipe, table)
    assert table["training"]["drop_at"] == [10, 20, 30]
    assert table["optimizer"]["weight_decay"] == 1e-4


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path):
    (tmp_path / "short.toml").write_text('temperature = 3\n[training]\nepochs = 5\n[memory]\nselection = "random"\n')
    recipe = Recipe.read(tmp_path / "short.toml")
    assert recipe == Recipe(
        temperature=3.0,
        training=Schedule(epochs=5, lr=0.1, drop_at=(10, 20, 30)),
        memory=Budget(selection="random"),
    )
    assert type(recipe.temperature) is float
    assert Recipe.from_dict({}) == Recipe()


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("temprature", "temperature"),
        ("optimiser", "optimizer"),
        ("optimizer.momentun", "optimizer.momentum"),
        ("training.epoch", "training.epochs"),
        ("balanced.dropat", "balanced.drop_at"),
        ("memory.sise", "memory.size"),
        ("augmentation.brightnes", "augmentation.brightness"),
    ],
)
def test_an_unknown_setting_is_an_error_with_the_nearest_spelling(wrong: str, meant: str):
    message = error_of(wrong, 1)
    assert f"unknown setting {wrong};" in message
    assert f"did you mean {meant}?" in message


@pytest.mark.parametrize(("wrong", "some"), [("qqq", "temperature"), ("optimizer.zzz", "optimizer.momentum")])
def test_an_unknown_setting_with_no_near_spelling_is_answered_with_the_valid_ones(wrong: str, some: str):
    message = error_of(wrong, 1)
    assert wrong in message
    assert some in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "2"),
        ("temperature", True),
        ("temperature", None),
        ("method", 3),
        ("training", 40),
        ("optimizer", [1]),
        ("training.epochs", 40.0),
        ("training.epochs", True),
        ("training.epochs", "40"),
        ("training.lr", "fast"),
        ("training.drop_at", 10),
        ("training.drop_at", [10.5]),
        ("training.drop_at", ["10"]),
        ("optimizer.reset_momentum", 1),
        ("optimizer.reset_momentum", "yes"),
        ("optimizer.batch_size", 12.5),
        ("memory.size", "2000"),
        ("augmentation.contrast", 0.5),
        ("augmentation.contrast", ["low", "high"]),
        ("augmentation.padding", 0.5),
        ("run.classes_per_step", "ten"),
        ("run.classes_per_step", True),
        ("run.classes_per_step", [2.5]),
        ("run.order", "first"),
    ],
)
def test_a_setting_of_the_wrong_type_is_an_error_that_names_it_and_its_value(name: str, value: Any):
    message = error_of(name, value)
    assert f"{name} must be" in message
    shown = value[0] if isinstance(value, list) and name != "optimizer" else value
    assert repr(shown) in message


def test_a_section_that_is_set_keeps_what_is_not_said():
    recipe = Recipe.find("photos-end-to-end")
    assert recipe.training != Recipe().training
    assert recipe.changed(["training={epochs=3}"]) == recipe.changed(["training.epochs=3"])


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("optimizer.decay", "norm_scaled", "norm-scaled"),
        ("memory.kind", "perclass", "per-class"),
        ("memory.selection", "herdin", "herding"),
        ("augmentation.kind", "twelve", "twelvefold"),
        ("engine", "fats", "fast"),
    ],
)
def test_a_wrong_choice_is_an_error_with_the_valid_ones(name: str, value: str, meant: str):
    message = error_of(name, value)
    assert f"{name} must be one of" in message
    assert repr(value) in message
    assert repr(meant) in message


@pytest.mark.parametrize("value", [1, True, None, ["herding"], "qqq"])
def test_what_is_no_choice_at_all_is_an_error_with_all_choices(value: Any):
    message = error_of("memory.selection", value)
    assert message.startswith("memory.selection must be one of 'herding', 'random', 'histogram', not ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("pixel_scale", 0.0),
        ("training.epochs", -1),
        ("training.lr", 0),
        ("balanced.lr", -0.1),
        ("balanced.drop_factor", 0),
        ("optimizer.batch_size", 1),
        ("optimizer.momentum", 1.0),
        ("optimizer.momentum", -0.1),
        ("optimizer.weight_decay", -1e-9),
        ("optimizer.noise_eta", -0.3),
        ("memory.size", -1),
        ("augmentation.contrast", [0.2]),
        ("augmentation.contrast", [0.2, 1.0, 1.8]),
        ("augmentation.padding", -1),
        ("augmentation.crop_size", 0),
        ("run.order", -1),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_setting(name: str, value: Any):
    message = error_of(name, value)
    assert f"{name} must be" in message
    shown = tuple(value) if isinstance(value, list) else float(value) if isinstance(value, float) else value
    assert str(shown) in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("training.epochs", 0),
        ("optimizer.batch_size", 2),
        ("optimizer.momentum", 0.0),
        ("optimizer.weight_decay", 0.0),
        ("optimizer.noise_eta", 0.0),
        ("memory.size", 1),
        ("augmentation.padding", 0),
        ("augmentation.crop_size", 1),
    ],
)
def test_values_at_the_end_of_their_range_are_allowed(name: str, value: Any):
    section, key = name.split(".")
    assert getattr(getattr(Recipe.from_dict(table_of(name, value)), section), key) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.inf),
        ("training.lr", math.inf),
        ("augmentation.brightness", math.nan),
        ("optimizer.noise_gamma", math.nan),
        ("pixel_scale", 10**400),
    ],
)
def test_a_number_that_is_not_finite_is_an_error_that_names_the_setting(name: str, value: Any):
    assert name in error_of(name, value)


def test_settings_are_checked_in_python_too():
    with pytest.raises(TreeringError, match="temperature"):
        Recipe(temperature=-2)
    with pytest.raises(TreeringError, match="batch_size"):
        Optimizer(batch_size=0)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path):
    with pytest.raises(TreeringError, match=r"none\.toml.*No such file"):
        Recipe.read(tmp_path / "none.toml")


def test_a_folder_is_not_a_recipe(tmp_path: Path):
    with pytest.raises(TreeringError, match=str(tmp_path)):
        Recipe.read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"temperature = \n", b"[training\n", b"temperature = 1\ntemperature = 2\n", b"\xff\xfe"]
)
def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, content: bytes):
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(TreeringError, match=r"broken\.toml is not a TOML file"):
        Recipe.read(path)


def test_a_wrong_setting_in_a_file_is_an_error_that_names_file_and_setting(tmp_path: Path):
    path = tmp_path / "wrong.toml"
    path.write_text("[optimizer]\nmomentun = 0.9\n")
    with pytest.raises(TreeringError) as error:
        Recipe.read(path)
    assert "wrong.toml" in str(error.value)
    assert "did you mean optimizer.momentum?" in str(error.value)
    path.write_text("[optimizer]\nmomentum = 2\n")
    with pytest.raises(TreeringError, match=r"wrong\.toml: optimizer\.momentum must be .* not 2\.0"):
        Recipe.read(path)


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda: Budget("per_class", 20), "kind must be one of 'total', 'per-class', 'per-step', not 'per_class'"),
        (lambda: Budget(selection="herd"), "selection must be one of"),
        (lambda: Optimizer(decay="l2"), "decay must be one of"),
        (lambda: Augmentation(kind="twelve-fold"), "kind must be one of"),
        (lambda: Augmentation(contrast=(1.8, 0.2)), "contrast must be a range"),
        (lambda: Schedule(2**62, 0.1), f"epochs must be from 0 to 1,000,000, not {2**62}"),
        (lambda: Schedule(2.5, 0.1), "epochs must be a whole number, not 2.5"),
        (lambda: Schedule(2, 0.1, (-3,)), "drop_at must hold epochs from 0 on"),
        (lambda: Recipe(temperature="2"), "temperature must be a number, not '2'"),
        (lambda: Recipe(memory=2000), "memory must be a table [memory], in Python Budget(…), not 2000"),
        (lambda: Run(order=99999999999), "order must be from 0"),
        (lambda: Run(seed=2**70), "seed must be from 0"),
        (lambda: Run(classes_per_step=()), "classes_per_step must be 1 or more"),
    ],
)
def test_settings_made_in_python_are_checked_like_those_of_a_file(make: Any, fragment: str):
    with pytest.raises(TreeringError) as error:
        make()
    assert fragment in str(error.value)


def test_settings_take_the_numbers_and_lists_of_numpy_and_toml():
    assert Schedule(np.int64(3), np.float32(0.5), [1, 2]) == Schedule(3, 0.5, (1, 2))


@pytest.mark.parametrize("name", ["2024", "2024-05-01", "true", "1e5", "nan", "birds", '"birds"'])
def test_a_text_may_look_like_anything(name: str) -> None:
    assert Recipe().changed([f"run.dataset={name}"]).run.dataset == name.strip('"')


def test_a_number_with_thousands_of_digits_is_an_error_that_names_the_setting() -> None:
    with pytest.raises(TreeringError, match=r"^temperature must be a number"):
        Recipe().changed([f"temperature={'9' * 5000}"])


def test_a_section_given_as_a_table_in_python_keeps_what_it_leaves_out():
    assert Recipe(optimizer={"momentum": 0.5}) == Recipe(optimizer=Optimizer(momentum=0.5))
    assert Recipe(training={"epochs": 3}).training == dataclasses.replace(Recipe().training, epochs=3)
    with pytest.raises(TreeringError, match=r"unknown setting memory\.sise"):
        Recipe(memory={"sise": 3})


def test_a_file_is_found_by_its_path(tmp_path: Path):
    Recipe(temperature=3.0).write(tmp_path / "mine.toml")
    assert Recipe.find(tmp_path / "mine.toml").temperature == 3.0


def test_settings_that_came_later_are_written_only_where_they_differ_so_that_old_checksums_stay():
    assert "clip" not in Recipe().to_toml()
    assert Recipe.from_dict(Recipe().to_dict()) == Recipe()


def test_a_cosine_begins_at_a_tenth_and_falls_to_almost_nothing():
    schedule = Schedule(epochs=10, lr=2.0, shape="cosine")
    rates = [schedule.lr_at(epoch) for epoch in range(10)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[1:] == pytest.approx([1 + math.cos(math.pi * epoch / 10) for epoch in range(1, 10)])
