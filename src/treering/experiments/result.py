"""The names of result files, and whether a run has one already. Neither needs the data or a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from treering import methods, words
from treering.errors import TreeringError
from treering.experiments import stored
from treering.experiments.stored import Result
from treering.recipe import Recipe

logger = words.logger(__name__)


def method_label(recipe: Recipe) -> str:
    """Return the method's name in results."""
    return methods.find(recipe.method).label(recipe)


def run_name(recipe: Recipe, method: str | None = None) -> str:
    """Return the name of a run's files; `method` names another readout of it."""
    sizes = recipe.run.classes_per_step
    steps = str(sizes) if isinstance(sizes, int) else "+".join(map(str, sizes))
    memory = f"{recipe.memory.kind}{recipe.memory.size}-{recipe.memory.selection}"
    if not methods.find(recipe.method).keeps_memory:
        memory = "no-memory"
    label = method or method_label(recipe)
    return f"{recipe.run.dataset}-{steps}-{label}-{memory}-order{recipe.run.order}-seed{recipe.run.seed}"


def files_of(recipe: Recipe, results: Path) -> dict[str, Path]:
    """Return the result file of each readout by its method's name, the method's own first."""
    labels = [method_label(recipe), *methods.find(recipe.method).further_readouts]
    return {label: results / f"{run_name(recipe, label)}.json" for label in labels}


def result_file(recipe: Recipe, results: Path) -> Path:
    """Return the file of the method's own result, which is written last: where it is, the run is finished."""
    return next(iter(files_of(recipe, results).values()))


def state_file(recipe: Recipe, results: Path) -> Path:
    """Return the file that keeps the state of an unfinished run."""
    return results / ".unfinished" / f"{run_name(recipe)}.safetensors"


def finished(recipe: Recipe, results: Path, data: Mapping[str, Any] | None = None) -> Result | None:
    """Return the method's own result, if the run is done already.

    Raise if a file of its name holds a run with other settings or, where `data` describes the images, on other images.
    """
    every = files_of(recipe, results)
    found = {label: _own(file, recipe, data or {}) for label, file in every.items() if file.exists()}
    own, *_ = every
    missing = next((file for label, file in every.items() if label not in found), None)
    if own in found and missing:
        logger.warning("%s is gone: to have it made again, remove %s too", missing, every[own])
    return found.get(own)


def _own(file: Path, recipe: Recipe, data: Mapping[str, Any]) -> Result:
    result = stored.read(file)
    try:
        made_by = Recipe.from_dict(result["recipe"])  # settings newer than the result have their defaults
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TreeringError(f"{file} is not a result: remove it, or choose another folder") from None
    if made_by != recipe:
        raise TreeringError(f"{file} holds a run with other settings: choose another results folder")
    if is_of_other_images(result, data):
        raise TreeringError(f"{file} holds a run on other images: choose another results folder")
    return result


def is_of_other_images(facts: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    """Return whether `facts` describe a run on other images than `data` does; facts that are missing do not count."""
    return any(facts.get(fact, wanted) != wanted for fact, wanted in data.items())
