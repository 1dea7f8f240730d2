"""`treering demo`: ten digits in five steps of two classes, EEIL beside plain fine-tuning from the same start."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from treering import learner
from treering.core import metrics
from treering.data import digits
from treering.data.stream import Dataset, class_order, split_steps
from treering.errors import TreeringError
from treering.progress import Progress as StepProgress
from treering.recipe import Recipe
from treering.terminal import Terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RECIPE = Recipe.find("digits")
"""The paper's method for 8 x 8 images: a small network, fewer epochs, 100 exemplars, crops that shift by one pixel."""

TITLES = {"eeil": "EEIL", "finetune": "fine-tuning"}


@dataclass(frozen=True)
class Outcome:
    """The accuracy that one method reached."""

    accuracy: list[float]
    """The percentage after each step on the test images of all classes so far."""
    first_classes: list[float]
    """The percentage after each step on the test images of the first step's classes; its fall is forgetting."""


def learn_digits(
    dataset: Dataset, recipe: Recipe, order: int, progress: Callable[[StepProgress], None] | None = None
) -> Outcome:
    """Teach the ten digits in five steps by the recipe's method."""
    model = learner.Learner(recipe=recipe, seed=order, progress=progress)
    steps = split_steps(class_order(10, order), recipe.run.classes_per_step)
    outcome = Outcome([], [])
    seen: list[int] = []
    for classes in steps:
        train = np.isin(dataset.train_labels, classes)
        model.partial_fit(dataset.train_images[train], dataset.train_labels[train])
        seen += classes
        for scores, tested in ((outcome.accuracy, seen), (outcome.first_classes, steps[0])):
            test = np.isin(dataset.test_labels, tested)
            scores.append(100 * model.score(dataset.test_images[test], dataset.test_labels[test]))
    return outcome


def run(console: Console, out: Path, order: int) -> None:
    """Run the whole demo: learn, print a table, draw the picture."""
    dataset = digits.load()
    _figure_class()
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise TreeringError(f"cannot write to {out}: {error.strerror}; choose another folder with --out") from None
    # A network this small gains little from more threads, and one thread gives the same numbers on any machine.
    torch.set_num_threads(1)
    start = time.perf_counter()
    steps = split_steps(class_order(10, order), RECIPE.run.classes_per_step)
    epochs = {
        "eeil": RECIPE.training.epochs * len(steps) + RECIPE.balanced.epochs * (len(steps) - 1),
        "finetune": RECIPE.training.epochs * len(steps),
    }
    kept = RECIPE.memory.size
    console.print(f"Ten handwritten digits, two new ones at a time; only {kept} of the old images may be kept.")
    outcomes = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        for name in TITLES:
            bar = bars.add_task(TITLES[name], total=epochs[name], rate="")
            begun, passes = time.perf_counter(), 0

            def show(now: StepProgress, bar: TaskID = bar, begun: float = begun, name: str = name) -> None:
                nonlocal passes
                passes += now.image_passes
                where = f"{TITLES[name]:17} step {now.step}/{len(steps)} {now.stage:8} epoch {now.epoch}/{now.epochs}"
                rate = f"{passes / (time.perf_counter() - begun):,.0f} images/s"
                bars.update(bar, advance=1, description=where, rate=rate)

            outcomes[name] = learn_digits(dataset, replace(RECIPE, method=name), order, show)
    console.print(_table(outcomes, steps))
    pictures = draw(outcomes, steps, out)
    console.print(f"{time.perf_counter() - start:.0f} s. The picture:")
    for picture in pictures:
        Terminal(console).line(f"  {picture}")


def _table(outcomes: dict[str, Outcome], steps: list[list[int]]) -> Table:
    table = Table(title="Accuracy on all digits learnt so far (%)")
    table.add_column("method")
    for number, classes in enumerate(steps, 1):
        table.add_column(f"step {number}\n+ {', '.join(map(str, classes))}", justify="right")
    table.add_column("average\nwithout\nfirst", justify="right")
    table.add_column("average\nwith\nfirst", justify="right")
    for name, outcome in outcomes.items():
        averages = metrics.average_without_first(outcome.accuracy), metrics.average(outcome.accuracy)
        table.add_row(TITLES[name], *(f"{value:.1f}" for value in (*outcome.accuracy, *averages)))
    return table


def _figure_class() -> type[Figure]:
    """Return matplotlib's Figure, or raise an error that says how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise TreeringError("drawing needs matplotlib: pip install 'treering[demo]'") from None
    return Figure


def draw(outcomes: dict[str, Outcome], steps: list[list[int]], out: Path) -> list[Path]:
    """Draw the accuracy of each method after each step, as PNG and SVG; return the two paths."""
    figure = _figure_class()(figsize=(10, 4.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    known = [sum(len(classes) for classes in steps[: number + 1]) for number in range(len(steps))]
    first = " and ".join(map(str, steps[0]))
    colors = {"eeil": "#1b6e3c", "finetune": "#c0392b"}
    curves = {f"The first two digits, {first}": "first_classes", "All digits learnt so far": "accuracy"}
    for panel, (title, field) in zip(panels, curves.items(), strict=True):
        for name, outcome in outcomes.items():
            values = getattr(outcome, field)
            panel.plot(known, values, marker="o", linewidth=2.5, color=colors[name], label=TITLES[name])
            panel.annotate(
                f"{values[-1]:.0f} %", (known[-1], values[-1]), xytext=(8, 0), textcoords="offset points",
                va="center", color=colors[name], weight="bold",
            )  # fmt: skip
        panel.set(title=title, xlabel="digits learnt", xticks=known, ylim=(-3, 105), xlim=(1.6, 11))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("accuracy on test images (%)")
    panels[0].legend(frameon=False, loc="center right")
    figure.suptitle("Learning two digits at a time: plain fine-tuning forgets, EEIL remembers", weight="bold")
    out.mkdir(parents=True, exist_ok=True)
    paths = [(out / f"digits.{kind}").resolve() for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
