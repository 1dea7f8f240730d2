"""A classifier of fixed features that is solved rather than trained: linear discriminants with one shared covariance.

Of all images ever shown it needs a Gram matrix, and a sum and a count for each class. So a step costs time by its own
images alone, the order of steps makes no difference, and nothing is forgotten. Each class counts alike, however many
images it has. Penalty and temperature are those under which every image at hand is best told by all others: leaving one
image out changes the solution by terms of rank one, so that this costs no more than the solution itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PENALTIES = tuple(torch.logspace(-3, 2, 26, dtype=torch.float64).tolist())
"""What is tried on the diagonal of the scatter of features of length 1."""
TEMPERATURES = tuple(torch.logspace(-0.5, 3.5, 41, dtype=torch.float64).tolist())
"""What is tried as the factor of the scores before the softmax."""
MOST_CHOSEN_BY = 2000
"""The most images by which penalty and temperature are chosen."""


@dataclass(frozen=True)
class Statistics:
    """The sums over all images that the solution needs, in float64."""

    NAMES: ClassVar = ("statistics.gram", "statistics.sums", "statistics.counts")

    gram: Tensor
    sums: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, features: int, device: torch.device) -> Statistics:
        """Return the sums over no image of no class."""
        zeros = torch.zeros(features, features, dtype=torch.float64, device=device)
        return cls(zeros, zeros[:0], zeros.new_zeros(0))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], features: int, classes: int, device: torch.device) -> Statistics:
        """Return what gave `tensors`; raise ValueError if they are not of so many features and classes."""
        shapes = (features * (features + 1) // 2,), (classes, features), (classes,)
        for name, shape in zip(cls.NAMES, shapes, strict=True):
            if name not in tensors or tensors[name].shape != shape or tensors[name].dtype != torch.float64:
                raise ValueError(f"{name} differs")
        half, sums, counts = (tensors[name].to(device) for name in cls.NAMES)
        gram = half.new_zeros(features, features)
        rows, columns = torch.triu_indices(features, features, device=device)
        gram[rows, columns] = gram[columns, rows] = half
        return cls(gram, sums, counts)

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy by name; of the Gram matrix, which is symmetric, the upper half."""
        rows, columns = torch.triu_indices(*self.gram.shape, device=self.gram.device)
        parts = self.gram[rows, columns], self.sums.clone(), self.counts.clone()
        return dict(zip(self.NAMES, parts, strict=True))

    def added(self, features_ND: Tensor, labels_N: Tensor, classes: int) -> Statistics:
        """Return the sums with these images too, for so many classes."""
        x_ND = features_ND.double()
        extra = classes - len(self.counts)
        sums = torch.cat([self.sums, self.sums.new_zeros(extra, x_ND.shape[1])])
        counts = torch.cat([self.counts, self.counts.new_zeros(extra)])
        return replace(
            self,
            gram=self.gram + x_ND.T @ x_ND,
            sums=sums.index_add(0, labels_N, x_ND),
            counts=counts.index_add(0, labels_N, counts.new_ones(len(labels_N))),
        )

    @property
    def means(self) -> Tensor:
        """The mean of each class."""
        return self.sums / self.counts[:, None]

    @property
    def scatter(self) -> Tensor:
        """The scatter of the features within their classes."""
        return self.gram - self.sums.T @ self.means


class Solution(NamedTuple):
    """Linear scores, whose softmax after multiplication by the temperature gives probabilities."""

    weight: Tensor
    bias: Tensor
    temperature: float
    penalty: float
    left_out: Tensor
    """The scores of the images at hand by all others."""

    def log_probabilities(self, features_ND: Tensor) -> Tensor:
        """Return N x classes."""
        scores_NC = features_ND.double() @ self.weight.T + self.bias
        return (self.temperature * scores_NC).log_softmax(1)


