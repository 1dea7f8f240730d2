"""What further details of the authors' released code are worth, one at a time and together.

    python benchmarks/released_details.py RECIPE --data DIR --results DIR [--only NAME …] [--classes N]
                                          [--set key=value] [--out FILE.json]

- treering: as it is.
- teacher: the network that labels stage 2's images normalises them by the statistics of its batches, 256 exemplars or
  256 new images in random order with the copies of an image together, since the released code does not set it to test
  mode after loading it.
- heads: drawn from a normal distribution of deviation sqrt(2 / features), as MatConvNet draws convolutions.
- both: that teacher and those heads.
- shrinking: old classes lose exemplars at random, since the released code stores them in random order.
- step-means: each step's images less the mean image of that step, which tells the network the step (step_means.py).
- released: all of these.
- shortcuts: the first of each stage is a random 1 x 1 convolution that never learns, as in ResNet-Matconvnet, by which
  the first network is to be trained; He et al. take every second pixel and add empty channels. Trains without kernels.
- everything: all of these. Not in it: the released code trains the first step for 100 epochs with settings of its own,
  never crops at the last of the nine offsets, and pads crops of old exemplars for the current step's mean.
- mean: no detail of that code but a neutral centre, the mean image of all classes, those to come included.
- bfloat16: no detail of that code: the precision in which treering trains on a GPU, on a CPU too.
- one-softmax: no detail of that code: the old heads are distilled as if they were one, by one softmax over all of them.

Runs that are in the folder of results already are not run again, so give a new folder to changed code; on a GPU the
others run at once. What was measured is added to FILE.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from step_means import by_step_means, first_classes
from torch import Tensor, nn
from torch.nn import functional as F

from treering import data, methods
from treering.core import augment, backbones, losses
from treering.core.backbones import ResidualBlock, ResNet
from treering.core.network import IncrementalNetwork
from treering.data.stream import ResidentImages, Stream
from treering.experiments.run import StreamRun
from treering.experiments.scheduler import run_many
from treering.methods.eeil import EEIL
from treering.recipe import Recipe
from treering.runtime.device import find_device
from treering.runtime.pixels import Images

BATCH = 256
"""Images that the released code labels at once."""

ALONE = ("teacher", "heads", "shrinking", "step-means", "shortcuts", "mean", "bfloat16", "one-softmax")
DETAILS = {name: {name} for name in ALONE} | {"treering": set(), "both": {"teacher", "heads"}}
DETAILS |= {"released": {"teacher", "heads", "shrinking", "step-means"}}
DETAILS |= {"everything": DETAILS["released"] | {"shortcuts"}}


class WithDetails(EEIL):
    """EEIL with some details of the released code."""

    details: set[str]

    def _soft_targets(self, teacher: IncrementalNetwork, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
        usual, stage_2 = super()._soft_targets(teacher, classes), 0 < classes < self.network.classes

        def targets_of(images: Tensor, labels: Tensor) -> Tensor:
            heads = teacher.head_of_class
            if "one-softmax" in self.details:
                teacher.head_of_class = self._as_two_heads(heads)
            try:
                if "teacher" in self.details and stage_2:
                    return self._by_batch_statistics(teacher, classes, images, labels)
                return usual(images, labels)
            finally:
                teacher.head_of_class = heads

        return targets_of

    def _by_batch_statistics(self, teacher: IncrementalNetwork, classes: int, images: Tensor, labels: Tensor) -> Tensor:
        """Label by a teacher in training mode, old and new classes apart."""
        network = copy.deepcopy(teacher).train()
        network.engine.mixed_precision = False  # as where it is in evaluation mode
        logits = torch.zeros(len(images), network.classes, device=network.device)
        is_new, originals = labels >= classes, len(labels) // augment.copies(self.recipe.augmentation)
        # Images in random order, the copies of each together.
        images_in_order = torch.randperm(originals, generator=self.generator, device=labels.device)
        in_order = torch.arange(len(is_new), device=labels.device).view(-1, originals).T[images_in_order].flatten()
        with torch.no_grad():
            for rows in (in_order[~is_new[in_order]], in_order[is_new[in_order]]):
                for part in rows.tensor_split(max(1, round(len(rows) / BATCH))):
                    logits[part] = network(images[part])[:, : network.classes]
        soft = losses.soft_targets(logits, network.head_of_class[: network.classes], self.recipe.temperature)
        targets = torch.zeros(len(images), self.network.columns, device=images.device)
        targets[:, :classes] = soft[:, :classes]
        return targets

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        if "one-softmax" in self.details:
            head_of_class_C = self._as_two_heads(head_of_class_C)
        return super().loss(logits_NC, labels_N, targets_NC, head_of_class_C)

    def _as_two_heads(self, head_of_class: Tensor) -> Tensor:
        """The newest head and, as one, all before it; spare columns stay what they are."""
        spare = head_of_class == len(head_of_class)
        newest = head_of_class.masked_fill(spare, 0).amax()
        return torch.where(spare, head_of_class, (head_of_class == newest).long())

    def update_memory(self, candidates: dict[int, Images]) -> None:
        super().update_memory(candidates)
        if "shrinking" in self.details:
            for label, images in self.memory.exemplars.items():
                order = torch.randperm(len(images), generator=self.generator, device=self.generator.device)
                self.memory.store(label, images[order])


class WithFixedShortcut(ResidualBlock):
    """A block whose shortcut keeps the weights it was drawn with."""

    fixed: Tensor

    def shortcut(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.fixed, stride=self.stride)


def with_fixed_shortcuts(name: str, channels: int) -> nn.Module:
    """The named residual network, its other weights drawn as without them."""
    features = backbones.BACKBONES[name](channels)
    assert isinstance(features, ResNet)
    draws = torch.Generator().manual_seed(torch.initial_seed())
    stages = 3
    for block in list(features.body)[:: len(features.body) // stages]:
        assert isinstance(block, ResidualBlock)
        outputs, inputs = block.convolution1.weight.shape[:2]
        block.__class__ = WithFixedShortcut
        block.register_buffer("fixed", torch.randn(outputs, inputs, 1, 1, generator=draws) * (2 / inputs) ** 0.5)
    return features


for backbone in ("resnet32", "small"):
    backbones.BACKBONES[f"{backbone}-fixed"] = functools.partial(with_fixed_shortcuts, backbone)


def draw_heads_as_matconvnet(network: IncrementalNetwork) -> None:
    """Every head that is added from now on."""
    add_head = network.add_head

    def add_and_draw(size: int, generator: torch.Generator) -> None:
        add_head(size, generator)
        with torch.no_grad():
            new = network.weight[network.classes - size : network.classes]
            new.normal_(0, (2 / network.feature_size) ** 0.5, generator=generator)

    network.add_head = add_and_draw  # type: ignore[method-assign]


def prepared(name: str, recipe: Recipe, images: ResidentImages, folder: Path) -> StreamRun:
    """A run that differs from treering's in these details."""
    details = DETAILS[name]
    if "shortcuts" in details:
        recipe = replace(recipe, backbone=f"{recipe.backbone}-fixed")
    if "step-means" in details:
        images, _ = by_step_means(images, Stream(images, recipe.run.classes_per_step, recipe.run.order).steps)
    method = type("WithTheseDetails", (WithDetails,), {"details": details})
    with patch.dict(methods.METHODS, eeil=method):
        run = StreamRun(recipe, images, folder / name)
    network = run.method.network
    if "heads" in details:
        draw_heads_as_matconvnet(network)
    if "bfloat16" in details:
        network.engine.mixed_precision = True
    if "mean" in details:
        network.mean_image.copy_(images.train_images.float().mean(0) / recipe.pixel_scale)
    return run


def main() -> None:
    """Run each, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=sorted(DETAILS), default=sorted(DETAILS))
    parser.add_argument("--classes", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    recipe = Recipe.find(options.recipe).changed(options.set)
    dataset = data.load(recipe.run.dataset, options.data)
    if options.classes:
        dataset = first_classes(dataset, options.classes, recipe.run.order)
    images = ResidentImages.of(dataset, find_device("auto"))
    record = json.loads(options.out.read_text()) if options.out and options.out.exists() else {"runs": []}
    outcomes = run_many([prepared(name, recipe, images, options.results) for name in options.only])
    for name, result in zip(options.only, outcomes, strict=True):
        if isinstance(result, Exception):
            continue
        kept = ("average_without_first", "average", "accuracy", "device", "versions", "commit", "recipe")
        measured = {"detail": name, "classes": len(dataset.class_names)} | {key: result[key] for key in kept}
        if measured not in record["runs"]:
            record["runs"].append(measured)
        print(f"{name}: {result['average_without_first']:.1f} %", flush=True)  # noqa: T201
    if options.out:
        options.out.write_text(json.dumps({"benchmark": "released_details"} | record, indent=1) + "\n")
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


if __name__ == "__main__":
    main()
