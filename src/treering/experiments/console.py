"""What `treering run` shows: a progress bar per run, then a table of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from treering import data, methods
from treering.data.stream import ResidentImages
from treering.errors import TreeringError
from treering.experiments.runner import RunProgress, StreamRun, run_many, run_name
from treering.recipe import Recipe


def run(
    console: Console, recipes: Sequence[Recipe], folder: Path, results: Path, download: bool, device: str
) -> list[str]:
    """Run every recipe and show the results; returns a line for each run that failed."""
    names = [run_name(recipe) for recipe in recipes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise TreeringError(f"two of the recipes have the same result file, {twice}.json: run them one after the other")
    place = methods.find_device(device)
    resident = {
        name: ResidentImages.of(data.load(name, folder, download), place)
        for name in sorted({recipe.run.dataset for recipe in recipes})
    }
    runs = [StreamRun(recipe, resident[recipe.run.dataset], results) for recipe in recipes]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for name, one in zip(names, runs, strict=True):
            bar = bars.add_task(name, total=one.image_passes_planned, now="")

            def show(now: RunProgress, bar: TaskID = bar) -> None:
                where = f"step {now.step}/{now.steps} {now.stage} epoch {now.epoch}/{now.epochs}"
                rate = f"{now.image_passes / now.seconds:,.0f} images/s"
                bars.update(bar, completed=now.image_passes, now=f"{where} {rate}")

            one.watch = show
        outcomes = run_many(runs)

    table = Table()
    for column in ("run", "average without first", "average", "last step", "images/s", "minutes"):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    errors = []
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, Exception):
            errors.append(f"{name}: {outcome}")
            continue
        figures = (outcome["average_without_first"], outcome["average"], outcome["accuracy"][-1])
        rate, minutes = outcome["images_per_second"], outcome["seconds"] / 60
        cells = ["" if value is None else f"{value:.2f}" for value in figures]
        table.add_row(name, *cells, f"{rate:,.0f}", f"{minutes:.1f}")
    if table.row_count:
        console.print(table)
        console.print(f"Results are in {results.resolve()}", soft_wrap=True, highlight=False)
    unexpected = [error for error in outcomes if isinstance(error, Exception) and not isinstance(error, TreeringError)]
    if unexpected:
        raise unexpected[0]
    return errors
