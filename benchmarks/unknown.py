"""Measure how well treering tells photos of classes that a model knows from photos that resemble none of them.

    python benchmarks/unknown.py --known birds=DIR [--known NAME=DIR …] [--other signs=DIR …] [--size small] [--out F]

DIR has train/<class>/<photo> and val/<class>/<photo>. Of each known set a model learns two thirds of the classes from
`train`. Photos of these classes in `val` are then told by their distance from those of the other third, and from those
of each other set. The area under the ROC curve is the chance that an unknown photo is further away than a known one.
With the size small, nine classes, twelve photos of each to learn and five to tell are drawn, at 96 pixels.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import treering
from treering import evaluation
from treering.errors import TreeringError
from treering.images.files import read_in_parts
from treering.prediction import BATCH, Teller


@dataclass(frozen=True)
class Size:
    """How much of each set is used; None stands for all of it."""

    classes: int | None = None
    train: int | None = None
    val: int | None = None
    pixels: int | None = None


SIZES = {"full": Size(), "small": Size(classes=9, train=12, val=5, pixels=96)}


def photos_of(folder: Path, most: int | None) -> list[Path]:
    """Return some photos of a class."""
    order = np.random.RandomState(0).permutation(np.array(sorted(folder.iterdir()), dtype=object))
    return list(order[:most])


def classes_of(source: Path, size: Size) -> list[str]:
    """Return some classes of a set, in random order."""
    names = sorted(path.name for path in (source / "val").iterdir())
    return np.random.RandomState(0).permutation(names)[: size.classes].tolist()


def learnt(source: Path, names: Sequence[str], size: Size) -> Teller:
    """Return what answers by a model of these classes."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            place = Path(folder, "train", name)
            place.mkdir(parents=True)
            for photo in photos_of(source / "train" / name, size.train):
                (place / photo.name).symlink_to(photo.resolve())
        model = Path(folder, "model")
        treering.learn(model, Path(folder, "train"), size=size.pixels, effort="fast")
        return evaluation.teller(treering.load(model).learnt_model())


def distances(teller: Teller, source: Path, names: Sequence[str], size: Size) -> np.ndarray:
    """Return the distance of each photo of these classes in `val`."""
    paths = [photo for name in names for photo in photos_of(source / "val" / name, size.val)]
    found = []
    for decoded in read_in_parts(paths, teller.size, teller.channels, BATCH):
        good = [image for image in decoded if not isinstance(image, str)]
        measured = teller.answers(np.stack(good))[1] if good else np.zeros(0)
        if measured is None:
            raise TreeringError("this model cannot tell unknown photos: install treering's pretrained network")
        found.append(measured)
    return np.concatenate(found)


def area(known: np.ndarray, unknown: np.ndarray) -> float:
    """Return the chance that an unknown photo is further away than a known one; equal ones count half."""
    ordered = np.sort(known)
    nearer = np.searchsorted(ordered, unknown, "left") + np.searchsorted(ordered, unknown, "right")
    return float(nearer.mean() / 2 / len(known))


def measure(name: str, sets: dict[str, Path], size: Size) -> dict[str, Any]:
    """Measure one known set against its own other classes and against all other sets."""
    names = classes_of(sets[name], size)
    first = -(-2 * len(names) // 3)
    teller = learnt(sets[name], names[:first], size).refusing()
    known = distances(teller, sets[name], names[:first], size)
    unknown = {"unseen classes": distances(teller, sets[name], names[first:], size)}
    for other in sets.keys() - {name}:
        unknown[other] = distances(teller, sets[other], classes_of(sets[other], size), size)
    limit = teller.threshold if teller.threshold is not None else np.inf
    return {
        "classes": first,
        "known_photos": len(known),
        "percent_of_known_called_unknown": round(100 * float((known > limit).mean()), 1),
        "against": {
            what: {
                "photos": len(part),
                "area_under_roc": round(area(known, part), 4),
                "percent_called_unknown": round(100 * float((part > limit).mean()), 1),
            }
            for what, part in sorted(unknown.items())
        },
    }


def main() -> None:
    """Measure all known sets, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", action="append", required=True, metavar="NAME=DIR")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    known, others = ([given.partition("=")[::2] for given in part] for part in (options.known, options.other))
    sets = {name: Path(where) for name, where in (*known, *others)}
    found = {"benchmark": "unknown", "commit": commit.stdout.strip(), "size": options.size, "sets": {}}
    for name, _ in known:
        found["sets"][name] = measure(name, sets, SIZES[options.size])
        sys.stderr.write(f"{name}: {json.dumps(found['sets'][name])}\n")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
