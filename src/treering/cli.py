"""The command line: `treering …`. Errors are one line and exit code 2; a traceback is a bug."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import treering
from treering.errors import TreeringError
from treering.recipe import Recipe

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"treering {treering.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def treering_command(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Teach an image classifier new classes over time, without forgetting the old ones."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("demo"),
    order: Annotated[int, typer.Option(min=0, help="Class order: 0 is the usual one.")] = 0,
) -> None:
    """Ten digits in five steps, with and without forgetting, drawn."""
    from treering import demo as digits_demo

    with _interruptible("interrupted"):
        digits_demo.run(console, out, order)


Data = Annotated[Path, typer.Option(help="Folder that holds the datasets.")]
Results = Annotated[Path, typer.Option(help="Folder of the result files.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch a missing dataset.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
AtOnce = Annotated[int, typer.Option(min=1, help="Runs that a GPU trains together.")]


@app.command()
def run(
    recipes: Annotated[list[str], typer.Argument(help="TOML files, or names of ready recipes such as cifar100-10.")],
    data: Data = Path("data"),
    results: Results = Path("results"),
    download: Download = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: run.order=1.")] = None,
    device: Device = "auto",
    at_once: AtOnce = 8,
) -> None:
    """One method over one dataset's stream for each recipe; on a GPU several at once."""
    _run([Recipe.find(name).changed(change or []) for name in recipes], data, results, download, device, at_once)


@app.command()
def reproduce(
    experiment: Annotated[str, typer.Argument(help="table-1a, -1b, -2a, -2b, selection, gem, vehicles or dogs.")],
    orders: Annotated[int | None, typer.Option(min=1, help="Class orders; the paper's number by default.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only some runs: method=icarl, classes_per_step=10.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be run and how long it takes.")] = False,
    data: Data = Path("data"),
    results: Results = Path("results"),
    download: Download = False,
    device: Device = "auto",
    at_once: AtOnce = 8,
) -> None:
    """Every run of a table of the paper that is not done yet."""
    from treering.experiments import console as experiments_console
    from treering.experiments import paper

    found = paper.find(experiment)
    runs = paper.chosen(list(found.runs(orders)), only or [])
    console.print(f"{found.title}: {len(runs)} runs", highlight=False, markup=False)
    if dry_run:
        experiments_console.show_plan(console, runs, data, results, device)
    else:
        _run(runs, data, results, download, device, at_once)


@app.command()
def report(
    results: Annotated[Path, typer.Argument(help="Folder of the result files.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the page, the tables and the figures.")] = Path("report"),
) -> None:
    """Tables beside the paper's, figures, and one self-contained HTML page, from result files."""
    from treering.experiments import report as experiments_report

    with _interruptible("interrupted"):
        files = experiments_report.write(results, out)
    console.print(f"{len(files)} files; open {(out / 'index.html').resolve()}", soft_wrap=True, highlight=False)


def _run(recipes: list[Recipe], data: Path, results: Path, download: bool, device: str, at_once: int) -> None:
    from treering.experiments import console as experiments_console

    with _interruptible("interrupted; the same command goes on from where it was saved last"):
        errors = experiments_console.run(console, recipes, data, results, download, device, at_once)
    for error in errors:
        _print_error(error)
    if errors:
        sys.exit(2)


@contextlib.contextmanager
def _interruptible(message: str) -> Iterator[None]:
    """Ctrl-C prints `message` and exits with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        _print_error(message)
        sys.exit(130)


def _print_error(message: object) -> None:
    Console(stderr=True, soft_wrap=True).print(f"treering: {message}", markup=False, highlight=False)


def main() -> None:
    """Entry point of the `treering` command."""
    try:
        app()
    except TreeringError as error:
        _print_error(error)
        sys.exit(2)
