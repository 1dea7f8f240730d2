"""Seconds that one more class of photos takes, by the number of classes and photos that the model knows already.

    python benchmarks/many_classes.py [--classes 10 100 1000] [--photos 30] [--new 10] [--size 32] [--out FILE.json]

Makes small JPEG files, has `treering learn --fast` learn all classes in one step and then one more class of `--new`
photos, by a model that keeps photos and by one that keeps none. Each command is a process of its own and counts from
its start to its end.
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

import numpy as np
from PIL import Image

from treering.runtime.commit import current_commit


def make_class(folder: Path, number: int, photos: int) -> None:
    """Write noisy photos of one pattern."""
    random = np.random.RandomState(number)
    folder.mkdir(parents=True)
    pattern = random.randint(40, 216, (6, 8, 3))
    for photo in range(photos):
        noisy = np.clip(pattern + random.normal(0, 30, pattern.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).resize((64, 48)).save(folder / f"{photo:03d}.jpg", quality=85)


def seconds_of(*arguments: object) -> float:
    """Run treering with these arguments; return how long it took."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "treering", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    return round(time.perf_counter() - begin, 1)


def measured(classes: int, photos: int, new: int, size: int) -> dict[str, Any]:
    """Learn so many classes, then one more; return what that took."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for number in range(classes):
            make_class(place / "first" / f"class {number:04d}", number, photos)
        make_class(place / "more" / "new class", classes, new)
        found: dict[str, Any] = {"classes": classes, "photos": classes * photos}
        for kept in (30, 0):
            model = place / f"model-{kept}"
            first = seconds_of("learn", model, place / "first", "--fast", "--size", size, "--memory", kept)
            more = seconds_of("learn", model, place / "more", "--fast")
            found[f"keeping {kept} of each class"] = {"seconds_of_all": first, "seconds_of_one_more": more}
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--photos", type=int, default=30)
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "many_classes", "commit": current_commit(), "new": options.new, "models": []}
    for classes in options.classes:
        found["models"].append(measured(classes, options.photos, options.new, options.size))
        sys.stdout.write(json.dumps(found["models"][-1]) + "\n")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
