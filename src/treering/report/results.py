"""The results of a folder as reports use them, and telling apart runs whose settings differ."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from treering import recipe as recipes
from treering.errors import TreeringError
from treering.experiments import paper, stored
from treering.experiments.result import run_name
from treering.recipe import Recipe
from treering.words import shown

Result = stored.Result
"""One result file, with its `variant`."""


def rows(name: str) -> list[dict[str, str]]:
    """Read a CSV file of this package."""
    return list(csv.DictReader(files("treering.report").joinpath(name).read_text().splitlines()))


METHODS = {row["method"]: row for row in rows("methods.csv")}
"""What methods are called, which parts of EEIL they have, and how they look, in the order in which they are shown."""
DATASETS = {
    "cifar100": "CIFAR-100",
    "cifar100-vehicles": "CIFAR-100 vehicles",
    "imagenet100": "ImageNet-100",
    "imagenet1000": "ImageNet-1000",
    "mini-imagenet": "mini-ImageNet",
    "stanford-dogs": "Stanford Dogs",
}


@dataclass(frozen=True)
class Setting:
    """What the runs of one cell share; they differ in class order and seed."""

    dataset: str
    classes_per_step: int | tuple[int, ...]
    method: str
    memory: tuple[str, int]
    """Kind, "total" or "per-class", and size; GEM's memory per step counts as its total over all steps."""
    selection: str
    """Empty for methods that select no exemplars."""
    variant: int = 0
    """Tells apart runs of one name with different recipes: 0 is the ready recipe, or the first one that was read."""

    @property
    def steps(self) -> str:
        """The classes of each step in words: 10, or 3 + 2 + 2."""
        sizes = self.classes_per_step
        return str(sizes) if isinstance(sizes, int) else " + ".join(map(str, sizes))

    @property
    def steps_name(self) -> str:
        return f"{shown(self.steps)} class{'' if self.steps == '1' else 'es'} per step"

    @property
    def memory_name(self) -> str:
        """The memory as the paper's tables write it."""
        kind, size = self.memory
        return f"{size}/class" if kind == "per-class" else str(size)

    @property
    def dataset_name(self) -> str:
        return DATASETS.get(self.dataset, self.dataset)

    @property
    def method_name(self) -> str:
        """What the method is called, and whether its settings differ from the ready recipe's."""
        number = f" {self.variant}" if self.variant > 1 else ""
        changed = f" (changed settings{number})" if self.variant else ""
        return METHODS.get(self.method, {"name": self.method})["name"] + changed

    @property
    def parts(self) -> str:
        """Which parts of EEIL an ablation has; empty for whole methods."""
        return METHODS.get(self.method, {"parts": ""})["parts"]

    @property
    def note(self) -> str:
        """What has to be known of the method where it is compared."""
        return self.parts if self.memory[1] else "no exemplars"

    @property
    def method_key(self) -> tuple[int, str, int]:
        """The place of the method among those shown; methods of one's own come last."""
        return [*METHODS, self.method].index(self.method), self.method, self.variant

    def __lt__(self, other: Setting) -> bool:
        return self.sort_key < other.sort_key

    @property
    def sort_key(self) -> tuple[object, ...]:
        """The place among the settings shown."""
        sizes = (self.classes_per_step,) if isinstance(self.classes_per_step, int) else self.classes_per_step
        place = [*DATASETS, self.dataset].index(self.dataset)
        return place, self.dataset, sizes, self.memory, *self.method_key, self.selection


def read_results(folder: Path) -> list[Result]:
    """Read the result files of a folder; each result also has the `variant` of its settings."""
    if not folder.is_dir():
        raise TreeringError(f"there is no folder {folder}: give the one that `treering run` wrote its results to")
    results = [_read(file) for file in sorted(folder.glob("*.json"))]
    if not results:
        raise TreeringError(f"{folder} holds no results: `treering run` writes some, or give another folder")
    known = {name: [recipe] for name, recipe in _ready_recipes().items()}
    return [result | {"variant": _variant(result, known)} for result in results]


def setting_of(result: Result) -> Setting:
    """Return the cell that a run belongs to."""
    sizes = result["classes_per_step"]
    steps = sizes if isinstance(sizes, int) else tuple(int(size) for size in sizes)
    kind, size = str(result["memory"]["kind"]), int(result["memory"]["size"])
    selection = str(result["selection"])
    if kind == "per-step":
        kind, size, selection = "total", size * len(result["accuracy"]), ""
    if size == 0:
        kind, selection = "total", ""
    names = str(result["dataset"]), steps, str(result["method"])
    return Setting(*names, (kind, size), selection, result.get("variant", 0))


def by_setting(results: Iterable[Result]) -> dict[Setting, list[Result]]:
    """Return the runs of each cell."""
    runs: dict[Setting, list[Result]] = {}
    for result in results:
        runs.setdefault(setting_of(result), []).append(result)
    return runs


def known_classes(result: Result) -> list[int]:
    """Return the number of classes after each step."""
    if result.get("class_accuracy"):
        return [len(step) for step in result["class_accuracy"]]
    sizes, steps = result["classes_per_step"], len(result["accuracy"])
    return list(itertools.accumulate([sizes] * steps if isinstance(sizes, int) else sizes))


def device_seconds(results: Sequence[Result]) -> list[float]:
    """Return each training's time on the device: those at once share it, and two readouts of one training are one."""
    trainings = {}
    for run in results:
        training = (run["seconds"], run["order"], run["seed"], json.dumps(run.get("recipe"), sort_keys=True))
        trainings[training] = run["seconds"] / max(1, run.get("runs_at_once", 1))
    return list(trainings.values())


def _read(file: Path) -> Result:
    """Read a result whose names can be shown in tables and pictures."""
    return {name: _plain(value) for name, value in stored.read(file).items()}


def _plain(value: Any) -> Any:
    """Return a value of a result with its texts as they can be shown, lists of numbers as they are."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list) and value and isinstance(value[0], str):
        return [shown(text) for text in value]
    return value


def _variant(result: Result, known: dict[str, list[Recipe]]) -> int:
    """Return the place of a run's recipe among those `known` by the run's name; a new recipe is added to them."""
    try:
        made = _settings(Recipe.from_dict(result["recipe"]))
        same_name = known.setdefault(run_name(made), [])
    except (TreeringError, LookupError, TypeError, ValueError, AttributeError):
        return 0  # of another version, or of a method that is not here
    if made not in same_name:
        same_name.append(made)
    return same_name.index(made)


def _settings(recipe: Recipe) -> Recipe:
    """Return what makes two runs alike: the recipe without its class order, seed and engine."""
    return replace(recipe, engine=Recipe().engine, run=replace(recipe.run, order=0, seed=0))


@cache
def _ready_recipes() -> dict[str, Recipe]:
    """Return the recipes of the paper's experiments and of the package by the name of their run."""
    runs = [run for experiment in paper.EXPERIMENTS.values() for run in experiment.runs(1)]
    runs += [Recipe.find(name) for name in recipes.ready_names() if "photos" not in name]  # those are for no run
    return {run_name(run): run for run in map(_settings, reversed(runs))}
