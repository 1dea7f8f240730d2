"""What it is worth to know the step: the same runs with every step's images normalised by that step's own mean.

    python benchmarks/step_means.py cifar100-2 cifar100-10 --data DIR --results DIR [--classes N] [--set key=value]
                                    [--out FILE.json]

The authors' released code subtracts from all images of a step, test images included, the mean image of that step's
training images. So an image says which step its class came in, the more plainly the fewer classes a step has. treering
subtracts the first step's mean from all. Both are run here, with all classes or the first N of the class order; runs
that are in the folder of results already are not run again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treering import data
from treering.data.stream import Dataset, ResidentImages, Stream, class_order
from treering.experiments.run import StreamRun
from treering.experiments.scheduler import run_many
from treering.recipe import Recipe
from treering.runtime.device import find_device


def first_classes(dataset: Dataset, count: int, order: int) -> Dataset:
    """The first `count` classes of a class order, numbered so that the same order has them in the same sequence."""
    chosen = np.array(class_order(len(dataset.class_names), order)[:count])
    return dataset.only(chosen[np.argsort(class_order(len(chosen), order))].tolist())


def by_step_means(images: ResidentImages, steps: list[list[int]]) -> tuple[ResidentImages, float]:
    """Images that, less the first step's mean, are as those of treering less their own step's mean.

    Also how far the steps' means are from their average, in grey levels (root mean square).
    """
    device = images.train_labels.device
    step_of_class = torch.empty(len(images.class_names), dtype=torch.long, device=device)
    for number, classes in enumerate(steps):
        step_of_class[torch.tensor(classes, device=device)] = number
    step_of_image = step_of_class[images.train_labels]
    means = torch.stack([images.train_images[step_of_image == number].float().mean(0) for number in range(len(steps))])
    shift = means[0] - means

    def shifted(pixels: Tensor, labels: Tensor) -> Tensor:
        # Images are bytes: to the nearest grey level, and no darker than black or brighter than white.
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
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs: list[StreamRun] = []
    rows: list[dict[str, Any]] = []
    for name in options.recipes:
        recipe = Recipe.find(name).changed(options.set)
        dataset = data.load(recipe.run.dataset, options.data)
        if options.classes:
            dataset = first_classes(dataset, options.classes, recipe.run.order)
        images = ResidentImages.of(dataset, find_device("auto"))
        moved, spread = by_step_means(images, Stream(images, recipe.run.classes_per_step, recipe.run.order).steps)
        for mean_image, normalised in (("first-step", images), ("own-step", moved)):
            # A folder each: runs of one recipe have one name.
            runs.append(StreamRun(recipe, normalised, options.results / mean_image))
            rows.append({"mean_image": mean_image, "spread_of_means": spread, "classes": len(dataset.class_names)})
    for row, outcome in zip(rows, run_many(runs), strict=True):
        if isinstance(outcome, Exception):
            raise outcome
        kept = ("classes_per_step", "average_without_first", "average", "accuracy", "device", "versions", "commit")
        row |= {key: outcome[key] for key in (*kept, "recipe")}
        print(  # noqa: T201
            f"{row['classes_per_step']} classes per step, less the {row['mean_image']} mean: "
            f"{row['average_without_first']:.1f} % (means deviate by {row['spread_of_means']:.1f} grey levels)"
        )
    if options.out:
        options.out.write_text(json.dumps({"benchmark": "step_means", "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
