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


@app.command()
def run(
    recipes: Annotated[list[str], typer.Argument(help="TOML files, or names of ready recipes such as cifar100-10.")],
    data: Annotated[Path, typer.Option(help="Folder that holds the datasets.")] = Path("data"),
    results: Annotated[Path, typer.Option(help="Folder for the result files.")] = Path("results"),
    download: Annotated[bool, typer.Option("--download", help="Fetch a missing dataset.")] = False,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a setting: run.order=1.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """One method over one dataset's stream for each recipe; on a GPU all of them at once."""
    from treering.experiments import console as experiments_console

    chosen = [Recipe.find(name).changed(change or []) for name in recipes]
    with _interruptible("interrupted; the same command goes on from where it was saved last"):
        errors = experiments_console.run(console, chosen, data, results, download, device)
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
