"""Images per second of `treering run`, from the start of its process to its end: everything counts.

    python benchmarks/whole_runs.py cifar100-10 --data DIR --results NEW_DIR [--orders 1] [--set key=value]
                                    [--out FILE.json]

Every recipe is run in so many class orders, on a GPU all at once. What was measured is added to FILE.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from treering.experiments.result import run_name
from treering.recipe import Recipe


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
    if options.results.exists():  # runs that had begun there would count whole
        parser.error(f"{options.results} is there already: name a new folder")
    orders = [[*options.set, f"run.order={order}"] for order in range(options.orders)]
    recipes = [Recipe.find(name).changed(changes) for name in options.recipes for changes in orders]
    names = [run_name(recipe) for recipe in recipes]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{name}.toml" for name in names]
        for file, recipe in zip(files, recipes, strict=True):
            file.write_text(recipe.to_toml())
        command = [sys.executable, "-m", "treering", "run", *files, "--data", options.data]
        begin = time.perf_counter()
        subprocess.run([*command, "--results", options.results, "--at-once", str(len(files))], check=True)
        seconds = time.perf_counter() - begin
    results = [json.loads((options.results / f"{name}.json").read_text()) for name in names]
    passes = sum(result["image_passes"] for result in results)
    print(f"{len(names)} runs: {passes:,} image passes in {seconds:.1f} s, {passes / seconds:,.0f} images/s")  # noqa: T201
    if options.out:
        record: dict[str, Any] = {"benchmark": "whole_runs", "processes": []}
        if options.out.exists():
            record = json.loads(options.out.read_text())
        measured = {"runs": names, "image_passes": passes, "seconds": seconds, "images_per_second": passes / seconds}
        record["processes"].append(measured | {key: results[0][key] for key in ("device", "versions", "commit")})
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
