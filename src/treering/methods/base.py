"""What every method shares: a network, a memory, the training loop and one source of randomness."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from treering.core import augment, losses, selection
from treering.core.memory import Memory
from treering.core.network import IncrementalNetwork
from treering.core.trainer import DivergedError, Trainer, restore_generator
from treering.core.update import Constraint, TrainingSet, batch_plan
from treering.errors import TreeringError
from treering.methods.left_out import LeftOut
from treering.methods.plan import Counts, StagePlan
from treering.recipe import Augmentation, Recipe
from treering.runtime import free_memory, pixels
from treering.runtime.pixels import Images


@dataclass(frozen=True)
class Step:
    """One batch of new classes, perhaps with more images of known ones."""

    images: Images
    """N x C x H x W, uint8."""
    labels: Tensor
    """The column of each image; those of new classes follow the known ones."""
    new_classes: int

    def by_class(self) -> dict[int, Images]:
        """Return the images of each class that is in the step."""
        return {int(label): self.images[self.labels == label] for label in self.labels.unique()}


@dataclass(frozen=True)
class Snapshot:
    """Everything that a step changes."""

    head_sizes: list[int]
    tensors: dict[str, Tensor]
    """All that was learnt besides the exemplars."""
    columns: int
    unsaved: dict[str, Tensor]
    """The network's buffers that are not saved with it."""
    exemplars: dict[int, Images]
    generator: Tensor
    recipe: Recipe


