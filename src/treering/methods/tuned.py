"""Photos: the closed form, and beside it a copy of its network that is trained end to end.

Each step first solves the closed form. Then the paper's method (`eeil.py`) trains the copy: its heads start from a
closed form, and batch normalisation keeps the statistics of its pretraining. Afterwards a closed form is solved on the
trained features. One image in `JUDGING` of each class is never trained on: these judge whether the network as it came
answers alone from now on, or both do, by the mean of their probabilities. The trained one alone is no choice: it is
less often right than both, and so few judges mistake it for better. Training that diverges or does not help is thrown
away. Where the recipe bounds how long it trains, the judges are asked after a third of it too, and training that has
made their answers worse by then is not gone on with.

Measured by `benchmarks/who_answers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from treering import words
from treering.core import augment
from treering.core.closed_form import Statistics
from treering.core.network import IncrementalNetwork
from treering.core.trainer import DivergedError, EpochReport
from treering.errors import TreeringError
from treering.methods.base import Step
from treering.methods.closed_form import MOST_SUMMED, ClosedForm, Measuring
from treering.methods.eeil import EEIL
from treering.methods.left_out import LeftOut, Trial
from treering.methods.plan import Counts, StagePlan
from treering.methods.solved import AtHand, Solved, no_image, stacked, together_by_class
from treering.methods.trained_copy import Both, FromClosedForm, copied
from treering.recipe import Recipe, Schedule
from treering.runtime import pixels
from treering.runtime.pixels import Images

logger = words.logger(__name__)

JUDGING = 5
"""One image in this many of each class is never trained on."""
LOOK_AFTER = 3
"""The judges are asked when one in this many epochs of a bounded training is over, which is a third of them."""
PREFIX, JUDGES = "tuned.", "statistics.judging"
"""The names of what is saved beside the closed form."""


class HopelessError(Exception):
    """Training that has made the judges' answers worse."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial


