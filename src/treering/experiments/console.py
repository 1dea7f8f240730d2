"""What `treering run` and `treering reproduce` show: what is planned, the progress of each run, a table of results."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from treering import data, methods, speed
from treering.data.stream import ResidentImages, split_steps
from treering.errors import OUT_OF_MEMORY, TreeringError, is_out_of_memory
from treering.experiments.result import run_name
from treering.experiments.run import RunProgress, StreamRun
from treering.experiments.scheduler import run_many
from treering.recipe import MOST_AT_ONCE, Recipe


def run(
    console: Console,
    recipes: Sequence[Recipe],
    folder: Path,
    results: Path,
    download: bool = False,
    device: str = "auto",
    at_once: int = 8,
) -> list[str]:
    """Run every recipe, on a GPU `at_once` together, and show the results; returns a line for each run that failed."""
    names = [run_name(recipe) for recipe in recipes]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise TreeringError(f"two of the recipes have the same result file, {twice}.json: run them one after the other")
    labels = _short_names(names)
    place = methods.find_device(device)
    outcomes: dict[str, dict | Exception] = {}

    @functools.cache
    def resident(dataset: str, image_size: int) -> ResidentImages | TreeringError:
        try:
            return ResidentImages.of(data.load(dataset, folder, download, image_size), place)
        except TreeringError as error:
            return error

    def prepared(recipe: Recipe) -> StreamRun | None:
        images = resident(recipe.run.dataset, recipe.run.image_size)
        try:
            if isinstance(images, TreeringError):
                raise images
            return StreamRun(recipe, images, results)
        except TreeringError as error:
            outcomes[run_name(recipe)] = error
            return None

    # In a narrow terminal only the name gives way.
    name_column = TextColumn("{task.description}", table_column=Column(overflow="ellipsis"))
    columns = (
        TextColumn("{task.percentage:3.0f} % {task.fields[now]}", table_column=Column(no_wrap=True)),
        name_column,
    )
    with Progress(*columns, console=console, disable=not console.is_interactive) as lines:
        for start in range(0, len(recipes), MOST_AT_ONCE):  # all of these are captured before any of them trains
            runs = {run_name(recipe): prepared(recipe) for recipe in recipes[start : start + MOST_AT_ONCE]}
            ready = {name: one for name, one in runs.items() if one is not None}
            for name, one in ready.items():
                if _is_result_of(one.recipe, results):
                    _print(console, f"{name} was run before: remove {one.result_file} to run it again")
                elif one.result_file.exists():
                    pass  # of other settings or damaged: the run says so and ends
                elif console.is_interactive:
                    line = lines.add_task(labels[name], total=one.image_passes_planned, now="starting")
                    one.watch = _live_watch(lines, line)
                else:
                    _print(console, f"{name}: {one.image_passes_planned:,} image passes in all")
                    one.watch = _log_watch(console, name)
            outcomes |= zip(ready, run_many(list(ready.values()), at_once), strict=True)

    ordered = {name: outcomes[name] for name in names}
    _show_results(console, ordered, results)
    failed = {name: outcome for name, outcome in ordered.items() if isinstance(outcome, Exception)}
    for error in failed.values():
        if not isinstance(error, TreeringError) and not is_out_of_memory(error):
            raise error
    return [f"{name}: {OUT_OF_MEMORY if is_out_of_memory(error) else error}" for name, error in failed.items()]


def _show_results(console: Console, outcomes: Mapping[str, dict | Exception], results: Path) -> None:
    """A table of the runs that came to a result."""
    table = Table()
    for column in ("run", "average without first", "average", "last step", "images/s", "minutes"):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    for name, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            continue
        figures = (outcome["average_without_first"], outcome["average"], outcome["accuracy"][-1])
        rate, minutes = outcome["images_per_second"], outcome["seconds"] / 60
        cells = ["" if value is None else f"{value:.2f}" for value in figures]
        table.add_row(Text(name), *cells, f"{rate:,.0f}", f"{minutes:.1f}")
    if table.row_count:
        console.print(table)
        _print(console, f"Results are in {results.resolve()}")


def _print(console: Console, line: str) -> None:
    """One line, whatever the names in it."""
    console.print(line, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Of each name the parts that not all have, since a narrow terminal has no room for more."""
    parts = [name.split("-") for name in names]
    shared = set(parts[0]).intersection(*parts) if len(parts) > 1 else set()
    return {
        name: "-".join(part for part in own if part not in shared) or name
        for name, own in zip(names, parts, strict=True)
    }


