"""The closed form: features of a network that has seen many images before, and a classifier that is solved.

Nothing is trained. Each step adds its images to a few sums (`core/closed_form.py`) and solves for the heads anew, so a
step takes seconds, the sums do not depend on the order of steps, and no image need be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering import words
from treering.core import selection, unknown
from treering.core.closed_form import Statistics
from treering.core.network import IncrementalNetwork
from treering.core.unknown import QUANTILES, Distances
from treering.errors import TreeringError
from treering.methods.base import Method, Step
from treering.methods.left_out import LeftOut, Trial
from treering.methods.numbers import NUMBERS, Numbers
from treering.methods.plan import Counts, StagePlan
from treering.methods.solved import SETTING, AtHand, Solved, no_image, stacked
from treering.recipe import Augmentation, Recipe
from treering.runtime import pixels
from treering.runtime.pixels import Images

logger = words.logger(__name__)

SUMMED, DISTANCES = "statistics.images", "statistics.distances"
"""The names of what is saved beside the sums."""
MOST_SUMMED, MOST_NUMBERS = 4_000_000, 1_000_000
"""The most images in the sums, and the most classes that were ever known, forgotten ones too."""
MOST_EXEMPLARS_ASKED = 512
"""The most exemplars that are told by all other images: more would cost a step time by the old images, not the new."""


class ClosedForm(Method):
    """Linear discriminants of fixed features, from sums over all images ever shown."""

    needs_memory = False
    unit_features = True
    trains = False
    reads_memory = False
    bounds_training = True
    merges = True
    any_number_of_rows: Mapping[str, int] = MappingProxyType(
        {SUMMED: MOST_SUMMED, DISTANCES: QUANTILES, NUMBERS: MOST_NUMBERS}
    )

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        super().__init__(recipe, network, generator)
        self.frozen = Solved(network)
        self.summed: set[int] = set()
        """A hash of class and pixels of every image in the sums, so that none is summed twice."""
        self.numbers = Numbers()
        self.usual: Tensor = torch.zeros(0, dtype=torch.float64)
        """Quantiles of the distances of images at hand from the class that they resemble most."""
        self._distances: Distances | None = None

    @classmethod
    def outside_training(cls, recipe: Recipe) -> Augmentation:
        """Return no augmentation: the network sees whole images, at the size at which they are held."""
        return replace(recipe.augmentation, kind="none")

    def learn_step(self, step: Step) -> None:
        self.require_room(step)
        self.numbers.add(self.network.classes + step.new_classes)
        step, self.left_out = self._not_summed_yet(step), None
        if not len(step.images):
            logger.warning("every one of these images was learnt before, so the classes are told as before")
            self.memory.shrink(self.recipe.memory.quota(self.network.classes))
            return
        asked = {label: pixels.tensor(images) for label, images in self._asked().items()}
        own = step.by_class()
        old, new = self._features_by_class(asked), self._features_by_class(own)
        if not all(part.isfinite().all() for part in (*new.values(), *old.values())):
            raise TreeringError("the network gives features that are not finite for these images: choose another")
        before = self._said_before(asked, old) if old else None
        if step.new_classes:
            self.network.add_head(step.new_classes, self.generator)
        self.frozen.add(new)
        at_hand = AtHand(step, asked, own, old, new, before)
        self.left_out = self._conclude(at_hand, self.frozen.log_probabilities(at_hand.features(), keep=True))
        self._store(step, new)

    def _said_before(self, asked: Mapping[int, Images], features: Mapping[int, Tensor]) -> Tensor:
        """Return what all other images say of each exemplar that is asked about, before the step."""
        return self.frozen.log_probabilities(features, no_image(features))

    def _conclude(self, at_hand: AtHand, said_NC: Tensor) -> LeftOut:
        """Return what is said of the images at hand, given the log-probabilities of each by all others."""
        self._know_usual(*stacked(at_hand.features()))
        exemplars, every = at_hand.exemplars(), torch.ones(len(said_NC), dtype=torch.bool)
        return self._left_out(at_hand, said_NC, exemplars, every)

    def _know_usual(self, features_ND: Tensor, labels_N: Tensor) -> None:
        """Take note of how far these images, whose features are those that measure, are from their classes."""
        self._distances = None
        usual = unknown.usual(self._measure().left_out(features_ND, labels_N)).cpu()
        self.usual = usual if len(usual) else self.usual

    def _left_out(
        self, at_hand: AtHand, said_NC: Tensor, exemplars_N: Tensor, measuring_N: Tensor, trial: Trial | None = None
    ) -> LeftOut:
        """Return for which class all others take the exemplars before and after the step, and the measuring images."""
        labels, said = at_hand.labels(), said_NC.argmax(1).cpu()
        can_N = (self.frozen.statistics.counts > 1).cpu()[labels]  # an only image of its class cannot be left out
        before = torch.zeros_like(said)
        if at_hand.before is not None:
            before[at_hand.exemplars()] = at_hand.before.argmax(1).cpu()
        old_N = exemplars_N & can_N
        return LeftOut(
            _by_class(before, labels, old_N),
            _by_class(said, labels, old_N),
            _by_class(said, labels, measuring_N & can_N),
            trial=trial,
        )

    def prepare(self, images: int) -> None:
        """Prepare nothing: no update is captured, since nothing is trained."""

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        """Return the cross-entropy over all heads, which nothing trains with."""
        return F.cross_entropy(logits_NC, labels_N)

    @classmethod
    def plan_step(cls, recipe: Recipe, step: Counts, memory: Counts) -> list[StagePlan]:
        """Plan one pass over the step's images and the exemplars that are asked about, and one to rank old and new."""
        asked = min(sum(memory.values()), MOST_EXEMPLARS_ASKED)
        ranked = sum(step[label] + memory[label] for label in step.keys() & memory.keys() if recipe.memory.size)
        images = sum(step.values()) + asked + ranked
        return [StagePlan(images, images, trains=False)]

    @property
    def _measuring(self) -> Solved:
        """The network by whose last features images are measured."""
        return self.frozen

    def _measure(self) -> Distances:
        """Return what measures how far images are from the classes."""
        self._distances = self._distances or Distances(self._measuring.statistics, self._measuring.choices()[0])
        return self._distances

    @property
    def usual_distances(self) -> Tensor | None:
        return self.usual if len(self.usual) else None

    def answers(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.usual_distances is None:
            return self.probabilities(images), None
        features_ND, logits_NC = self.network.predict_both(self.plain(images))
        return logits_NC.softmax(1), self._measure()(F.normalize(features_ND))

    def answering(self) -> nn.Module:
        """Return a module that maps images to logits and, if it is known which are usual, to distances."""
        return self.network if self.usual_distances is None else Measuring(self.network, self._measure())

    def tensors(self) -> dict[str, Tensor]:
        summed = torch.tensor(sorted(self.summed), dtype=torch.int64)
        own = {SUMMED: summed, DISTANCES: self.usual.clone()} | self.numbers.tensors()
        return super().tensors() | self.frozen.tensors() | own

    def further_tensors(self) -> list[dict[str, Tensor]]:
        """Return what a model has once a class was forgotten or merged."""
        numbers = torch.zeros(0, 2, dtype=torch.int64)
        return [{NUMBERS: numbers}, {Statistics.FORGOTTEN: torch.zeros(1, dtype=torch.float64)}]

    def load_tensors(self, head_sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        every = (*Statistics.NAMES, Statistics.FORGOTTEN, SETTING, SUMMED, DISTANCES, NUMBERS)
        own = {name: tensors[name] for name in every if name in tensors}
        super().load_tensors(head_sizes, {name: tensor for name, tensor in tensors.items() if name not in own})
        if SUMMED not in own or own[SUMMED].dtype != torch.int64:
            raise ValueError(f"{SUMMED} differs")
        self.frozen.load_tensors(own)
        self.summed = set(own[SUMMED].tolist())
        self.numbers = Numbers.of(own, self.network.classes)
        if DISTANCES not in own or own[DISTANCES].dtype != torch.float64 or len(own[DISTANCES]) not in (0, QUANTILES):
            raise ValueError(f"{DISTANCES} differs")
        self.usual, self._distances = own[DISTANCES].cpu(), None

    def _not_summed_yet(self, step: Step) -> Step:
        """Leave out images that the sums have already; others could be told by their own copies."""
        rows = []
        for row, keys in enumerate(self.numbers.keys(step.labels.tolist(), step.images)):
            if self.summed.isdisjoint(keys):
                self.summed.add(keys[0])
                rows.append(row)
        chosen = torch.tensor(rows, dtype=torch.long, device=step.labels.device)
        return replace(step, images=step.images[chosen], labels=step.labels[chosen])

    def _solved(self) -> list[Solved]:
        """Return the networks that answer."""
        return [self.frozen]

    def forget(self, column: int) -> None:
        """Remove a class: its heads, sums and exemplars. Hashes of its images stay, and what it did to weights."""
        for solved in self._solved():
            solved.forget(column)
        self.memory.forget(column)
        self.numbers.forget(column)
        self.left_out, self._distances = None, None

    def merge(self, kept: int, gone: int) -> None:
        """Make the images of the class `gone` images of the class `kept`; the best exemplars of both stay."""
        for solved in self._solved():
            solved.merge(kept, gone)
        self.memory.merge(kept, gone, self.recipe.memory.quota(self.network.classes))
        self.numbers.merge(kept, gone)
        self.left_out, self._distances = None, None

    def _asked(self) -> dict[int, Images]:
        """Return the best exemplars of each class, as many of each as may be asked about in all."""
        exemplars = self.memory.exemplars
        each = max(1, MOST_EXEMPLARS_ASKED // len(exemplars)) if exemplars else 0
        return {label: images[:each] for label, images in list(exemplars.items())[:MOST_EXEMPLARS_ASKED]}

    def _features_by_class(self, images: Mapping[int, Images]) -> dict[int, Tensor]:
        parts = list(images.values())
        if not parts:
            return {}
        together_ND = self._unit_features(pixels.join(parts))  # each class may have an image or two alone
        return dict(zip(images, together_ND.split(list(map(len, parts))), strict=True))

    def _unit_features(self, images: Images) -> Tensor:
        found = F.normalize(self.features(images))
        self.trainer.passed(len(images))
        return found

    def _store(self, step: Step, new: Mapping[int, Tensor]) -> None:
        """Shrink the classes in memory, then store the best images of the step's classes; the features are known."""
        quota = self.recipe.memory.quota(self.network.classes)
        self.memory.shrink(quota)
        if not quota:
            return
        candidates, fresh = self.candidates(step), step.by_class()
        known = {label for label in candidates if len(candidates[label]) > len(fresh[label])}
        features = [self._unit_features(candidates[label]) if label in known else new[label] for label in candidates]
        rankings = selection.rank(features, quota, selection.RULES[self.recipe.memory.selection], self.generator)
        for label, ranking in zip(candidates, rankings, strict=True):
            self.memory.store(label, pixels.tensor(candidates[label][ranking]).to(self.network.device))


class Measuring(nn.Module):
    """Maps images to logits and distances."""

    def __init__(self, network: IncrementalNetwork, distances: Distances) -> None:
        super().__init__()
        self.network, self.distances = network, distances.module()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features_ND = self.network.extract(images)
        return self.network.logits(features_ND), self.distances(F.normalize(features_ND))


def _by_class(said_N: Tensor, labels_N: Tensor, chosen_N: Tensor) -> dict[int, list[int]]:
    """Return what each chosen image is taken for, by class."""
    chosen = {int(label): chosen_N & (labels_N == label) for label in labels_N.unique()}
    return {label: said_N[rows].tolist() for label, rows in chosen.items() if rows.any()}
