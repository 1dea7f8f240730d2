"""Draws pictures of things, teaches a model them in three steps, and photographs its page for docs/serving.md.

    python benchmarks/page_picture.py [--out docs/page.png]

It needs the extras `serve` and `dev`, and Chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from playwright.sync_api import sync_playwright

from treering.photos import learn as photos

SIDE = 240
PHOTOS = 10
STEPS = (("fir", "house", "moon", "boat", "sun"), ("mushroom", "star"), ("fish", "balloon", "kite"))
Point = tuple[float, float]
Draw = Callable[[Sequence[Point], tuple[int, ...]], None]


def parts_of(name: str, random: np.random.RandomState) -> list[tuple[str, list[Point], tuple[int, ...]]]:
    """Return the polygons and ellipses of a thing, in a square from -1 to 1, each with its colour."""
    tone = tuple(int(value) for value in random.randint(-25, 26, 3))

    def colour(*rgb: int) -> tuple[int, ...]:
        return tuple(int(np.clip(part + more, 0, 255)) for part, more in zip(rgb, tone, strict=True))

    turns = np.linspace(0, 2 * np.pi, 11)[:-1] - np.pi / 2
    star = [(r * np.cos(a), r * np.sin(a)) for a, r in zip(turns, [0.95, 0.4] * 5, strict=True)]
    rays = np.linspace(0, 2 * np.pi, 33)[:-1]
    shine = [(r * np.cos(a), r * np.sin(a)) for a, r in zip(rays, [0.95, 0.7] * 16, strict=True)]
    green, brown, red, gold, white = (
        *(colour(38, 102, 56), colour(110, 72, 40), colour(196, 52, 44), colour(240, 190, 60), colour(238, 236, 228)),
    )
    blue = colour(60, 110, 170)
    return {
        "fir": [
            ("polygon", [(-0.12, 0.95), (0.12, 0.95), (0.12, 0.6), (-0.12, 0.6)], brown),
            ("polygon", [(-0.75, 0.65), (0.75, 0.65), (0, -0.15)], green),
            ("polygon", [(-0.55, 0.1), (0.55, 0.1), (0, -0.6)], green),
            ("polygon", [(-0.35, -0.4), (0.35, -0.4), (0, -0.95)], green),
        ],
        "house": [
            ("polygon", [(-0.7, 0.9), (0.7, 0.9), (0.7, -0.1), (-0.7, -0.1)], white),
            ("polygon", [(-0.9, -0.1), (0.9, -0.1), (0, -0.85)], red),
            ("polygon", [(-0.15, 0.9), (0.2, 0.9), (0.2, 0.3), (-0.15, 0.3)], brown),
        ],
        "moon": [
            ("ellipse", [(-0.8, -0.8), (0.8, 0.8)], gold),
            ("ellipse", [(-0.35, -0.85), (0.95, 0.6)], (28, 34, 64)),
        ],
        "boat": [
            ("polygon", [(-0.9, 0.4), (0.9, 0.4), (0.55, 0.9), (-0.55, 0.9)], brown),
            ("polygon", [(-0.05, 0.3), (-0.05, -0.95), (0.75, 0.3)], white),
            ("polygon", [(-0.15, 0.3), (-0.15, -0.7), (-0.65, 0.3)], red),
        ],
        "sun": [("polygon", shine, gold), ("ellipse", [(-0.55, -0.55), (0.55, 0.55)], colour(250, 214, 90))],
        "mushroom": [
            ("polygon", [(-0.22, 0.9), (0.22, 0.9), (0.16, 0), (-0.16, 0)], white),
            ("polygon", [(-0.85, 0.1), (-0.6, -0.5), (0, -0.8), (0.6, -0.5), (0.85, 0.1)], red),
            ("ellipse", [(-0.4, -0.45), (-0.15, -0.2)], white),
            ("ellipse", [(0.15, -0.55), (0.4, -0.3)], white),
        ],
        "star": [("polygon", star, gold)],
        "fish": [
            ("ellipse", [(-0.6, -0.4), (0.75, 0.4)], blue),
            ("polygon", [(-0.45, 0), (-0.95, -0.45), (-0.95, 0.45)], blue),
            ("ellipse", [(0.4, -0.15), (0.52, -0.03)], white),
        ],
        "balloon": [
            ("ellipse", [(-0.6, -0.95), (0.6, 0.4)], red),
            ("polygon", [(-0.18, 0.95), (0.18, 0.95), (0.22, 0.65), (-0.22, 0.65)], brown),
        ],
        "kite": [
            ("polygon", [(0, -0.95), (0.6, -0.2), (0, 0.7), (-0.6, -0.2)], blue),
            ("polygon", [(0, -0.95), (0.6, -0.2), (0, -0.2)], gold),
        ],
    }[name]


def picture(name: str, seed: int) -> Image.Image:
    """Return a picture of a thing, somewhere on a paper of some colour."""
    random = np.random.RandomState(seed)
    backs = {"moon": (28, 34, 64), "fish": (170, 206, 214), "boat": (186, 212, 226)}
    back = np.array(backs.get(name, (214, 222, 196) if random.rand() < 0.5 else (232, 222, 204)))
    shade = np.linspace(-14, 14, 2 * SIDE)[:, None, None] + random.normal(0, 5, (2 * SIDE, 2 * SIDE, 1))
    image = Image.fromarray((back + shade).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    scale, angle = random.uniform(0.55, 0.85) * SIDE, random.uniform(-0.25, 0.25)
    middle = SIDE + random.uniform(-0.12, 0.12, 2) * SIDE
    for kind, points, colour in parts_of(name, random):
        if kind == "ellipse":
            box = [tuple(middle + scale * np.array(point)) for point in points]
            draw.ellipse([*box[0], *box[1]], fill=colour)
        else:
            turned = [(x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)) for x, y in points]
            draw.polygon([tuple(middle + scale * np.array(point)) for point in turned], fill=colour)
    return image.filter(ImageFilter.GaussianBlur(1.2)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)


def photograph(address: str, asked: Path, out: Path) -> None:
    """Ask the page about a picture, and write what it looks like then."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        view = browser.new_page(viewport={"width": 1280, "height": 1000}, locale="en-GB")
        view.goto(address)
        view.wait_for_selector("body.ready")
        view.set_input_files("#ask-files", str(asked))
        view.wait_for_selector("#nearest figure")
        view.wait_for_timeout(1000)
        view.screenshot(path=str(out))
        browser.close()
    with Image.open(out) as image:
        small = image.convert("RGB").resize((960, 750), Image.Resampling.LANCZOS)
    small.quantize(200, dither=Image.Dither.NONE).save(out, optimize=True)


def main() -> None:
    """Draw, teach, serve and photograph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/page.png"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["XDG_STATE_HOME"] = str(place / "state")
        for number, names in enumerate(STEPS):
            for kind, name in enumerate(names):
                (place / f"{number}" / name).mkdir(parents=True)
                for seed in range(PHOTOS):
                    picture(name, 1000 * number + 100 * kind + seed).save(place / f"{number}" / name / f"{seed}.png")
            photos.learn(place / "things", place / f"{number}", effort="fast")
        picture("fir", 9999).save(place / "asked.png")
        command = [sys.executable, "-m", "treering", "serve", str(place / "things"), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found, "the server does not start"
            photograph(found[0], place / "asked.png", options.out)
            server.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
