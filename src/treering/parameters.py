"""A learner's parameters as scikit-learn's tools name them: `recipe__training__epochs` is a setting of its recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

from torch import nn

from treering.errors import TreeringError, nearest
from treering.recipe import Budget, Recipe, Settings

SEPARATOR = "__"


def recipe_of(given: Recipe | str | None) -> Recipe:
    """Return the recipe that a learner's parameter stands for."""
    if isinstance(given, str):
        return Recipe.find(given)
    if given is not None and not isinstance(given, Recipe):
        raise TreeringError(f"recipe must be a Recipe or the name of a ready one, not {given!r}")
    return given or Recipe()


def nested(settings: Settings, prefix: str) -> dict[str, Any]:
    """Return every setting and every section by its name behind the prefix, such as "recipe__training__epochs"."""
    found = {}
    for field in dataclasses.fields(settings):
        name, value = f"{prefix}{SEPARATOR}{field.name}", getattr(settings, field.name)
        found[name] = value
        if isinstance(value, Settings):
            found |= nested(value, name)
    return found


def changed(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these settings, named such as "training__epochs"; a section comes before what is in it."""
    table = recipe.to_dict()
    for key in sorted(settings, key=lambda name: name.count(SEPARATOR)):
        *sections, name = key.split(SEPARATOR)
        place = table
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise TreeringError(f"unknown setting {key.replace(SEPARATOR, '.')}")
        value = settings[key]
        place[name] = dataclasses.asdict(value) if isinstance(value, Settings) else value
    return Recipe.from_dict(table)


def together(params: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return these parameters with settings of the recipe, such as "recipe__training__epochs", within the recipe."""
    start = f"recipe{SEPARATOR}"
    settings = {name.removeprefix(start): value for name, value in params.items() if name.startswith(start)}
    found = {name: value for name, value in params.items() if not name.startswith(start)}
    for name in found:
        if name not in before:
            raise TreeringError(f"unknown parameter {name}; {nearest(name, before)}")
    if settings:
        found["recipe"] = changed(recipe_of(found.get("recipe", before["recipe"])), settings)
    return found


def first_recipe(
    given: Recipe | str | None, backbone: str | nn.Module | None, memory: int | Budget | None, seed: int, progress: Any
) -> Recipe:
    """Return the recipe of a learner's first step: the one it was given, with its backbone and memory."""
    recipe = recipe_of(given)
    if not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise TreeringError(f"seed must be a whole number from 0 to 2^63 - 1, not {seed!r}")
    if backbone is not None and not isinstance(backbone, str | nn.Module):
        raise TreeringError(f"backbone must be a name or a torch.nn.Module, not {backbone!r}")
    if progress is not None and not callable(progress):
        raise TreeringError(f"progress must be a function, not {progress!r}")
    if backbone is not None:
        recipe = replace(recipe, backbone=backbone if isinstance(backbone, str) else "custom")
    return with_memory(recipe, memory)


def later_recipe(learnt: Recipe, memory: int | Budget | None) -> Recipe:
    """Return the recipe of a later step: the one that was learnt with, and the size of the memory that is given."""
    budget, before = with_memory(learnt, memory).memory, learnt.memory
    if (budget.kind, budget.selection) != (before.kind, before.selection):
        raise TreeringError(
            "after the first step only the memory's size can change: "
            f"give Budget({before.kind!r}, {budget.size}, {before.selection!r})"
        )
    return replace(learnt, memory=replace(before, size=budget.size))


def with_memory(recipe: Recipe, memory: int | Budget | None) -> Recipe:
    """Return the recipe with a learner's memory, if that is given."""
    if memory is None:
        return recipe
    if isinstance(memory, Budget):
        return replace(recipe, memory=memory)
    if not isinstance(memory, Integral) or isinstance(memory, bool):
        raise TreeringError(f"memory must be a number of images or a Budget, not {memory!r}")
    return replace(recipe, memory=replace(recipe.memory, kind="total", size=int(memory), held_out=0.0))