class Tuned(ClosedForm):
    """The closed form of a network as it came, and of a trained copy beside it if both together tell images better."""

    any_number_of_rows = MappingProxyType({**ClosedForm.any_number_of_rows, JUDGES: MOST_SUMMED})

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        super().__init__(recipe, network, generator)
        self.tuning = FromClosedForm(recipe, copied(network), generator)
        self.tuned = Solved(self.tuning.network)
        self.trainer = self.tuning.trainer
        self.both_answer = False
        """Whether the trained network answers together with the one as it came."""
        self.judging: set[int] = set()
        """The keys of the images that are never trained on."""

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        super().check(recipe)
        if recipe.augmentation.kind != "photo":
            raise TreeringError("tuned trains on photos: set augmentation.kind to photo, or method to closed-form")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.tuning.generator = self.generator

    def _said_before(self, asked: Mapping[int, Images], features: Mapping[int, Tensor]) -> Tensor:
        said = super()._said_before(asked, features)
        if not self.both_answer:
            return said
        return mean_of(said, self.tuned.log_probabilities(self._trained(asked), no_image(features)))

    def _conclude(self, at_hand: AtHand, said_NC: Tensor) -> LeftOut:
        unseen_N = self._judging(at_hand)
        both_before, trial, trained_ND = self.both_answer, None, None
        schedule, exemplars = self._schedule(at_hand), at_hand.exemplars()
        if both_before:  # what was trained on tells too much of itself
            exemplars = exemplars & unseen_N.cpu()
        if schedule.epochs:
            trial, said_NC, trained_ND = self._train(at_hand, said_NC, unseen_N, schedule)
        elif self.both_answer:
            unseen_N = unseen_N | ~at_hand.exemplars().to(unseen_N.device)
            said_NC, trained_ND = self._ask_again(at_hand, said_NC, unseen_N)
        if not self.both_answer or trained_ND is None:
            self._know_usual(*stacked(at_hand.features()))
            return self._left_out(at_hand, said_NC, exemplars, torch.ones(len(said_NC), dtype=torch.bool), trial)
        self._know_usual(trained_ND[unseen_N], at_hand.labels().to(unseen_N.device)[unseen_N])
        told = self._left_out(at_hand, said_NC, exemplars & unseen_N.cpu(), unseen_N.cpu(), trial)
        return replace(told, tuned=True)

    def _ask_again(self, at_hand: AtHand, frozen_NC: Tensor, unseen_N: Tensor) -> tuple[Tensor, Tensor]:
        """Choose what answers once a step has come on which the copy is not trained, whose images thus all judge.

        Return what all others say of each image, and its features by the copy.
        """
        new = self._trained(at_hand.own)
        self.tuned.network.set_heads(self.network.head_sizes)
        self.tuned.add(new)
        features = together_by_class(self._trained(at_hand.asked), new)
        tuned_NC = self.tuned.log_probabilities(features, unseen_N, keep=True)
        self._choose(tried(frozen_NC, tuned_NC, at_hand.labels().to(unseen_N.device), unseen_N))
        return self._answers_of(frozen_NC, tuned_NC), stacked(features)[0]

    def _choose(self, trial: Trial | None) -> None:
        """Have what was found best answer from now on."""
        self.both_answer = trial is not None and trial.helped
        if not self.both_answer:
            self._untrain()

    def _answers_of(self, frozen_NC: Tensor, tuned_NC: Tensor) -> Tensor:
        return mean_of(frozen_NC, tuned_NC) if self.both_answer else frozen_NC

    def _schedule(self, at_hand: AtHand) -> Schedule:
        """Return how long this step trains, which needs exemplars of every old class."""
        old, memory = self.network.classes - at_hand.step.new_classes, self.memory.exemplars
        schedule = self.recipe.training.bounded(len(at_hand.step.images) + len(self.memory))
        enough = set(range(old)) <= memory.keys() and self.recipe.memory.size > 0
        return schedule if enough else replace(schedule, epochs=0)

    def _judging(self, at_hand: AtHand) -> Tensor:
        """Choose some of the step's images to judge; return which of the images at hand do."""
        keys: dict[int, list[list[int]]] = {}
        for label, images in at_hand.own.items():
            keys[label] = self.numbers.keys([label] * len(images), images)
            self.judging.update(sorted(first for first, *_ in keys[label])[: len(images) // JUDGING])
        old = {label: self.numbers.keys([label] * len(images), images) for label, images in at_hand.asked.items()}
        every = [part for label in at_hand.features() for part in (*old.get(label, ()), *keys.get(label, ()))]
        return torch.tensor([not self.judging.isdisjoint(part) for part in every], device=self.network.device)

    def _train(
        self, at_hand: AtHand, frozen_NC: Tensor, judging_N: Tensor, schedule: Schedule
    ) -> tuple[Trial | None, Tensor, Tensor | None]:
        """Train the copy and choose what answers.

        Return the trial, what all others then say of each image, and its features by the copy.
        """
        memory, step = {label: pixels.tensor(images) for label, images in self.memory.exemplars.items()}, at_hand.step
        self.tuning.memory.exemplars = {
            label: pixels.tensor(self.tuning.held(images[self._trainable(label, images)]))
            for label, images in memory.items()
        }
        taught = {label: images[self._trainable(label, images)] for label, images in at_hand.own.items()}
        images = pixels.join([self.tuning.held(part) for part in taught.values()])
        labels = torch.cat([torch.full((len(part),), label) for label, part in taught.items()]).to(step.labels.device)
        self.tuning.recipe = replace(self.recipe, training=schedule)
        self.tuning.network.set_heads(self.network.head_sizes[:-1] if step.new_classes else self.network.head_sizes)
        try:
            with self.trainer.looked_at(lambda report: self._look(at_hand, frozen_NC, judging_N, report)):
                self.tuning.learn_step(Step(images, labels, step.new_classes))
            tuned_NC, x_ND = self._solve(at_hand, memory, judging_N, keep=True)
        except DivergedError:
            logger.warning("training the network on these images diverged, so it stays as it came")
            self._untrain()
            return None, frozen_NC, None
        except HopelessError as hopeless:
            self._untrain()
            return hopeless.trial, frozen_NC, None
        finally:
            self.tuning.memory.exemplars = {}
        trial = tried(frozen_NC, tuned_NC, at_hand.labels().to(self.network.device), judging_N)
        self._choose(trial)
        return trial, self._answers_of(frozen_NC, tuned_NC), x_ND

    def _look(self, at_hand: AtHand, frozen_NC: Tensor, judging_N: Tensor, report: EpochReport) -> None:
        """End the training if it is bounded, a third of it is over and the judges' answers are worse by then."""
        is_time = report.stage == "training" and report.epoch == report.epochs // LOOK_AFTER
        if not (is_time and self.recipe.training.most_images and judging_N.any()):
            return
        tuned_NC, _ = self._solve(at_hand, at_hand.asked, judging_N, keep=False)
        trial = tried_in_vain(frozen_NC, tuned_NC, at_hand.labels().to(self.network.device), judging_N)
        if trial:
            raise HopelessError(trial)

    def _solve(
        self, at_hand: AtHand, exemplars: Mapping[int, Images], judging_N: Tensor, keep: bool
    ) -> tuple[Tensor, Tensor]:
        """Solve a closed form of the copy's features of these exemplars and the step's images.

        Return what all others say of each image at hand, and its features. `keep` sets the copy's heads.
        """
        old, new = self._trained(exemplars), self._trained(at_hand.own)
        if not all(part.isfinite().all() for part in (*old.values(), *new.values())):
            raise DivergedError
        self.tuned.statistics = Statistics.empty(self.tuned.network.feature_size, self.network.device)
        features = together_by_class(old, new)
        self.tuned.add(features)
        rows = self._rows(at_hand, features)
        judging = torch.zeros(sum(map(len, features.values())), dtype=torch.bool, device=self.network.device)
        judging[rows] = judging_N
        tuned_NC = self.tuned.log_probabilities(features, judging, keep)
        return tuned_NC[rows], stacked(features)[0][rows]

    def _rows(self, at_hand: AtHand, features: Mapping[int, Tensor]) -> Tensor:
        """Return where the images at hand stand among those of `features`, which has all exemplars of each class."""
        rows, start = [], {}
        total = 0
        for label, part in features.items():
            start[label], total = total, total + len(part)
        for label, part in at_hand.features().items():
            old, new = len(at_hand.old.get(label, ())), len(at_hand.new.get(label, ()))
            end = start[label] + len(features[label])
            rows += [*range(start[label], start[label] + old), *range(end - new, end)]
            assert len(part) == old + new
        return torch.tensor(rows, device=self.network.device)

    def _trainable(self, label: int, images: Images) -> Tensor:
        keys = self.numbers.keys([label] * len(images), images)
        return torch.tensor([self.judging.isdisjoint(part) for part in keys])

    def _trained(self, images: Mapping[int, Images]) -> dict[int, Tensor]:
        """Return the features of whole images by the trained network."""
        found = {}
        for label, part in images.items():
            pieces = [
                self.tuned.network.predict_features(self.plain(piece)) for piece in part.split(4 * augment.PHOTOS)
            ]
            found[label] = F.normalize(torch.cat(pieces))
            self.trainer.passed(len(part))
        return found

    def _untrain(self) -> None:
        """Give the copy the weights of the network as it came."""
        self.both_answer = False
        self.tuned.network.features.load_state_dict(self.network.features.state_dict())
        self.tuned.network.mean_image.copy_(self.network.mean_image.mean((1, 2), keepdim=True))

    def _solved(self) -> list[Solved]:
        return [self.frozen, self.tuned] if self.both_answer else [self.frozen]

    @property
    def _measuring(self) -> Solved:
        return self.tuned if self.both_answer else self.frozen

    def probabilities(self, images: Tensor) -> Tensor:
        seen = self.plain(images)
        said = [solved.network.predict_logits(seen).softmax(1) for solved in self._solved()]
        return torch.stack(said).mean(0)

    def answers(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.usual_distances is None or not self.both_answer:
            return super().answers(images)
        seen = self.plain(images)
        features_ND, logits_NC = self.tuned.network.predict_both(seen)
        said_NC = (logits_NC.softmax(1) + self.network.predict_logits(seen).softmax(1)) / 2
        return said_NC, self._measure()(F.normalize(features_ND))

    def answering(self) -> nn.Module:
        """Return a module that maps images to the logarithms of their probabilities, and to distances if it can."""
        if not self.both_answer:
            return super().answering()
        tuned = self.tuned.network
        measuring = tuned if self.usual_distances is None else Measuring(tuned, self._measure())
        return Both(self.network, measuring)

    @classmethod
    def plan_step(cls, recipe: Recipe, step: Counts, memory: Counts) -> list[StagePlan]:
        """Plan the closed form and, if it trains, the training and what goes before and after it."""
        stages = super().plan_step(recipe, step, memory)
        total = sum(step.values()) + sum(memory.values())
        schedule = recipe.training.bounded(total)
        if not schedule.epochs or not recipe.memory.size:
            return stages
        trained, kept = ({label: count - count // JUDGING for label, count in part.items()} for part in (step, memory))
        looks = bool(recipe.training.most_images and schedule.epochs >= LOOK_AFTER)
        around = StagePlan(total, (1 + looks) * total + sum(trained.values()) + sum(kept.values()), trains=False)
        return [*stages, *EEIL.plan_step(replace(recipe, training=schedule), trained, kept), around]

    def tensors(self) -> dict[str, Tensor]:
        judges = {JUDGES: torch.tensor(sorted(self.judging), dtype=torch.int64)}
        if not self.both_answer:
            return super().tensors() | judges
        return super().tensors() | judges | self._of_copy()

    def further_tensors(self) -> list[dict[str, Tensor]]:
        """Return what a model has once its trained copy answers too, and once a class of that was forgotten."""
        own = self._of_copy()
        forgotten = {PREFIX + Statistics.FORGOTTEN: torch.zeros(1, dtype=torch.float64)}
        return [*super().further_tensors(), own, forgotten]

    def _of_copy(self) -> dict[str, Tensor]:
        """Return all that was learnt of the trained copy, by name."""
        own = self.tuned.network.tensors() | self.tuned.tensors()
        return {PREFIX + name: tensor for name, tensor in own.items()}

    def load_tensors(self, head_sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        own = {name.removeprefix(PREFIX): part for name, part in tensors.items() if name.startswith(PREFIX)}
        others = {name: part for name, part in tensors.items() if not name.startswith(PREFIX) and name != JUDGES}
        super().load_tensors(head_sizes, others)
        if JUDGES not in tensors or tensors[JUDGES].dtype != torch.int64:
            raise ValueError(f"{JUDGES} differs")
        self.judging = set(tensors[JUDGES].tolist())
        if not own:
            self._untrain()
            return
        self.both_answer = True
        sums = {name: own.pop(name) for name in list(own) if name.startswith("statistics.")}
        try:
            self.tuned.network.load_tensors(head_sizes, own)
            self.tuned.load_tensors(sums)
        except ValueError as error:
            raise ValueError(f"{PREFIX}{error}") from None


def mean_of(frozen_NC: Tensor, tuned_NC: Tensor) -> Tensor:
    """Return the logarithms of the mean of two networks' probabilities."""
    return torch.logaddexp(frozen_NC, tuned_NC) - math.log(2)


def tried(frozen_NC: Tensor, tuned_NC: Tensor, labels_N: Tensor, judging_N: Tensor) -> Trial | None:
    """Have the images that judge say whether both networks answer from now on; without any there is no trial.

    They do if the judges' mean loss becomes less by more than the standard error, and no fewer of them are told right.
    """
    if not judging_N.any():
        return None
    gain, error, frozen, both = _judged(frozen_NC, tuned_NC, labels_N, judging_N)
    return Trial(int(judging_N.sum()), frozen, both, helped=gain > error and both >= frozen)


def tried_in_vain(frozen_NC: Tensor, tuned_NC: Tensor, labels_N: Tensor, judging_N: Tensor) -> Trial | None:
    """Return the trial of training that has made the judges' mean loss greater by more than the standard error."""
    gain, error, frozen, both = _judged(frozen_NC, tuned_NC, labels_N, judging_N)
    return Trial(int(judging_N.sum()), frozen, both, helped=False, ended_early=True) if gain < -error else None


def _judged(frozen_NC: Tensor, tuned_NC: Tensor, labels_N: Tensor, judging_N: Tensor) -> tuple[float, float, int, int]:
    """Return by how much the judges' mean loss is less by both networks, its standard error, and how many are right.

    Those are told right by the network as it came, and by both.
    """
    labels, frozen = labels_N[judging_N], frozen_NC[judging_N]
    both = mean_of(frozen, tuned_NC[judging_N])
    weight_N = 1 / labels.bincount()[labels].double()  # each class counts alike
    loss_N, other_N = (F.nll_loss(said.clamp_min(-20), labels, reduction="none") for said in (frozen, both))
    gain_N = weight_N / weight_N.mean() * (loss_N - other_N)
    error = float(gain_N.std()) / len(gain_N) ** 0.5 if len(gain_N) > 1 else math.inf
    right, both_right = (int((said.argmax(1) == labels).sum()) for said in (frozen, both))
    return float(gain_N.mean()), error, right, both_right