def _where(now: RunProgress) -> str:
    left = speed.as_text((now.image_passes_planned - now.image_passes) / now.images_per_second)
    where = f"step {now.step}/{now.steps} {now.stage} epoch {now.epoch}/{now.epochs}"
    return f"{left} left, {where}, {now.images_per_second:,.0f} images/s"


def _live_watch(lines: Progress, line: TaskID) -> Callable[[RunProgress], None]:
    """Shows progress by a line that changes."""

    def show(now: RunProgress) -> None:
        lines.update(line, completed=now.image_passes, now=_where(now))

    return show


def _log_watch(console: Console, name: str) -> Callable[[RunProgress], None]:
    """Shows progress by a line for each stage the run comes to."""
    seen: tuple[int, str] | None = None

    def show(now: RunProgress) -> None:
        nonlocal seen
        if seen == (now.step, now.stage):
            return
        seen = (now.step, now.stage)
        before = "" if now.accuracy_before is None else f"; {now.accuracy_before:.1f} % after step {now.step - 1}"
        _print(console, f"{name}: {_where(now)}{before}")

    return show


def show_plan(console: Console, recipes: Sequence[Recipe], folder: Path, results: Path, device: str) -> None:
    """What `run` would do with these recipes: image passes and time of each, and what is done or lacks its data."""
    place = methods.find_device(device)
    table = Table()
    for column in ("run", "image passes", "time", "state"):
        table.add_column(column, justify="left" if column in ("run", "state") else "right", overflow="fold")
    rates: dict[tuple, float] = {}
    missing: dict[str, None] = {}
    passes_left, seconds_left = 0, 0.0
    for recipe in recipes:
        facts = data.PAPER[recipe.run.dataset]
        steps = split_steps(range(facts.classes), recipe.run.classes_per_step)
        plan = methods.find(recipe.method).plan(recipe, [dict.fromkeys(step, facts.images_per_class) for step in steps])
        passes = sum(stage.image_passes for step in plan for stage in step)
        network = (recipe.backbone, facts.side, recipe.optimizer.batch_size, recipe.engine)
        if network not in rates:
            rates[network] = speed.images_per_second(recipe, (3, facts.side, facts.side), place)
        seconds = passes / rates[network]
        if (results / f"{run_name(recipe)}.json").exists():
            state = "done" if _is_result_of(recipe, results) else "in the way: another run"
        else:
            passes_left, seconds_left = passes_left + passes, seconds_left + seconds
            state = "unfinished" if (results / ".unfinished" / f"{run_name(recipe)}.safetensors").exists() else "to do"
            missing |= dict.fromkeys(_missing_data(recipe, folder))
        table.add_row(Text(run_name(recipe)), f"{passes:,}", speed.as_text(seconds), state)
    console.print(table)
    where = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
    console.print(
        f"To do: {passes_left:,} image passes, about {speed.as_text(seconds_left)} on this {where}, one run after "
        "the other (measured just now on a few batches; several runs at once on a GPU take less).",
        highlight=False,
    )
    for line in missing:
        _print(console, line)


def _is_result_of(recipe: Recipe, results: Path) -> bool:
    try:
        return Recipe.from_dict(json.loads((results / f"{run_name(recipe)}.json").read_bytes())["recipe"]) == recipe
    except (OSError, ValueError, LookupError, TypeError, AttributeError, TreeringError):
        return False


def _missing_data(recipe: Recipe, folder: Path) -> list[str]:
    """What to say of the recipe's dataset if it is not there."""
    cifar = recipe.run.dataset.startswith("cifar100")
    place = folder / ("cifar-100-python" if cifar else recipe.run.dataset)
    if place.is_dir() or (cifar and (folder / "train").is_file()):
        return []
    how = "--download fetches it" if cifar else f"put images in {place}/train/<class>/ and {place}/val/<class>/"
    return [f"{recipe.run.dataset} needs {place}, which is not there: {how}"]
