"""What a learner has learnt, and how it becomes a folder and back."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from treering import methods, words
from treering.checked import require
from treering.core import augment, backbones
from treering.core.optim import OPTIMIZERS
from treering.core.trainer import InFlight, restore_generator
from treering.errors import TreeringError, is_out_of_memory
from treering.images import arrays
from treering.methods.base import Method, Step
from treering.recipe import Augmentation, Budget, Recipe
from treering.runtime.pixels import Images, digests, join
from treering.session import own_precision
from treering.storage import check as checks
from treering.storage import model_folder, resume
from treering.storage import tensors as stored
from treering.storage.folder import Folder
from treering.storage.manifest import COPY, LONGEST_SIDE, MOST_CLASSES, NAME, Manifest
from treering.storage.model_folder import Content
from treering.storage.tensors import Spec

logger = words.logger(__name__)

MOST_PIXELS = 2**20
"""The most pixels of what a network sees: 1024 x 1024, as for the largest photos that the command line offers."""


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
    held_out: dict[int, Images] = field(default_factory=dict)
    """The images of each column that only measure the accuracy and are never trained on."""

    def __post_init__(self) -> None:
        _, height, width = input_shape(self.method.recipe, self.image_shape)
        if height * width > MOST_PIXELS or max(self.image_shape[1:]) > LONGEST_SIDE:
            raise TreeringError(
                f"images of {height} x {width} pixels are too large for a network: give smaller ones, "
                f"of {MOST_PIXELS:,} pixels at most"
            )
        _require_padding(self.method.recipe, self.image_shape)

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
            return self._in_order(self.method.probabilities(pixels))

    def answers(self, pixels: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
        """Return `probabilities`, and how far each image is from the class that it resembles most, where measured."""
        self.require_shape(pixels.shape)
        with own_precision(self.method.network.device):
            probabilities_NC, distances_N = self.method.answers(pixels)
            return self._in_order(probabilities_NC), None if distances_N is None else _finite(distances_N)

    @property
    def usual_distances(self) -> np.ndarray | None:
        """Quantiles of the distances of images of known classes, where the model measures them."""
        usual = self.method.usual_distances
        return None if usual is None else usual.numpy()

    def _in_order(self, probabilities_NC: Tensor) -> np.ndarray:
        probabilities = _finite(probabilities_NC)[:, self.sorted_columns()]
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
        require(len(column) <= MOST_CLASSES, f"a model has {MOST_CLASSES:,} classes at most: begin another one")
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
        secret = set(digests(join(list(self.held_out.values()))))
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


def _finite(answers: Tensor) -> np.ndarray:
    found: np.ndarray = answers.double().cpu().numpy()
    if not np.isfinite(found).all():
        raise TreeringError("the model gives numbers that are not finite for these images: it cannot answer")
    return found


def load(path: Path, backbone: nn.Module | None, device: torch.device) -> Model:
    """Read the model in a folder; a model that was learnt with a user's own module needs such a `backbone`."""
    return model_folder.consistently(path, functools.partial(read, backbone, device))


def read(backbone: nn.Module | None, device: torch.device, folder: Folder, manifest: Manifest) -> Model:
    """Read one version in a model folder; see `load`."""
    path, recipe = folder.path, recipe_of(folder, manifest)
    custom = recipe.backbone == "custom"
    if custom and backbone is None:
        raise TreeringError(
            f"{path} was learnt with a module of your own: load it with Learner.load(folder, backbone=module)"
        )
    if not custom and backbone is not None:
        raise TreeringError(
            f"{path} was learnt with the backbone {recipe.backbone}: load it without a backbone of your own"
        )
    seed, shape = manifest.seed, manifest.image_shape
    history = model_folder.history_of(folder, manifest)
    method = _empty_method(folder, manifest, recipe, backbone, device)
    try:
        classes = len(manifest.classes)
        expected = specs_of(method.tensors(), classes)
        further = [specs_of(table, classes) for table in method.further_tensors()]
        tensors = model_folder.weights_of(folder, manifest, expected, method.any_number_of_rows, further)
        method.load_tensors(manifest.head_sizes, tensors)
        drawn = bytes.fromhex(manifest.generator.state)
        stored.require_generator_state(drawn)
        restore_generator(method.generator, torch.frombuffer(bytearray(drawn), dtype=torch.uint8))
    except TreeringError:
        raise
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise TreeringError(f"the weights in {path} do not fit the backbone {recipe.backbone}: {error}") from None
    memory, held_out = model_folder.images_of(folder, manifest, method.reads_memory)
    for label, ranked in memory.items():
        method.memory.store(label, ranked.to(device) if isinstance(ranked, Tensor) else ranked)
    return Model(method, seed, shape, list(manifest.classes), history, dict(held_out))


def examine(folder: Folder, manifest: Manifest) -> None:
    """Read a version completely, as far as its network can be built; raise if it cannot be used."""
    if recipe_of(folder, manifest).backbone == "custom":
        model_folder.history_of(folder, manifest)
        model_folder.images_of(folder, manifest, methods.find(manifest.recipe["method"]).reads_memory)
        model_folder.require_whole(folder, manifest, manifest.files.weights)
    else:
        read(None, torch.device("cpu"), folder, manifest)


