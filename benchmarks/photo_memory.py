"""Peak memory of learning from a folder of many photos, beyond that of the framework and the network.

    python benchmarks/photo_memory.py [--images 20000] [--classes 100] [--out FILE.json]

Makes a folder of small JPEG files, learns it for one epoch with the `photos` recipe in a process of its own and reads
that process's peak resident memory before and after.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

LEARN = """
import resource, sys
from pathlib import Path
import torch
from treering.core import backbones
from treering.photos import learn as photos
from treering.runtime import allocator

allocator.keep()
network = backbones.build("efficientnet-lite0", 3, 0)
network(torch.zeros(2, 3, 128, 128)).sum().backward()
framework = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
changes = ["training.epochs=1", "training.most_images=0", "balanced.epochs=0"]
photos.learn(Path(sys.argv[2]), Path(sys.argv[1]), changes=changes, device="cpu")
print(framework, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def make_folder(folder: Path, images: int, classes: int) -> None:
    """Noisy photos of 160 x 120 pixels, the same number of each class."""
    random = np.random.RandomState(0)
    for number in range(images):
        place = folder / f"class {number % classes:03d}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = random.randint(0, 256, (6, 8, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((160, 120)).save(place / f"{number:06d}.jpg", quality=80)


def main() -> None:
    """Make the folder, learn it, print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder, model = Path(place) / "photos", Path(place) / "model"
        make_folder(folder, settings.images, settings.classes)
        command = [sys.executable, "-c", LEARN, str(folder), str(model)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    framework, peak = (int(part) / 2**20 for part in said[-2:])  # Linux counts in KiB
    result = {"images": settings.images, "framework_gib": framework, "peak_gib": peak, "beyond_gib": peak - framework}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    if settings.out:
        settings.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
