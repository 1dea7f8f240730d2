"""What a learner has learnt, and how it becomes a folder and back."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treering import methods
from treering.core import backbones
from treering.core.trainer import restore_generator
from treering.errors import TreeringError
from treering.images import arrays
from treering.methods.base import Method, Step
from treering.recipe import Budget, Recipe
from treering.runtime.pixels import Images, digests
from treering.session import own_precision
from treering.storage import model_folder
from treering.storage.model_folder import Content

logger = logging.getLogger(__name__)


@dataclass
class Model:
    """A method with its network and memory, and what its columns mean."""

    method: Method
    seed: int
    image_shape: tuple[int, ...]
    """C, H, W of the images as they were given."""
    classes: list[Hashable] = field(default_factory=list)
    """The label of each column."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record per step."""
    held_out: dict[int, Tensor] = field(default_factory=dict)
    """The images of each column that only measure the accuracy and are never trained on."""

    def sorted_columns(self) -> list[int]:
        """Return the columns of the classes in the order in which users see them."""
        column = {name: index for index, name in enumerate(self.classes)}
        return [column[name] for name in in_order(set(self.classes))]

    def sorted_classes(self) -> list[Hashable]:
        """Return the classes in the order in which users see them."""
        return [self.classes[column] for column in self.sorted_columns()]

    def probabilities(self, pixels: Tensor) -> np.ndarray:
        """Return N x classes, in the order of `sorted_classes`, for images N x C x H x W of the model's shape."""
        self.require_shape(pixels.shape)
        with own_precision(self.method.network.device):
            probabilities = self.method.probabilities(pixels).double().cpu().numpy()
        probabilities = probabilities[:, self.sorted_columns()]
        return probabilities / probabilities.sum(1, keepdims=True)  # they summed to 1 in float32 only

    def require_shape(self, shape: Sequence[int]) -> None:
        """Raise if images N x C x H x W of this shape are not like those that were learnt."""
        if tuple(shape[1:]) != self.image_shape:
            given, learnt = (f"{h} x {w} pixels in {c} channel(s)" for c, h, w in (shape[1:], self.image_shape))
            raise TreeringError(f"images of {given} were given, but this learner has learnt images of {learnt}")

    def next_step(self, pixels: Images, names: Sequence[Hashable], budget: Budget) -> tuple[Step, Model]:
        """Return these images as a step, and the model as it will be once the step is learnt."""
        arrays.one_type(names, self.classes)
        self.require_shape(pixels.shape)
        new = in_order(set(names) - set(self.classes))
        column = {name: index for index, name in enumerate(self.classes + new)}
        counts = Counter(names)
        record = {
            "step": len(self.history) + 1,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "new_classes": new,
            "images": [[name, counts[name]] for name in in_order(set(names))],
        }
        quota = budget.held_out_quota(len(column)) if self.held_out else 0
        held_out = {label: part[:quota] for label, part in self.held_out.items() if quota}
        after = replace(self, classes=self.classes + new, history=[*self.history, record], held_out=held_out)
        device = self.method.network.device
        inside = pixels.to(device) if isinstance(pixels, Tensor) else pixels
        return Step(inside, torch.tensor([column[name] for name in names], device=device), len(new)), after

    def without_held_out(self, pixels: Images, names: list[Hashable]) -> tuple[Images, list[Hashable]]:
        """Leave out the images that are held out to measure the accuracy."""
        if not self.held_out:
            return pixels, names
        secret = set(digests(torch.cat(list(self.held_out.values()))))
        free = [index for index, digest in enumerate(digests(pixels)) if digest not in secret]
        lost = in_order(set(names) - {names[index] for index in free} - set(self.classes))
        if lost or not free:
            whose = f" of {lost[0]}" if lost else ""
            raise TreeringError(f"all images{whose} are held out of training to measure the accuracy: give others")
        if len(free) < len(names):
            logger.warning("%d of the images are left out: they are held out of training", len(names) - len(free))
        return pixels[torch.tensor(free)], [names[index] for index in free]

    def content(self) -> Content:
        """Return what a model folder holds of the model."""
        method = self.method
        state = method.generator.get_state().numpy().tobytes().hex()
        facts = {
            "recipe": method.recipe.to_dict(),
            "seed": self.seed,
            "classes": self.classes,
            "head_sizes": method.network.head_sizes,
            "steps": len(self.history),
            "image_shape": list(self.image_shape),
            "generator": {"device": method.generator.device.type, "state": state},
        }
        tensors, exemplars = method.tensors(), method.memory.exemplars
        return Content(facts, self.classes, tensors, exemplars, self.held_out, self.history)


def load(path: Path, backbone: nn.Module | None, device: torch.device) -> Model:
    """Read the model in a folder; a model that was learnt with a user's own module needs such a `backbone`."""
    return model_folder.consistently(path, functools.partial(_read, path, backbone, device))


def _read(path: Path, backbone: nn.Module | None, device: torch.device, manifest: dict[str, Any]) -> Model:
    recipe = Recipe.from_dict(manifest["recipe"])
    custom = recipe.backbone == "custom"
    if custom and backbone is None:
        raise TreeringError(
            f"{path} was learnt with a module of your own: load it with Learner.load(folder, backbone=module)"
        )
    if not custom and backbone is not None:
        raise TreeringError(
            f"{path} was learnt with the backbone {recipe.backbone}: load it without a backbone of your own"
        )
    content = model_folder.content_of(path, manifest)
    seed, shape = manifest["seed"], tuple(manifest["image_shape"])
    build = functools.partial(backbones.build, recipe.backbone, shape[0], seed)
    features = backbones.copied(backbone) if backbone is not None else build(pretrained=False)
    method = methods.create(recipe, features, torch.zeros_like(content.tensors["mean_image"]), seed, device)
    if backbone is None:
        method.start_from(build)
    try:
        method.load_tensors(manifest["head_sizes"], content.tensors)
    except ValueError as error:
        raise TreeringError(f"the weights in {path} do not fit the backbone {recipe.backbone}: {error}") from None
    for label, ranked in content.memory.items():
        method.memory.store(label, ranked.to(device))
    drawn = bytearray.fromhex(manifest["generator"]["state"])
    restore_generator(method.generator, torch.frombuffer(drawn, dtype=torch.uint8))
    return Model(method, seed, shape, manifest["classes"], content.history, dict(content.held_out))


def in_order(labels: set[Hashable]) -> list[Hashable]:
    """Sort labels; those that have no order are sorted by their text."""
    if any(isinstance(label, frozenset) for label in labels):  # < means "is a subset of" there
        return sorted(
            labels, key=lambda label: sorted(map(repr, label)) if isinstance(label, frozenset) else [repr(label)]
        )
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return sorted(labels, key=repr)
