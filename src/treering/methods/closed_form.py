"""The closed form: features of a network that has seen many images before, and a classifier that is solved.

Nothing is trained. Each step adds its images to a few sums (`core/closed_form.py`) and solves for the heads anew, so a
step takes seconds, the sums do not depend on the order of steps, and no image need be kept.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from treering.core import selection
from treering.core.closed_form import USUAL, Setting, Solution, Statistics, solve
from treering.core.network import IncrementalNetwork
from treering.errors import TreeringError
from treering.methods.base import LeftOut, Method, Step
from treering.methods.plan import Counts, StagePlan
from treering.recipe import Recipe
from treering.runtime import pixels
from treering.runtime.pixels import Images

logger = logging.getLogger(__name__)

OWN = ("statistics.setting", "statistics.images")
"""The names of what is saved beside the sums."""
MOST_EXEMPLARS_ASKED = 512
"""The most exemplars that are told by all other images: more would cost a step time by the old images, not the new."""


class ClosedForm(Method):
    """Linear discriminants of fixed features, from sums over all images ever shown."""

    needs_memory = False
    unit_features = True
    trains = False
    any_number_of_rows = OWN[1:]

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        super().__init__(recipe, network, generator)
        self.statistics = Statistics.empty(network.feature_size, network.device)
        self.setting = USUAL
        self.summed: set[int] = set()
        """A hash of class and pixels of every image in the statistics, so that none is summed twice."""

    def learn_step(self, step: Step) -> None:
        self.require_room(step)
        step, self.left_out = self._not_summed_yet(step), None
        if not len(step.images):
            logger.warning("every one of these images was learnt before: nothing changes")
            return
        new = {label: self._unit_features(images) for label, images in step.by_class().items()}
        old = {label: self._unit_features(images) for label, images in self._asked().items()}
        if not all(part.isfinite().all() for part in (*new.values(), *old.values())):
            raise TreeringError("the network gives features that are not finite for these images: choose another")
        before = self._told_right(old)
        if step.new_classes:
            self.network.add_head(step.new_classes, self.generator)
        self.statistics = self.statistics.added(*_stacked(new), self.network.classes)
        at_hand = {label: torch.cat([part[label] for part in (old, new) if label in part]) for label in old | new}
        solution = solve(self.statistics, *_stacked(at_hand), self._choices(), self.setting)
        self.setting = solution.setting
        with torch.no_grad():
            self.network.weight[: self.network.classes] = self.setting.temperature * solution.weight.float()
            self.network.bias[: self.network.classes] = self.setting.temperature * solution.bias.float()
        self.left_out = LeftOut(before, self._right_by_class(solution, at_hand))
        self._store(step, new)

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
        return [StagePlan(images, images)]

    def tensors(self) -> dict[str, Tensor]:
        own = torch.tensor(self.setting, dtype=torch.float64), torch.tensor(sorted(self.summed), dtype=torch.int64)
        return super().tensors() | self.statistics.tensors() | dict(zip(OWN, own, strict=True))

    def load_tensors(self, head_sizes: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        own = {name: tensors[name] for name in (*Statistics.NAMES, *OWN) if name in tensors}
        super().load_tensors(head_sizes, {name: tensor for name, tensor in tensors.items() if name not in own})
        self.statistics = Statistics.of(own, self.network.feature_size, self.network.classes, self.network.device)
        if not all(name in own for name in OWN) or own[OWN[0]].shape != (3,):
            raise ValueError(f"{OWN[0]} differs")
        choice, penalty, temperature = own[OWN[0]].tolist()
        self.setting, self.summed = Setting(int(choice), penalty, temperature), set(own[OWN[1]].tolist())

    def _not_summed_yet(self, step: Step) -> Step:
        """Leave out images that the statistics have already; others could be told by their own copies."""
        rows = []
        for row, (label, digest) in enumerate(zip(step.labels.tolist(), pixels.digests(step.images), strict=True)):
            key = int.from_bytes(hashlib.sha256(b"%d %b" % (label, digest)).digest()[:8], signed=True)
            if key not in self.summed:
                self.summed.add(key)
                rows.append(row)
        chosen = torch.tensor(rows, dtype=torch.long, device=step.labels.device)
        return replace(step, images=step.images[chosen], labels=step.labels[chosen])

    def _choices(self) -> list[slice]:
        """Return which features may serve: all, or the network's last ones alone."""
        last = getattr(self.network.features, "last_features", 0)
        return [slice(-last, None), slice(None)] if last else [slice(None)]

    def _told_right(self, features: Mapping[int, Tensor]) -> dict[int, list[bool]]:
        """Tell for each of these images, which the statistics hold, whether all others tell it right."""
        if not features:
            return {}
        found = solve(self.statistics, *_stacked(features), self._choices(), self.setting)
        return self._right_by_class(found, features)

    def _right_by_class(self, solution: Solution, features: Mapping[int, Tensor]) -> dict[int, list[bool]]:
        """Tell for each image whether it is told right, but for those that are the only one of their class."""
        said = solution.left_out.argmax(1).split([len(part) for part in features.values()])
        found = zip(features, said, strict=True)
        return {label: (part == label).tolist() for label, part in found if self.statistics.counts[label] > 1}

    def _asked(self) -> dict[int, Tensor]:
        """Return the best exemplars of each class, as many of each as may be asked about in all."""
        exemplars = self.memory.exemplars
        each = max(1, MOST_EXEMPLARS_ASKED // len(exemplars)) if exemplars else 0
        return {label: images[:each] for label, images in list(exemplars.items())[:MOST_EXEMPLARS_ASKED]}

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


def _stacked(features: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the features of all classes, and their labels."""
    labels = [torch.full((len(part),), label, device=part.device) for label, part in features.items()]
    return torch.cat(list(features.values())), torch.cat(labels)
