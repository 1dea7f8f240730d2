"""Measure how long `Learner.load` takes, with this code and with that of another checkout.

    python benchmarks/loading.py --before DIR [--classes 15] [--exemplars 30] [--side 224] [--runs 9] [--out FILE.json]

DIR is the checkout. Its code learns a model with EEIL and a small network in a temporary folder, and both load it in
turn. Each load is timed in a process of its own that has imported all it needs, since the first load is what a command
waits for. Processor seconds count all threads, and say more where other programs run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from treering.runtime.commit import current_commit

HERE = Path(__file__).resolve().parent.parent
MAKE = """
import sys
import numpy as np
from PIL import Image
from treering import Learner, Recipe

folder, classes, exemplars, side = sys.argv[1], *map(int, sys.argv[2:])
changes = ("memory.held_out=0", f"memory.size={exemplars}", "training.epochs=1", "balanced.epochs=1")
changes += ("training.drop_at=[]", "balanced.drop_at=[]", "backbone=small")
random = np.random.RandomState(0)
images = []
for number in range(classes * exemplars):
    pattern = Image.fromarray(random.randint(40, 216, (7, 7, 3)).astype(np.uint8)).resize((side, side), Image.BICUBIC)
    images.append(np.clip(np.asarray(pattern) + random.normal(0, 4, (side, side, 3)), 0, 255).astype(np.uint8))
learner = Learner(recipe=Recipe.find("photos-from-scratch").changed(changes), device="cpu")
learner.partial_fit(np.stack(images), [f"class {number % classes}" for number in range(classes * exemplars)])
learner.save(folder)
"""
LOAD = """
import json, sys, time
import torch
import treering
from treering import Learner

begin, processor = time.perf_counter(), time.process_time()
learner = Learner.load(sys.argv[1], device="cpu")
took = {"seconds": time.perf_counter() - begin, "processor_seconds": time.process_time() - processor}
exemplars = sum(len(images) for images in learner.exemplars_.values())
print(json.dumps(took | {"exemplars": exemplars, "code": treering.__file__}))
"""


def run(script: str, checkout: Path, *arguments: object) -> str:
    """Run a script with the code of a checkout; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def load(checkout: Path, model: Path, exemplars: int) -> dict[str, float]:
    """Return how long one load takes, after a look at what was loaded, and by which code."""
    found = json.loads(run(LOAD, checkout, model))
    if found["exemplars"] != exemplars or not Path(found["code"]).is_relative_to(checkout):
        raise SystemExit(f"{checkout} has not loaded the model: {found}")
    return {name: found[name] for name in ("seconds", "processor_seconds")}


def measured(before: Path, classes: int, exemplars: int, side: int, runs: int) -> dict[str, Any]:
    """Have the other code make a model, and both load it in turn; return the medians and their ratios."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        run(MAKE, before, model, classes, exemplars, side)
        taken: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
        for _ in range(runs):
            for name, checkout in (("before", before), ("now", HERE)):
                taken[name].append(load(checkout, model, classes * exemplars))
    found: dict[str, Any] = {name: _medians(times) for name, times in taken.items()}
    ratios = {name: round(found["now"][name] / found["before"][name], 3) for name in found["now"]}
    return found | {"ratio": ratios["seconds"], "processor_ratio": ratios["processor_seconds"]}


def _medians(times: list[dict[str, float]]) -> dict[str, float]:
    """Return the middle one of each kind of time."""
    return {name: round(statistics.median(one[name] for one in times), 4) for name in times[0]}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, metavar="DIR")
    parser.add_argument("--named", default="", help="what to call the other code, such as its commit")
    for name, default in {"classes": 15, "exemplars": 30, "side": 224, "runs": 9}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = {
        "benchmark": "loading",
        "commit": current_commit(),
        "before_is": options.named or options.before.name,
        "machine": f"{os.cpu_count()} CPU cores, {platform.machine()}",
    }
    settings = {name: getattr(options, name) for name in ("classes", "exemplars", "side", "runs")}
    text = json.dumps(about | settings | measured(options.before.resolve(), **settings), indent=1) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