class Method(ABC):
    """A way to learn a step. A subclass defines `learn_step`, `loss` and, unless it has one stage, `plan_step`."""

    keeps_memory = True
    """Whether the method stores exemplars within the recipe's budget."""
    keeps_everything = False
    """Whether it stores every image, whatever the budget."""
    budget_kinds: Sequence[str] = ("total", "per-class")
    """The kinds of budget that it can keep."""
    spare_outputs = False
    """Whether its network has outputs for later classes, which learn from the start."""
    unit_features = False
    """Whether its heads see each image's features scaled to length 1."""
    trains = True
    """Whether the network's features learn; else images only pass through it."""
    bounds_training = False
    """Whether `most_images` bounds how long it trains."""
    needs_memory = True
    """Whether a method that keeps exemplars cannot learn without any."""
    reads_memory = True
    """Whether a step looks at every exemplar; else most of them stay undecoded when a model is loaded."""
    compiles = True
    """Whether compiling its feature extractor pays, where no kernel serves."""
    any_number_of_rows: Mapping[str, int] = MappingProxyType({})
    """The names of its tensors whose number of rows nothing else tells, and the most rows that each may have."""

    forgets = True
    """Whether a class can be taken out of what it has learnt."""
    merges = False
    """Whether two classes can become one."""
    further_readouts: Mapping[str, str] = {}
    """Methods that train like this one but classify otherwise: each one's name, and that of its `probabilities`."""

    def __init__(
        self,
        recipe: Recipe,
        network: IncrementalNetwork,
        generator: torch.Generator,
        constraint: Constraint | None = None,
    ) -> None:
        self.recipe = recipe
        self.network = network
        self.generator = generator
        self.memory = Memory()
        self.left_out: LeftOut | None = None
        """What the last step's images say of each other, where the method knows it."""
        self.trainer = Trainer(network, self.loss, recipe.optimizer, generator, constraint)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the generator as bytes: torch would share a tensor, which is gone before a new process reads it."""
        state = bytes(self.generator.get_state().numpy())
        return self.__dict__ | {"generator": (str(self.generator.device), state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        device, drawn = state["generator"]
        generator = torch.Generator(device)
        generator.set_state(torch.frombuffer(bytearray(drawn), dtype=torch.uint8))
        self.__dict__ |= state | {"generator": generator}
        self.trainer.generator = generator

    @classmethod
    def label(cls, recipe: Recipe) -> str:
        """Return the method's name in results."""
        return recipe.method

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        """Raise if the method cannot work with the recipe's settings."""
        if cls.needs_memory and cls.keeps_memory and not recipe.memory.size:
            raise TreeringError(f"{recipe.method} cannot learn without exemplars: set memory.size to 1 or more")
        if not cls.bounds_training and (recipe.training.most_images or recipe.balanced.most_images):
            raise TreeringError(f"{recipe.method} trains all of its epochs: set most_images to 0, or fewer epochs")
        if cls.keeps_memory and recipe.memory.kind not in cls.budget_kinds:
            kinds = " or ".join(cls.budget_kinds)
            raise TreeringError(
                f"{recipe.method} cannot keep a {recipe.memory.kind} memory: set memory.kind to {kinds}"
            )

    @classmethod
    def needs_exemplars(cls) -> bool:
        """Return whether every class that was learnt has an exemplar, without which the method could not go on."""
        return cls.keeps_memory and cls.needs_memory

    def further_tensors(self) -> list[dict[str, Tensor]]:
        """Return examples of the tensors that only some models have; a model has all of a table or none."""
        return []

    def start_from(self, build: Callable[[], nn.Module]) -> None:  # noqa: B027  # optional
        """Take a function that makes the feature extractor as it was before the first step, when a model is loaded."""

    def prepare(self, images: int) -> None:
        """Compile and capture an update once, if the engine does, with room for stages of `images` training images."""
        self.trainer.prepare(images, self.network.mean_image.shape)

    @abstractmethod
    def learn_step(self, step: Step) -> None:
        """Learn the classes of `step` without losing the earlier ones."""

    @abstractmethod
    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        """Return the loss of a batch. It is part of the captured update, so it may depend on nothing that changes."""

    # What a step costs

    @classmethod
    def plan(cls, recipe: Recipe, steps: Sequence[Counts]) -> list[list[StagePlan]]:
        """Plan the stages of each step of a stream in which every class is new."""
        cls.check(recipe)
        before = cls.memory_before(recipe, steps)
        return [cls.plan_step(recipe, step, memory) for step, memory in zip(steps, before, strict=True)]

    @classmethod
    def plan_step(cls, recipe: Recipe, step: Counts, memory: Counts) -> list[StagePlan]:
        """Plan the stages of a step, given how many images each of its classes and each class in memory has."""
        return [StagePlan.of(sum(step.values()) + sum(memory.values()), recipe.training, recipe)]

    @classmethod
    def memory_before(cls, recipe: Recipe, steps: Sequence[Counts]) -> list[dict[Any, int]]:
        """Count the images of each class in memory before each step of a stream of new classes."""
        memory: list[dict[Any, int]] = [{}]
        if not cls.keeps_memory:
            return memory * len(steps)
        recipe.memory.quota(sum(map(len, steps)))  # raises unless there is room for all
        for step in steps[:-1]:
            known = memory[-1] | dict(step)
            quota = recipe.memory.quota(len(known))
            memory.append({label: min(images, quota) for label, images in known.items()})
        return memory

    def replayed(self, recipe: Recipe) -> dict[Any, int]:
        """Count the images of each class in memory, for `plan_step`."""
        return {label: len(images) for label, images in self.memory.exemplars.items()}

    # Training sets

    def with_exemplars(self, step: Step) -> tuple[Images, Tensor]:
        """Return the step's images and every exemplar in memory, and their labels."""
        if not self.memory.exemplars:
            return step.images, step.labels
        images, labels = self.memory.contents()
        return pixels.join([step.images, images]), torch.cat([step.labels, labels])

    def training_set(
        self, images: Images, labels: Tensor, distilled_classes: int = 0
    ) -> TrainingSet | Callable[[], Iterator[TrainingSet]]:
        """Augment, then label: the network as it is now gives soft targets for its first `distilled_classes` columns.

        If the recipe's augmentation is drawn anew for each epoch, return a function that yields an epoch's parts.
        """
        if not augment.drawn_each_epoch(self.recipe.augmentation):
            return self.augmented(images, labels, self._soft_targets(self.network, distilled_classes))
        teacher = copy.deepcopy(self.network) if distilled_classes else self.network
        return functools.partial(self._draw, images, labels, self._soft_targets(teacher, distilled_classes))

    def augmented(self, images: Images, labels: Tensor, targets_of: Callable[[Tensor, Tensor], Tensor]) -> TrainingSet:
        """Return the augmented images, their labels, and the targets that `targets_of` gives for both."""
        self._require_memory(images)
        inside = pixels.tensor(images).to(self.network.device)
        augmented = augment.augmented(inside, self.recipe.augmentation, self.generator)
        repeated = labels.repeat(augment.copies(self.recipe.augmentation))
        return TrainingSet(augmented, repeated, targets_of(augmented, repeated))

    def _require_memory(self, images: Images) -> None:
        """Raise if augmented images take more memory than this computer has free, which could end other programs."""
        if self.network.device.type == "cpu":
            count, channels, height, width = images.shape
            side = augment.input_side(self.recipe.augmentation, height)
            pixels_of_each = height * width if side == height else side * side
            copies = augment.copies(self.recipe.augmentation) * count
            what = f"{count:,} images of {width} x {height} pixels, augmented for training,"
            free_memory.require(2 * copies * channels * pixels_of_each, what, "learn fewer images at a time")

    def _draw(
        self, images: Images, labels: Tensor, targets_of: Callable[[Tensor, Tensor], Tensor]
    ) -> Iterator[TrainingSet]:
        """Yield an epoch's training set in random parts of whole batches, none too large for the memory."""
        order = torch.randperm(len(images), generator=self.generator, device=self.generator.device)
        batch_size, _ = batch_plan(len(images), self.recipe.optimizer)
        fitting = augment.CHUNK_VALUES // images.shape[1:].numel()
        part = max(1, fitting // batch_size) * batch_size
        if len(order) > part:  # the last part may be a few images, which could not fill up their batch
            order = torch.cat([order, order[: -len(order) % batch_size]])
        for rows in order.split(part):
            yield self.augmented(images[rows], labels[rows], targets_of)

    def _soft_targets(self, teacher: IncrementalNetwork, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return a function that labels images by the teacher's first `classes` columns, and by zeros elsewhere."""

        def targets_of(images: Tensor, labels: Tensor) -> Tensor:
            targets = torch.zeros(len(images), self.network.columns, device=images.device)
            if classes:
                heads = teacher.head_of_class[: teacher.classes]
                soft = losses.soft_targets(teacher.predict_logits(images), heads, self.recipe.temperature)
                targets[:, :classes] = soft[:, :classes]
            return targets

        return targets_of

    # Answers

    def probabilities(self, images: Tensor) -> Tensor:
        """Return N x classes: the softmax over the logits of all heads."""
        return self.network.predict_logits(self.plain(images)).softmax(1)

    @classmethod
    def outside_training(cls, recipe: Recipe) -> Augmentation:
        """Return the augmentation whose `plain` says how the network sees images outside training."""
        return recipe.augmentation

    def plain(self, images: Tensor) -> Tensor:
        """Return `images` as the network sees them outside training."""
        return augment.plain(images, self.outside_training(self.recipe))

    def answering(self) -> nn.Module | None:
        """Return a module that maps images as `plain` returns them to logits; None if it answers by something else.

        Where distances are measured, it maps images to logits and distances.
        """
        return self.network if type(self).probabilities is Method.probabilities else None

    @property
    def usual_distances(self) -> Tensor | None:
        """Quantiles of the distances of images of known classes, where the method measures them."""
        return None

    def answers(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `probabilities`, and how far each image is from the class that it resembles most, where measured."""
        return self.probabilities(images), None

    # The memory

    def require_room(self, step: Step) -> None:
        """Raise if the budget has not even one exemplar for each class."""
        self.recipe.memory.quota(self.network.classes + step.new_classes)

    def candidates(self, step: Step) -> dict[int, Images]:
        """Return the images from which each class of the step chooses exemplars; a known class adds those it has."""
        candidates = step.by_class()
        for label in candidates.keys() & self.memory.exemplars.keys():
            exemplars = self.memory.exemplars[label]
            kept = set(pixels.digests(exemplars))
            fresh = torch.tensor([digest not in kept for digest in pixels.digests(candidates[label])])
            candidates[label] = pixels.join([exemplars, candidates[label][fresh]])
        return candidates

    def rank(self, candidates: dict[int, Images], count: int) -> dict[int, Tensor]:
        """Return the `count` best images of each class by the recipe's selection rule, best first [3.1]."""
        features = [self.features(images) for images in candidates.values()]
        if features and not torch.cat(features).isfinite().all():
            raise DivergedError
        rankings = selection.rank(features, count, selection.RULES[self.recipe.memory.selection], self.generator)
        return {
            label: pixels.tensor(candidates[label][ranking]).to(self.network.device)
            for label, ranking in zip(candidates, rankings, strict=True)
        }

    def features(self, images: Images) -> Tensor:
        """Return N x D, the features of images as the network sees them outside training."""
        size = augment.CHUNK if isinstance(images, Tensor) else 4 * augment.PHOTOS
        return torch.cat([self.network.predict_features(self.plain(part)) for part in images.split(size)])

    def update_memory(self, candidates: dict[int, Images]) -> None:
        """Shrink the classes in memory from the end, then store the best of the step's classes [3.1]."""
        quota = self.recipe.memory.quota(self.network.classes)
        self.memory.shrink(quota)
        for label, ranked in self.rank(candidates, quota).items():
            self.memory.store(label, ranked)

    def resize_memory(self, size: int) -> None:
        """Set another size of the budget; images that were removed before do not come back."""
        if size != self.recipe.memory.size:
            self.recipe = replace(self.recipe, memory=replace(self.recipe.memory, size=size))

    # Changing classes

    def forget(self, column: int) -> None:
        """Remove a class; the columns behind it move up by one."""
        self.network.forget(column)
        self.memory.forget(column)
        self.left_out = None

    def merge(self, kept: int, gone: int) -> None:
        """Make the images of the class `gone` images of the class `kept`, of which the column is smaller."""
        raise TreeringError(f"{self.recipe.method} cannot merge classes: forget one, and learn its photos as the other")

    # Going back

    def tensors(self) -> dict[str, Tensor]:
        """Copy all that was learnt besides the exemplars; `load_tensors` takes it back."""
        return self.network.tensors()

    def load_tensors(self, head_sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        """Become the method that gave `tensors`; raise ValueError if they do not fit."""
        self.network.load_tensors(head_sizes, tensors)

    def snapshot(self) -> Snapshot:
        """Copy everything that a step changes; `restore` puts it back."""
        return Snapshot(
            list(self.network.head_sizes),
            self.tensors(),
            self.network.columns,
            self.network.unsaved(),
            dict(self.memory.exemplars),
            self.generator.get_state(),
            self.recipe,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to `snapshot`."""
        self.network.resize(snapshot.columns)
        self.load_tensors(snapshot.head_sizes, snapshot.tensors)
        self.memory.exemplars = dict(snapshot.exemplars)
        self.recipe = snapshot.recipe
        restore_generator(self.generator, snapshot.generator)
        self.network.load_unsaved(snapshot.unsaved)
