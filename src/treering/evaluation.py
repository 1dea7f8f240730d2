"""How many images of a folder a model gets right, class by class, and the picture of what it takes them for."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treering.errors import TreeringError
from treering.images import arrays, folders
from treering.model import Model
from treering.prediction import Teller
from treering.runtime import files
from treering.words import shown

MOST_NAMES = 250
"""The most classes that a picture of the confusion matrix names; with more it names every second, third and so on."""


def teller(model: Model) -> Teller:
    """Return what answers by this model."""
    channels, size, _ = model.image_shape
    names = [str(name) for name in model.sorted_classes()]
    usual = model.usual_distances
    return Teller(names, size, channels, lambda images: model.answers(arrays.as_images(images)), usual)


@dataclass(frozen=True)
class Evaluation:
    """The number of images of a folder that a model gets right."""

    classes: list[str]
    """The model's classes, in the order they were learnt."""
    counts: dict[int, Counter[int]]
    """The number of images of each class that has any, by the class they are taken for; classes are told by index."""
    new_classes: set[str]
    """The classes that the last step brought."""
    skipped: list[tuple[Path, str]]
    refused: int | None = None
    """How many of the images the model calls unknown; None if it cannot tell."""
    foreign: int = 0
    """The number of images of classes that the model does not know, if it can tell unknown ones."""
    foreign_refused: int = 0
    """How many of these the model calls unknown."""

    @property
    def images(self) -> int:
        return sum(row.total() for row in self.counts.values())

    @property
    def confusion(self) -> list[list[int]]:
        """The number of images of each class (row) by the class they are taken for (column)."""
        columns = range(len(self.classes))
        return [[self.counts[row][column] if row in self.counts else 0 for column in columns] for row in columns]

    def accuracy(self, classes: Sequence[str] | None = None) -> float | None:
        """Return the accuracy in percent over the images of these classes; None if there are none."""
        wanted = set(self.classes if classes is None else classes)
        rows = {index: row for index, row in self.counts.items() if self.classes[index] in wanted}
        total = sum(row.total() for row in rows.values())
        return 100 * sum(row[index] for index, row in rows.items()) / total if total else None

    def most_confused(self, index: int) -> tuple[str, int]:
        """Return the class that this class is most often taken for instead, and how often; no name if it never is."""
        row = self.counts.get(index, Counter())
        count, name = max(((row[column], self.classes[column]) for column in row if column != index), default=(0, ""))
        return name, count


def evaluate(model: Model, folder: Path) -> Evaluation:
    """Count which class the model takes each image of `folder` for; the folder is laid out as for learning."""
    names = [str(name) for name in model.classes]
    found = folders.scan(folder)
    skipped = list(found.skipped)
    number = {name: index for index, name in enumerate(names)}
    counts: dict[int, Counter[int]] = {}
    asked = teller(model).refusing()
    unknown: dict[bool, list[bool | None]] = {True: [], False: []}
    for name, paths in found.classes.items():
        known = name in number
        if not known:
            skipped.append((paths[0].parent, "the model does not know this class"))
        for prediction in asked.predictions(paths, top=1) if known or asked.threshold is not None else ():
            if prediction.error:
                skipped.append((prediction.file, prediction.error))
                continue
            unknown[known].append(prediction.unknown)
            if known:
                counts.setdefault(number[name], Counter())[number[prediction.classes[0][0]]] += 1
    if not counts:
        raise TreeringError(f"{folder} has no image of a class that the model knows: it knows {', '.join(names[:10])}")
    new = {str(name) for name in model.history[-1]["new_classes"]} if len(model.history) > 1 else set()
    refused = None if asked.threshold is None else unknown[True].count(True)
    foreign = unknown[False]
    return Evaluation(names, dict(sorted(counts.items())), new, skipped, refused, len(foreign), foreign.count(True))


def require_drawing(picture: Path) -> None:
    """Raise if a picture cannot be drawn to this file; this saves long work in vain."""
    files.require_png(picture)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise TreeringError("the picture needs matplotlib: pip install 'treering[photos]'") from None


def draw_confusion(evaluation: Evaluation, picture: Path) -> None:
    """Draw the confusion matrix to a PNG file; classes without images are left out."""
    require_drawing(picture)
    from matplotlib.figure import Figure

    counts = evaluation.counts
    rows, columns = sorted(counts), sorted({*counts, *(column for row in counts.values() for column in row)})
    shares = np.array([[100 * counts[row][column] / counts[row].total() for column in columns] for row in rows])
    cell = min(0.32, 27.0 / len(columns))  # inches; the page is 4,680 pixels wide at most
    side = 3.0 + cell * len(columns)
    every = -(-len(columns) // MOST_NAMES)  # rounded up
    size = min(10.0, 60 * cell * every)  # points, 72 per inch: a name is less tall than its cells
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    names = [short_name(name) for name in evaluation.classes]
    axes.set_xticks(range(0, len(columns), every), [names[index] for index in columns[::every]], rotation=90, size=size)
    axes.set_yticks(range(0, len(rows), every), [names[index] for index in rows[::every]], size=size)
    axes.set(xlabel="taken for", ylabel="class")
    if len(columns) <= 30:
        for (row, column), share in np.ndenumerate(shares):
            if share:
                colour = "white" if share > 55 else "black"
                axes.text(column, row, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=7)
    figure.colorbar(image, shrink=0.6, label="% of the class's images")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks
        files.write_picture(picture, lambda stream: figure.savefig(stream, dpi=150, format="png"))


def short_name(name: str) -> str:
    """Return a class's name as a picture shows it."""
    plain = shown(name).replace("$", r"\$")
    return plain if len(plain) <= 24 else plain[:23] + "…"
