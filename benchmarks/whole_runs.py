"""Images per second of whole runs in one process, from its start to its end: all that `treering run` does counts.

    python benchmarks/whole_runs.py cifar100-10 --data DIR --results DIR [--orders 1] [--out FILE.json]

Loading, compilation and capture, teacher, selection and evaluation are included. Every recipe is run in so many class
orders, all at once on a GPU. The folder of results may not hold these runs or parts of them. What was measured is added
to FILE.
"""

from __future__ import annotations

import time

BEGUN = time.perf_counter()

import argparse  # noqa: E402
import functools  # noqa: E402
import json  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

from treering import data, methods  # noqa: E402
from treering.data.stream import ResidentImages  # noqa: E402
from treering.experiments.at_once import run_many  # noqa: E402
from treering.experiments.runner import StreamRun, current_commit  # noqa: E402
from treering.recipe import Recipe  # noqa: E402


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--orders", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = methods.find_device("auto")
    recipes = [
        Recipe.find(name).changed([*options.set, f"run.order={order}"])
        for name in options.recipes
        for order in range(options.orders)
    ]

    @functools.cache
    def resident(name: str, image_size: int) -> ResidentImages:
        return ResidentImages.of(data.load(name, options.data, image_size=image_size), device)

    runs = [
        StreamRun(recipe, resident(recipe.run.dataset, recipe.run.image_size), options.results) for recipe in recipes
    ]
    there = [file for run in runs for file in (run.result_file, run.state_file) if file.exists()]
    if there:
        parser.error(f"{there[0]} is there already: choose another folder of results")
    outcomes = run_many(runs, len(runs))
    seconds = time.perf_counter() - BEGUN
    passes = 0
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        passes += outcome["image_passes"]
    print(f"{len(runs)} runs: {passes:,} image passes in {seconds:.1f} s, {passes / seconds:,.0f} images/s")  # noqa: T201
    if options.out:
        record: dict[str, Any] = {"benchmark": "whole_runs", "processes": []}
        if options.out.exists():
            record = json.loads(options.out.read_text())
        measured = {
            "runs": [run.result_file.stem for run in runs],
            "image_passes": passes,
            "seconds": round(seconds, 1),
            "images_per_second": round(passes / seconds),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "commit": current_commit(),
        }
        record["processes"].append(measured)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
