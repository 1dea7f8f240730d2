"""Measure the networks that `treering learn` can choose from: how many photos each tells right, and in what time.

    python benchmarks/networks.py --set birds=DIR [--set NAME=DIR[:CLASSES:TRAIN:VAL] …] [--draws 3] --out FILE.json

The sets and draws are those of `photos.py`. `treering learn --fast` gets all photos of a draw in one step, with one
network after the other, each at the size at which it learnt its weights.
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

from photos import Draw

import treering

NETWORKS = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")


def measured(draw: Draw, backbone: str) -> dict[str, Any]:
    """Teach treering all photos of a draw at once; return what it gets right of the test photos."""
    begin = time.perf_counter()
    treering.learn(draw.place / backbone, draw.place / "all", effort="fast", backbone=backbone)
    seconds = time.perf_counter() - begin
    right = treering.load(draw.place / backbone).evaluate(draw.place / "val").accuracy()
    return {"network": backbone, "percent_right": right, "seconds": round(seconds, 1)}


def main() -> None:
    """Measure all draws of all sets; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", required=True, metavar="NAME=DIR[:CLASSES:TRAIN:VAL]")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    draws = []
    for number in range(options.draws):
        for given in options.set:
            name, _, where = given.partition("=")
            source, *limits = where.split(":")
            with tempfile.TemporaryDirectory() as place:
                draw = Draw(Path(source), Path(place), number, *[*map(int, limits), 0, 0, 0][:3])
                runs = [measured(draw, backbone) for backbone in NETWORKS]
            draws.append({"set": name, "draw": number, "photos": sum(draw.photos.values()), "runs": runs})
            sys.stderr.write(json.dumps(draws[-1]) + "\n")
            found = {"benchmark": "networks", "commit": commit.stdout.strip(), "draws": draws}
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
