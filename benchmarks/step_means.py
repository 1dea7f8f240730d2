"""What it is worth to know the step: the same runs with every step's images normalised by that step's own mean.

    python benchmarks/step_means.py cifar100-2 cifar100-10 --data DIR [--classes N] [--set key=value] [--out FILE.json]

The authors' released code subtracts from all images of a step, test images included, the mean image of that step's
training images. So an image says which step its class came in, the more plainly the fewer classes a step has. treering
subtracts the first step's mean from all. Both are run here; `--classes` takes the first N of the class order.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treering import data, methods
from treering.data.stream import Dataset, ResidentImages, Stream, class_order
from treering.experiments.runner import StreamRun, current_commit, run_many
from treering.recipe import Recipe


def first_classes(dataset: Dataset, count: int, order: int) -> Dataset:
    """The first `count` classes of a class order, numbered anew."""
    chosen = class_order(len(dataset.class_names), order)[:count]
    number = np.full(len(dataset.class_names), -1)
    number[chosen] = np.arange(len(chosen))
    train, test = number[dataset.train_labels], number[dataset.test_labels]
    return Dataset(
        dataset.name,
        *(dataset.train_images[train >= 0], train[train >= 0]),
        *(dataset.test_images[test >= 0], test[test >= 0]),
        tuple(dataset.class_names[label] for label in chosen),
    )


def by_step_means(images: ResidentImages, steps: list[list[int]]) -> tuple[ResidentImages, float]:
    """Images that, less the first step's mean, are less their own step's; and how far apart the means are."""
    device = images.train_labels.device
    step_of_class = torch.empty(len(images.class_names), dtype=torch.long, device=device)
    for number, classes in enumerate(steps):
        step_of_class[torch.tensor(classes, device=device)] = number
    step_of_image = step_of_class[images.train_labels]
    means = torch.stack([images.train_images[step_of_image == number].float().mean(0) for number in range(len(steps))])
    shift = means[0] - means

    def shifted(pixels: Tensor, labels: Tensor) -> Tensor:
        return (pixels + shift[step_of_class[labels]]).round().clamp(0, 255).to(torch.uint8)

    moved = replace(
        images,
        train_images=shifted(images.train_images, images.train_labels),
        test_images=shifted(images.test_images, images.test_labels),
    )
    return moved, float((means - means.mean(0)).square().mean().sqrt())


def main() -> None:
    """Run both ways, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = methods.find_device("auto")
    runs, rows = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.recipes:
            recipe = Recipe.find(name).changed(options.set)
            dataset = data.load(recipe.run.dataset, options.data)
            if options.classes < len(dataset.class_names):
                dataset = first_classes(dataset, options.classes, recipe.run.order)
            images = ResidentImages.of(dataset, device)
            steps = Stream(images, recipe.run.classes_per_step, recipe.run.order).steps
            moved, spread = by_step_means(images, steps)
            for mean, shown in (("first step's", images), ("own step's", moved)):
                runs.append(StreamRun(recipe, shown, Path(folder) / mean))
                rows.append({"classes_per_step": recipe.run.classes_per_step, "mean": mean, "spread_of_means": spread})
        for row, outcome in zip(rows, run_many(runs), strict=True):
            if isinstance(outcome, Exception):
                raise outcome
            row |= {key: outcome[key] for key in ("average_without_first", "average", "accuracy", "device", "recipe")}
            print(  # noqa: T201
                f"{row['classes_per_step']:3} classes per step, mean image the {row['mean']}: "
                f"{row['average_without_first']:.1f} % (means {row['spread_of_means']:.1f} grey levels apart)"
            )
    if options.out:
        record: dict[str, Any] = {"benchmark": "step_means", "commit": current_commit(), "torch": torch.__version__}
        options.out.write_text(json.dumps(record | {"classes": options.classes, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
