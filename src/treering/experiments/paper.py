"""The paper's experiments by name: the runs of each table and figure, for `treering reproduce`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treering import methods
from treering.data import PAPER
from treering.data.stream import split_steps
from treering.errors import TreeringError, look_up, nearest
from treering.experiments.result import method_label
from treering.recipe import Recipe

CHOICES = ("method", "dataset", "classes_per_step", "memory", "selection", "order")
"""What `only` can ask for."""


@dataclass(frozen=True)
class Experiment:
    """Ready recipes, each with its changes, over a number of class orders."""

    title: str
    orders: int
    """As many as the paper has."""
    recipes: tuple[tuple[str, ...], ...]

    def runs(self, orders: int | None = None) -> Iterator[Recipe]:
        """Every run; other `orders` than the paper's if given."""
        for order in range(self.orders if orders is None else orders):
            for name, *changes in self.recipes:
                yield Recipe.find(name).changed([*changes, f"run.order={order}"])


def _with_memory(name: str, kind: str, size: int) -> tuple[str, ...]:
    return name, f"memory.kind={kind}", f"memory.size={size}"


EXPERIMENTS: dict[str, Experiment] = {
    "table-1a": Experiment(
        "Fixed memory of 2000 exemplars, CIFAR-100 [6.1]",
        5,
        (
            *((f"cifar100-{n}{method}",) for n in (2, 5, 10, 20, 50) for method in ("", "-icarl", "-lwf-mc")),
            ("cifar100-joint",),
        ),
    ),
    "table-1b": Experiment(
        "ImageNet, top-5 [7]",
        1,
        tuple((f"imagenet{n}{method}",) for n in (100, 1000) for method in ("", "-icarl", "-lwf-mc")),
    ),
    "table-2a": Experiment(
        "Fixed number of exemplars per class, CIFAR-100 [6.2]",
        1,
        tuple(
            _with_memory(f"cifar100-{n}{method}", "per-class", size)
            for n in (5, 10, 20)
            for method in ("", "-icarl")
            for size in (50, 75, 100)
        ),
    ),
    "table-2b": Experiment(
        "Ablation, CIFAR-100 [6.3]",
        1,
        tuple((f"cifar100-{n}{method}",) for n in (5, 10, 20) for method in ("-base", "-da", "-bf", "", "-icarl")),
    ),
    "selection": Experiment(
        "Selection of exemplars, CIFAR-100 [6.3]",
        1,
        (("cifar100-10",), ("cifar100-10-random",), ("cifar100-10-histogram",)),
    ),
    "gem": Experiment(
        "Against GEM, CIFAR-100 [appendix B]",
        1,
        (
            *((f"cifar100-5-gem-{size}",) for size in (200, 1280, 2000, 2560, 5120)),
            *(_with_memory("cifar100-5", "total", size) for size in (200, 1280, 2000, 2560, 5120)),
        ),
    ),
    "vehicles": Experiment(
        "Similar classes: vehicles [appendix C]", 1, (("cifar100-vehicles",), ("cifar100-vehicles-icarl",))
    ),
    "dogs": Experiment("Similar classes: dogs [appendix C]", 1, (("stanford-dogs",), ("stanford-dogs-icarl",))),
}


def find(name: str) -> Experiment:
    """The experiment of this name."""
    return look_up(EXPERIMENTS, name, "experiment")


def chosen(runs: Sequence[Recipe], only: Sequence[str]) -> list[Recipe]:
    """The runs for which every key of `only`, such as "method=icarl", has one of the values asked for."""
    wanted: dict[str, set[str]] = {}
    for condition in only:
        key, equals, value = condition.partition("=")
        if not equals or key not in CHOICES:
            raise TreeringError(f"--only takes KEY=VALUE, not {condition}; {nearest(key, CHOICES)}")
        wanted.setdefault(key, set()).add(value)
    found = [run for run in runs if all(_facts(run)[key] & values for key, values in wanted.items())]
    if not found:
        raise TreeringError(f"no run of this experiment has {' and '.join(only)}")
    return found


def _memory(recipe: Recipe) -> int:
    """Images in memory as the tables name them: GEM's over all steps."""
    if not methods.find(recipe.method).keeps_memory:
        return 0
    classes, per_step = PAPER[recipe.run.dataset].classes, recipe.run.classes_per_step
    steps = len(split_steps(range(classes), per_step)) if recipe.memory.kind == "per-step" else 1
    return recipe.memory.size * steps


def _facts(recipe: Recipe) -> dict[str, set[str]]:
    """What is true of a run, by key; a run serves several methods where its training is read out in several ways."""
    facts = {
        "dataset": recipe.run.dataset,
        "classes_per_step": recipe.run.classes_per_step,
        "selection": recipe.memory.selection,
        "order": recipe.run.order,
    }
    served = {method_label(recipe), *methods.find(recipe.method).further_readouts}
    memory = str(_memory(recipe))
    named = {memory, f"{memory}/class"} if recipe.memory.kind == "per-class" else {memory}
    return {"method": served, "memory": named} | {key: {str(value)} for key, value in facts.items()}
