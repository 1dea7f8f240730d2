"""Measure who should answer once a copy of the network is trained: the network as it came, the copy, or both together.

    python benchmarks/who_answers.py --set birds=DIR:CLASSES [--set NAME=DIR:CLASSES …] [--draws 0 1 2] --out FILE.json

Of DIR/train/<class>/<photo> a draw takes CLASSES classes and up to 45 photos of each. Two thirds of these, 25 at most,
are learnt as `treering learn` does; the others tell how often each way of answering is right. Beside that stands what
the judges say, the photos that are learnt but not trained on: how many each tells right, and by how many standard
errors their mean loss becomes less. No photo of DIR/val is used, since the rule by which treering chooses is made here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import treering
from treering.learner import Learner
from treering.methods import tuned
from treering.methods.left_out import Trial
from treering.runtime.commit import current_commit

MOST_PHOTOS, MOST_LEARNT = 45, 25


class Asked:
    """Keeps what the judges say, and has both networks stay, whatever that is."""

    def __init__(self) -> None:
        self.judged: dict[str, Any] = {}

    def __call__(self, frozen_NC: Tensor, tuned_NC: Tensor, labels_N: Tensor, judging_N: Tensor) -> Trial:
        gain, error, frozen, both = tuned._judged(frozen_NC, tuned_NC, labels_N, judging_N)
        alone = int((tuned_NC.argmax(1) == labels_N)[judging_N].sum())
        self.judged = {"judges": int(judging_N.sum()), "right": {"as it came": frozen, "both": both, "trained": alone}}
        self.judged |= {
            "standard_errors": round(gain / error, 2) if error else 0.0,
            "helped": gain > error and both >= frozen,
        }
        return Trial(int(judging_N.sum()), frozen, both, helped=True)


def link(source: Path, place: Path, classes: int, number: int) -> None:
    """Fill PLACE/learnt and PLACE/other with links to photos of SOURCE/train."""
    random = np.random.RandomState(100 + number)
    names = random.permutation(sorted(path.name for path in (source / "train").iterdir()))[:classes]
    for name in names.tolist():
        photos = np.array(sorted((source / "train" / name).iterdir()), dtype=object)
        chosen = random.permutation(photos)[:MOST_PHOTOS].tolist()
        learnt = min(MOST_LEARNT, 2 * len(chosen) // 3)
        for number_of_photo, photo in enumerate(chosen):
            folder = place / ("learnt" if number_of_photo < learnt else "other") / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / photo.name).symlink_to(photo.resolve())


def accuracies(learner: Learner, folder: Path) -> dict[str, float]:
    """Return how many percent of other photos each way of answering tells right."""
    model = learner.learnt_model()
    method = model.method
    assert isinstance(method, tuned.Tuned)
    right, count = dict.fromkeys(("as it came", "both", "trained"), 0), 0
    for own in sorted(folder.iterdir()):
        files = sorted(map(str, own.iterdir()))
        seen = method.plain(learner._asked(files))
        parts = [solved.network.predict_logits(seen).softmax(1) for solved in (method.frozen, method.tuned)]
        label, count = model.classes.index(own.name), count + len(files)
        for what, said in zip(right, (parts[0], parts[0] + parts[1], parts[1]), strict=True):
            right[what] += int((said.argmax(1) == label).sum())
    return {what: round(100 * number / count, 1) for what, number in right.items()}


def main() -> None:
    """Measure every draw of every set; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", required=True, metavar="NAME=DIR:CLASSES")
    parser.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2], metavar="NUMBER")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    asked = Asked()
    tuned.tried, tuned.tried_in_vain = asked, lambda *arguments: None
    found: dict[str, Any] = {"benchmark": "who_answers", "commit": current_commit(), "draws": []}
    for given in options.set:
        name, _, where = given.partition("=")
        source, _, classes = where.rpartition(":")
        for number in options.draws:
            with tempfile.TemporaryDirectory() as place:
                link(Path(source), Path(place), int(classes), number)
                treering.learn(Path(place) / "model", Path(place) / "learnt")
                right = accuracies(treering.load(Path(place) / "model"), Path(place) / "other")
            found["draws"].append({"set": name, "draw": number, "percent_right": right, **asked.judged})
            sys.stdout.write(json.dumps(found["draws"][-1]) + "\n")
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
