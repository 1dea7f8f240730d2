"""What the commands `run` and `reproduce` do with their recipes."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from treering.experiments import scheduler
from treering.experiments.console import RunDisplay, show_forecast, show_results
from treering.experiments.forecast import forecast
from treering.experiments.result import run_name
from treering.recipe import Recipe
from treering.runtime.device import describe, find_device
from treering.terminal import interruptible, print_error


def run_all(
    console: Console, recipes: list[Recipe], data: Path, results: Path, download: bool, device: str, at_once: int
) -> None:
    """Do these runs, show their progress and results, and exit with code 2 if any of them failed."""
    place = scheduler.Place(data, results, find_device(device), download)
    with interruptible("interrupted; run the same command again to go on from the last saved state"):
        with RunDisplay(console, [run_name(recipe) for recipe in recipes]) as display:
            outcomes = scheduler.run_all(recipes, place, at_once, display)
        show_results(console, outcomes, results)
    errors = scheduler.failures(outcomes)
    for error in errors:
        print_error(error)
    if errors:
        sys.exit(2)


def forecast_all(console: Console, recipes: list[Recipe], data: Path, results: Path, device: str) -> None:
    """Show how long these runs are going to take."""
    place = scheduler.Place(data, results, find_device(device))
    show_forecast(console, forecast(recipes, place), describe(place.device))
