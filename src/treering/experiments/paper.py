"""The paper's experiments by name: the runs of each table and figure, for `treering reproduce`.

Importing this module does not import PyTorch; only `chosen` does, to ask the methods what their results are called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treering.errors import TreeringError, look_up, nearest
from treering.recipe import Recipe

CHOICES = ("method", "dataset", "classes_per_step", "memory", "selection", "order")
"""What the option `--only` can ask for."""


@dataclass(frozen=True)
class Experiment:
    """Some recipes, each run over a number of class orders."""

    title: str
    orders: int
    """The number of class orders in the paper."""
    recipes: tuple[str, ...]
    """The names of ready recipes, each followed by its changes as `--set` takes them."""

    def runs(self, orders: int | None = None) -> Iterator[Recipe]:
        """Yield every run, over the paper's number of class orders unless another is given."""
        for order in range(self.orders if orders is None else orders):
            for name, *changes in map(str.split, self.recipes):
                yield Recipe.find(name).changed([*changes, f"run.order={order}"])


EXPERIMENTS: dict[str, Experiment] = {
    "table-1a": Experiment(
        "Fixed memory of 2000 exemplars, CIFAR-100 [6.1]",
        5,
        (
            *(f"cifar100-{n}{method}" for n in (2, 5, 10, 20, 50) for method in ("", "-icarl", "-lwf-mc")),
            "cifar100-joint",
        ),
    ),
    "table-1b": Experiment(
        "ImageNet, top-5 [7]",
        1,
        tuple(f"imagenet{n}{method}" for n in (100, 1000) for method in ("", "-icarl", "-lwf-mc")),
    ),
    "table-2a": Experiment(
        "Fixed number of exemplars per class, CIFAR-100 [6.2]",
        1,
        tuple(
            f"cifar100-{n}{method} memory.kind=per-class memory.size={size}"
            for n in (5, 10, 20)
            for method in ("", "-icarl")
            for size in (50, 75, 100)
        ),
    ),
    "table-2b": Experiment(
        "Ablation, CIFAR-100 [6.3]",
        1,
        tuple(f"cifar100-{n}{method}" for n in (5, 10, 20) for method in ("-base", "-da", "-bf", "", "-icarl")),
    ),
    "selection": Experiment(
        "Selection of exemplars, CIFAR-100 [6.3]",
        1,
        ("cifar100-10", "cifar100-10-random", "cifar100-10-histogram"),
    ),
    "gem": Experiment(
        "Against GEM, CIFAR-100 [appendix B]",
        1,
        (
            *(f"cifar100-5-gem-{size}" for size in (200, 1280, 2000, 2560, 5120)),
            *(f"cifar100-5 memory.size={size}" for size in (200, 1280, 2000, 2560, 5120)),
        ),
    ),
    "vehicles": Experiment(
        "Similar classes: vehicles [appendix C]", 1, ("cifar100-vehicles", "cifar100-vehicles-icarl")
    ),
    "dogs": Experiment("Similar classes: dogs [appendix C]", 1, ("stanford-dogs", "stanford-dogs-icarl")),
}


def find(name: str) -> Experiment:
    """Return the experiment of this name."""
    return look_up(EXPERIMENTS, name, "experiment")


def chosen(runs: Sequence[Recipe], only: Sequence[str]) -> list[Recipe]:
    """Return the runs that have a wanted value for each key in `only`: ["method=icarl", "order=0", "order=1"]."""
    wanted: dict[str, set[str]] = {}
    for condition in only:
        key, equals, value = condition.partition("=")
        if not equals or key not in CHOICES:
            raise TreeringError(f"--only takes KEY=VALUE, not {condition}; {nearest(key, CHOICES)}")
        wanted.setdefault(key, set()).add(value)
    found = [run for run in runs if all(_facts(run)[key] & values for key, values in wanted.items())]
    if not found:
        raise TreeringError(f"no run of this experiment has {' and '.join(only)}: --dry-run lists its runs")
    return found


def _facts(recipe: Recipe) -> dict[str, set[str]]:
    """Return the values by which `--only` finds this run, for each key.

    A run has several methods if its network classifies in several ways, and a memory per class has two names.
    """
    from treering import methods
    from treering.experiments.result import method_label

    method, size = methods.find(recipe.method), str(_memory_size(recipe))
    return {
        "method": {method_label(recipe), *method.further_readouts},
        "dataset": {recipe.run.dataset},
        "classes_per_step": {str(recipe.run.classes_per_step)},
        "memory": {size, f"{size}/class"} if recipe.memory.kind == "per-class" else {size},
        "selection": {recipe.memory.selection},
        "order": {str(recipe.run.order)},
    }


def _memory_size(recipe: Recipe) -> int:
    """Return the images in memory as the paper's tables count them: those of GEM over all steps, 0 without a memory."""
    from treering import methods
    from treering.data import PAPER
    from treering.data.stream import split_steps

    if not methods.find(recipe.method).keeps_memory:
        return 0
    if recipe.memory.kind != "per-step":
        return recipe.memory.size
    classes = range(PAPER[recipe.run.dataset].classes)
    return recipe.memory.size * len(split_steps(classes, recipe.run.classes_per_step))