def undo(path: str | os.PathLike[str]) -> None:
    """Go back to the version of a model folder before its last `save` or `treering learn`; raise if there is none.

    A version that cannot be used is not gone back to.
    """
    model_folder.undo(Path(path), examine)


def require_whole(path: Path) -> None:
    """Raise, naming the first file, if anything is wrong with any version in a model folder."""
    problems = checks.check(path, examine).problems
    if problems:
        raise TreeringError(problems[0])


def recipe_of(folder: Folder, manifest: Manifest) -> Recipe:
    """Return the recipe of a model, if a network of it can be built on any computer."""
    try:
        recipe = Recipe.from_dict(manifest.recipe)
        _, height, width = input_shape(recipe, manifest.image_shape)
        require(height * width <= MOST_PIXELS, f"its network sees {height} x {width} pixels, which are too many")
        _require_padding(recipe, manifest.image_shape)
        methods.find(recipe.method).check(recipe)
    except TreeringError as error:
        raise TreeringError(f"the recipe in {folder.path / NAME} is of no model: {error}") from None
    if methods.find(recipe.method).needs_exemplars():
        for label, ranked in zip(manifest.classes, manifest.files.memory, strict=True):
            if not ranked:
                what = f"files.memory has no exemplar of {words.shown(label)}, which {recipe.method} needs"
                raise TreeringError(f"{folder.path / NAME} describes no model, since {what}: {COPY}")
    return recipe


def _require_padding(recipe: Recipe, image_shape: Sequence[int]) -> None:
    """Raise if images would be padded by more than their side, which takes memory and teaches nothing."""
    most, padding = max(*image_shape[1:], Augmentation.padding), recipe.augmentation.padding
    require(padding <= most, f"augmentation.padding must be at most {most} for these images, not {padding}")


def input_shape(recipe: Recipe, image_shape: Sequence[int]) -> tuple[int, ...]:
    """Return C, H, W of what the network sees of images C x H x W."""
    seen = methods.find(recipe.method).outside_training(recipe)
    return (image_shape[0], *(augment.input_side(seen, side) for side in image_shape[1:]))


def _empty_method(
    folder: Folder, manifest: Manifest, recipe: Recipe, backbone: nn.Module | None, device: torch.device
) -> Method:
    """Build a model's method, which knows no class yet."""
    channels, seed = manifest.image_shape[0], manifest.seed
    build = functools.partial(backbones.build, recipe.backbone, channels, seed)
    shape = input_shape(recipe, manifest.image_shape)
    # A network of any size can be asked for in a few bytes, but one that was learnt has at least this much to show.
    outputs = recipe.outputs if methods.find(recipe.method).spare_outputs else 0
    least = 4 * (math.prod(shape) + outputs)
    if ":" in recipe.backbone:  # libraries have networks of gigabytes; those that need numbers to be built are let pass
        with contextlib.suppress(TreeringError), torch.device("meta"):
            least += 4 * sum(part.numel() for part in build(pretrained=False).parameters())
    if folder.size(manifest.files.weights.name) < least:
        model_folder.require_whole(folder, manifest, manifest.files.weights)
        raise TreeringError(f"{folder.path / manifest.files.weights.name} is too small for its model: {COPY}")
    features = backbones.copied(backbone) if backbone is not None else build(pretrained=False)
    method = methods.create(recipe, features, torch.zeros(shape), seed, device)
    if backbone is None:
        method.start_from(build)
    return method


def specs_of(tensors: Mapping[str, Tensor], classes: int) -> dict[str, Spec]:
    """Return what these tensors of a method are like once it knows so many classes."""
    specs = {name: Spec.of(tensor) for name, tensor in tensors.items()}
    for name, (dtype, shape) in specs.items():
        if shape[:1] == (0,) or name in ("weight", "bias"):  # it has a row for each class and for each spare column
            specs[name] = Spec(dtype, (max(shape[0], classes), *shape[1:]))
    return specs


def trained_specs(method: Method, classes: int) -> dict[str, Spec]:
    """Return what the tensors of the network that a method trains are like once it knows so many classes."""
    return specs_of(method.trainer.network.tensors(), classes)


def momenta_of(method: Method, classes: int) -> int:
    """Return how many values the optimiser of a method remembers in a step that leads to so many classes."""
    network = method.trainer.network
    parts = {name: part for name, part in network.named_parameters() if part.requires_grad}
    parameters = sum(part.numel() for name, part in parts.items() if name not in ("weight", "bias"))
    parameters += max(network.columns, classes) * (network.feature_size + 1)
    return OPTIMIZERS[method.recipe.optimizer.kind].remembered(parameters)


def require_fits(in_flight: InFlight, method: Method, recipe: Recipe, classes: int) -> None:
    """Raise ValueError unless an unfinished step can be the next one of a method, leading to so many classes."""
    stages = [stage for stage in method.plan_step(recipe, {0: 1}, method.replayed(recipe)) if stage.trains]
    schedules = [recipe.training, recipe.balanced][: len(stages)]
    resume.require_fits(in_flight, schedules, trained_specs(method, classes), momenta_of(method, classes))


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
