"""A network whose heads are solved from sums over images, and the images at hand in a step that it is solved by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from treering.core import unknown
from treering.core.closed_form import USUAL, Setting, Solution, Statistics, solve
from treering.core.network import IncrementalNetwork
from treering.methods.base import Step
from treering.runtime import free_memory
from treering.runtime.pixels import Images

SETTING = "statistics.setting"
"""The name under which the setting is saved."""


class Solved:
    """A network whose heads are solved from sums over images, by the features that the heads see."""

    def __init__(self, network: IncrementalNetwork) -> None:
        self.network = network
        self.statistics = Statistics.empty(network.feature_size, network.device)
        self.setting = USUAL

    def log_probabilities(
        self, features: Mapping[int, Tensor], judging_N: Tensor | None = None, keep: bool = False
    ) -> Tensor:
        """Return what all other images say of each image, whose features are given by class: N x classes.

        The setting is chosen by the `judging` ones; without any it stays. `keep` sets it and the heads.
        """
        x_ND, labels_N = stacked(features)
        if x_ND.device.type == "cpu":
            what = f"telling {len(x_ND):,} images among {len(self.statistics.counts):,} classes by all others"
            taken = torch.float64.itemsize * len(x_ND) * len(self.statistics.counts)
            free_memory.require(taken, what, "learn fewer images at a time")
        found = solve(self.statistics, x_ND, labels_N, self.choices(), self.setting, judging_N)
        if keep:
            self._take(found)
        return found.said_by_others()

    def add(self, features: Mapping[int, Tensor]) -> None:
        """Add images to the sums, by class."""
        self.statistics = self.statistics.added(*stacked(features), self.network.classes)

    def _take(self, found: Solution) -> None:
        """Set the setting and the heads to those of a solution."""
        self.setting = found.setting
        with torch.no_grad():
            self.network.weight[: self.network.classes] = self.setting.temperature * found.weight.float()
            self.network.bias[: self.network.classes] = self.setting.temperature * found.bias.float()

    def forget(self, column: int) -> None:
        """Remove a class from the heads and the sums; the scores of all others stay as they are."""
        self.network.forget(column)
        self.statistics = self.statistics.without(column)

    def merge(self, kept: int, gone: int) -> None:
        """Make the images of one class images of another, and solve for the heads with the setting as it is."""
        self.network.forget(gone)
        self.statistics = self.statistics.merged(kept, gone)
        none = self.statistics.sums[:0]
        self._take(solve(self.statistics, none, none[:, 0].long(), self.choices(), self.setting))

    def choices(self) -> list[slice]:
        """Return which features may serve: all, or the network's last ones alone."""
        last = getattr(self.network.features, "last_features", 0)
        return [slice(-last, None), slice(None)] if last else [slice(None)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums and the setting by name."""
        return self.statistics.tensors() | {SETTING: torch.tensor(self.setting, dtype=torch.float64)}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave; raise ValueError if it does not fit."""
        network = self.network
        self.statistics = Statistics.of(tensors, network.feature_size, network.classes, network.device)
        if SETTING not in tensors or tensors[SETTING].shape != (3,):
            raise ValueError(f"{SETTING} differs")
        unknown.require_a_covariance(self.statistics, self.choices()[0])
        choice, penalty, temperature = tensors[SETTING].tolist()
        if choice not in range(len(self.choices())) or not 0 < penalty < 1e9 or not 0 < temperature < 1e9:
            raise ValueError(f"{SETTING} makes no sense")
        self.setting = Setting(int(choice), penalty, temperature)


@dataclass(frozen=True)
class AtHand:
    """The images at hand in a step: the exemplars that are asked about and the step's own, class by class."""

    step: Step
    asked: Mapping[int, Images]
    own: Mapping[int, Images]
    old: Mapping[int, Tensor]
    """The features of the exemplars that are asked about."""
    new: Mapping[int, Tensor]
    """The features of the step's images."""
    before: Tensor | None
    """What all other images said of each of these exemplars before the step."""

    def features(self) -> dict[int, Tensor]:
        """Return the features of each class, those of exemplars first; this is the order of all that follows."""
        return together_by_class(self.old, self.new)

    def labels(self) -> Tensor:
        """Return the class of each image."""
        return torch.cat([torch.full((len(part),), label) for label, part in self.features().items()])

    def exemplars(self) -> Tensor:
        """Return which of the images are exemplars."""
        parts = [(len(self.old.get(label, ())), len(self.new.get(label, ()))) for label in self.features()]
        return torch.cat([torch.tensor([True] * old + [False] * new) for old, new in parts])


def together_by_class(old: Mapping[int, Tensor], new: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the rows of both for each class, those of `old` first."""
    return {label: torch.cat([part[label] for part in (old, new) if label in part]) for label in {**old, **new}}


def stacked(features: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the features of all classes, and their labels."""
    labels = [torch.full((len(part),), label, device=part.device) for label, part in features.items()]
    return torch.cat(list(features.values())), torch.cat(labels)


def no_image(features: Mapping[int, Tensor]) -> Tensor:
    """Return the choice of no image."""
    parts = list(features.values())
    return torch.zeros(sum(map(len, parts)), dtype=torch.bool, device=parts[0].device)
