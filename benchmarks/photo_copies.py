"""How well copies of photos are recognised, and how long that takes.

    python benchmarks/photo_copies.py FOLDER... [--photos 3000] [--many 30000] [--out FILE.json]

For each folder of photos: how many pairs of different photos are taken for one, and what share of the photos is
recognised after each of several changes. For `--many` photos that differ: the time.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from treering.images import files
from treering.photos.copies import Album, Shown
from treering.runtime import pixels

SIZE = 224


def changed(photo: Image.Image) -> Iterator[tuple[str, Image.Image]]:
    """Yield copies of a photo as they come about, and its mirror image, which is none."""
    width, height = photo.size
    across, down = round(0.03 * width), round(0.03 * height)

    def compressed(image: Image.Image) -> Image.Image:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=40)
        return Image.open(buffer)

    half = photo.resize((width // 2, height // 2), Image.Resampling.BICUBIC)
    corner = photo.crop((0, 0, width - across, height - down))
    yield "JPEG of quality 40", compressed(photo)
    yield "half the size", half
    yield "10 % brighter", photo.point(lambda value: min(255, int(1.1 * value)))
    yield "10 % darker", photo.point(lambda value: int(0.9 * value))
    yield "3 % less, in the middle", photo.crop((across // 2, down // 2, width - across // 2, height - down // 2))
    yield "3 % less, in a corner", corner
    yield "3 % less on each side", photo.crop((across, down, width - across, height - down))
    both = corner.resize(half.size).point(lambda value: min(255, int(1.1 * value)))
    yield "corner, half the size, brighter, quality 40", compressed(both)
    yield "mirrored (not a copy)", photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def square(image: Image.Image) -> torch.Tensor:
    """Return a photo as `treering learn` has it."""
    small = files.opaque(image).resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).movedim(-1, 0)


def measure(folder: Path, most: int) -> dict[str, Any]:
    """Return what is recognised of the photos of a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    paths = paths[:: max(1, len(paths) // most)][:most]
    rows: dict[str, list[torch.Tensor]] = {}
    for path in paths:
        with Image.open(path) as photo:
            rows.setdefault("", []).append(square(photo))
            for change, copy in changed(photo.convert("RGB")):
                rows.setdefault(change, []).append(square(copy))
    originals = torch.stack(rows.pop(""))
    album = Album()
    album.add(originals, [Shown("", path) for path in paths], pixels.digests(originals))
    same = {one: other for one, other in album.come_before(0).items() if not album.is_exact(one, other)}
    shares = {}
    for change, copies in rows.items():
        images, both = torch.stack(copies), Album()
        for part in (originals, images):
            both.add(part, album.photos, pixels.digests(part))
        found = both.come_before(len(paths), among_themselves=False)
        shares[change] = round(sum(other == one - len(paths) for one, other in found.items()) / len(paths), 4)
    named = [[str(paths[number].relative_to(folder)) for number in pair] for pair in same.items()]
    return {"photos": len(paths), "different_taken_for_one": len(same), "pairs": named[:20], "recognised": shares}


def timed(count: int) -> dict[str, Any]:
    """Return how long it takes to make small pictures of so many photos, all of which differ, and to compare them."""
    torch.manual_seed(0)
    album, seconds = Album(), 0.0
    for start in range(0, count, 500):
        coarse = torch.rand(min(500, count - start), 3, 8, 8)
        part = (255 * torch.nn.functional.interpolate(coarse, size=SIZE, mode="bilinear")).to(torch.uint8)
        digests = [number.to_bytes(4, "big") for number in range(start, start + len(part))]
        begun = time.monotonic()
        album.add(part, [Shown("")] * len(part), digests)
        seconds += time.monotonic() - begun
    begun = time.monotonic()
    found = album.come_before(0)
    compared = round(time.monotonic() - begun, 1)
    return {"photos": count, "small_seconds": round(seconds, 1), "compare_seconds": compared, "found": len(found)}


def main() -> None:
    """Measure, print and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--photos", type=int, default=3000)
    parser.add_argument("--many", type=int, default=30_000)
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    record: dict[str, Any] = {folder.name: measure(folder, settings.photos) for folder in settings.folders}
    record["time"] = timed(settings.many)
    text = json.dumps(record, indent=1)
    if settings.out:
        settings.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
