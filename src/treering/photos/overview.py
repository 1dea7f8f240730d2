"""What a model folder holds: its classes by step, memory and sizes on disk, and its exemplars as one picture."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from treering.errors import TreeringError
from treering.learner import Learner
from treering.model import recipe_of
from treering.runtime import files
from treering.storage import manifest as manifests
from treering.storage import model_folder, names
from treering.storage.folder import Folder
from treering.storage.manifest import Manifest
from treering.words import shown

THUMBNAIL, GAP, NAME_WIDTH = 72, 4, 190
"""The sizes in the gallery, in pixels."""
MOST_EXEMPLARS = 40
"""The most exemplars of a class in the gallery; the others are counted."""
MOST_ROWS = 200
"""The most classes in the gallery, which is then about 15,000 pixels tall; the others are counted."""


@dataclass(frozen=True)
class Overview:
    """All that `treering info` shows."""

    steps: list[dict[str, Any]]
    """The model's history: time, new classes, images and accuracy of each step."""
    memory: dict[str, int]
    """The number of exemplars of each class."""
    held_out: dict[str, int]
    recipe: dict[str, Any]
    bytes_by_kind: dict[str, int]
    earlier_versions: int
    unfinished: bool
    """Whether a `treering learn` is running or was interrupted, maybe while it trained for the last step."""


def of(path: Path) -> Overview:
    """Return the overview of a model folder, without loading the network."""
    return model_folder.consistently(path, read)


def read(folder: Folder, manifest: Manifest) -> Overview:
    """Return the overview of one version in an open model folder."""
    labels = [str(label) for label in manifest.classes]
    files = [item for item in folder.walk() if item.kind == "file"]

    def size(pattern: re.Pattern[str]) -> int:
        return sum(item.size for item in files if names.fits(pattern, item.name))

    sizes = {"weights": size(names.WEIGHTS), "memory": 0, "held-out images": 0}
    for item in files:
        if names.fits(names.IMAGE, item.name):
            sizes["memory" if item.name.startswith("memory/") else "held-out images"] += item.size
    sizes["other"] = sum(item.size for item in files) - sum(sizes.values())
    history = model_folder.history_of(folder, manifest)
    return Overview(
        history,
        {name: len(part) for name, part in zip(labels, manifest.files.memory, strict=True)},
        {name: len(part) for name, part in zip(labels, manifest.files.held_out, strict=True)},
        recipe_of(folder, manifest).to_dict(),
        sizes,
        len(manifests.earlier_than(folder, manifest)),
        folder.exists(names.LEARNING) or bool(history[-1].get("unfinished")),
    )


def draw_gallery(learner: Learner, picture: Path) -> None:
    """Draw the exemplars of each class, best first, with one row per class and a last one if there are more classes."""
    kept = learner.exemplars_
    rows = [(shown(str(name)), ranked) for name, ranked in itertools.islice(kept.items(), MOST_ROWS)]
    if not rows:
        raise TreeringError("the model keeps no exemplars to draw")
    cell = THUMBNAIL + GAP
    width = NAME_WIDTH + cell * min(max(len(ranked) for _, ranked in rows), MOST_EXEMPLARS + 1) + GAP
    page = Image.new("RGB", (width, cell * (len(rows) + (len(kept) > MOST_ROWS)) + GAP), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    for row, (name, ranked) in enumerate(rows):
        top = GAP + row * cell
        name = name if len(name) <= NAME_WIDTH else name[:NAME_WIDTH] + "…"
        while draw.textlength(name, font) > NAME_WIDTH - 2 * GAP:
            name = name[:-2] + "…"
        draw.text((GAP, top + THUMBNAIL // 2), name, "black", font, anchor="lm")
        for column, pixels in enumerate(ranked[:MOST_EXEMPLARS]):
            image = Image.fromarray(np.squeeze(pixels)).convert("RGB").resize((THUMBNAIL, THUMBNAIL))
            page.paste(image, (NAME_WIDTH + column * cell, top))
        if len(ranked) > MOST_EXEMPLARS:
            more = f"and {len(ranked) - MOST_EXEMPLARS}"
            draw.text((NAME_WIDTH + MOST_EXEMPLARS * cell, top + THUMBNAIL // 2), more, "black", font, anchor="lm")
    if len(kept) > MOST_ROWS:
        draw.text((GAP, cell * len(rows) + cell // 2), f"and {len(kept) - MOST_ROWS} more", "black", font, anchor="lm")
    files.write_picture(picture, lambda stream: page.save(stream, "PNG"))