def solve(
    statistics: Statistics, features_ND: Tensor, labels_N: Tensor, choices: Sequence[slice] = (slice(None),)
) -> Solution:
    """Solve for all images of the statistics.

    Which of the `choices` of features serves, penalty and temperature suit the images at hand, which are among those of
    the statistics. Images that are the only one of their class cannot be left out, and do not count for that.
    """
    best = min((_solved(statistics, features_ND, labels_N, chosen) for chosen in choices), key=lambda found: found[0])
    return best[1]


def _solved(statistics: Statistics, features_ND: Tensor, labels_N: Tensor, chosen: slice) -> tuple[float, Solution]:
    """Return the loss of images left out, and the solution by the chosen features alone; others have weight 0."""
    means_CD, counts_N = statistics.means[:, chosen], statistics.counts[labels_N]
    values_D, vectors_DD = torch.linalg.eigh(statistics.scatter[chosen, chosen])
    values_D = values_D.clamp_min(0)
    x_ND, means_CD = features_ND[:, chosen].double() @ vectors_DD, means_CD @ vectors_DD
    some = (counts_N > 1).nonzero()[:, 0]
    some = some[:: -(-len(some) // MOST_CHOSEN_BY) or 1]
    tried = []
    for penalty in PENALTIES:
        scores = _left_out(x_ND[some], labels_N[some], means_CD, counts_N[some], 1 / (values_D + penalty))
        tried.append((*_best_temperature(scores, labels_N[some]), penalty))
    loss, temperature, penalty = min(tried)
    left_out_NC = _left_out(x_ND, labels_N, means_CD, counts_N, 1 / (values_D + penalty))
    scaled_CD = means_CD / (values_D + penalty)
    bias_C = -0.5 * (scaled_CD * means_CD).sum(1)
    weight_CD = torch.zeros_like(statistics.sums)
    weight_CD[:, chosen] = scaled_CD @ vectors_DD.T
    return loss, Solution(weight_CD, bias_C, temperature, penalty, left_out_NC)


def _best_temperature(scores_NC: Tensor, labels_N: Tensor) -> tuple[float, float]:
    """Return the least cross-entropy that a temperature gives, and the temperature."""
    losses = {
        float(F.cross_entropy(temperature * scores_NC, labels_N)) if len(labels_N) else 0.0: temperature
        for temperature in reversed(TEMPERATURES)
    }
    return min(losses), losses[min(losses)]


def _left_out(x_ND: Tensor, labels_N: Tensor, means_CD: Tensor, counts_N: Tensor, inverse_D: Tensor) -> Tensor:
    """Return the scores of each image by the solution without it, given the inverse in the scatter's own directions.

    Without image x of class y with n images, the mean m of y becomes m - d / (n - 1) with d = x - m, and the scatter
    loses n / (n - 1) times the outer product of d with itself. `products` below are with the inverse in between.
    """
    own = torch.arange(len(labels_N), device=labels_N.device), labels_N
    rest_N = (counts_N - 1).clamp_min(1)
    mean_mean_CC = (means_CD * inverse_D) @ means_CD.T
    x_mean_NC = (x_ND * inverse_D) @ means_CD.T
    x_x_N = (x_ND * inverse_D * x_ND).sum(1)
    d_mean_NC = x_mean_NC - mean_mean_CC[labels_N]
    d_x_N = x_x_N - x_mean_NC[own]
    d_d_N = d_x_N - d_mean_NC[own]
    gain_N = 1 / ((rest_N / counts_N) - d_d_N)  # of the inverse, by Sherman and Morrison
    x_mean_NC = x_mean_NC + gain_N[:, None] * d_x_N[:, None] * d_mean_NC
    squares_NC = mean_mean_CC.diagonal() + gain_N[:, None] * d_mean_NC.square()
    stretch_N = 1 + gain_N * d_d_N
    own_x_N = x_mean_NC[own] - d_x_N * stretch_N / rest_N
    own_square_N = squares_NC[own] - (2 * d_mean_NC[own] - d_d_N / rest_N) * stretch_N / rest_N
    scores_NC = x_mean_NC - 0.5 * squares_NC
    scores_NC[own] = own_x_N - 0.5 * own_square_N
    return scores_NC
