"""A classifier of fixed features that is solved rather than trained: linear discriminants with one shared covariance.

Of all images ever shown it needs a Gram matrix, and a sum and a count for each class. So a step costs time by its own
images alone, and the sums do not depend on the order of steps. Each class counts alike, however many
images it has: chance makes the mean of few images longer than that of many, which the bias of a class makes up for.
Penalty and temperature are those under which every image at hand is best told by all others: leaving one image out
changes the solution by terms of rank one, so that this costs no more than the solution itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

PENALTIES = tuple(torch.logspace(-3, 2, 26, dtype=torch.float64).tolist())
"""What is tried on the diagonal of the scatter of features of length 1."""
TEMPERATURES = tuple(torch.logspace(-0.5, 3.5, 41, dtype=torch.float64).tolist())
"""What is tried as the factor of the scores before the softmax."""
MOST_CHOSEN_BY = 2000
"""The most images by which features, penalty and temperature are chosen."""
MOST_IMAGES = 2**40
"""What the number of images of a class stays below, so that sums of such numbers are exact."""
MOST_AT_ONCE, MOST_PRODUCTS = 2**22, 2**24
"""The most scores that are computed at once, and the most products of means that are held for that."""
SMOOTHING = 0.01
"""The share of each label that is spread over all classes when a temperature is chosen."""


@dataclass(frozen=True)
class Statistics:
    """The sums over all images that the solution needs, in float64."""

    NAMES: ClassVar = ("statistics.gram", "statistics.sums", "statistics.counts")
    FORGOTTEN: ClassVar = "statistics.forgotten"
    """The name of `forgotten` where it is saved, which is only where it is not 0."""

    gram: Tensor
    sums: Tensor
    counts: Tensor
    forgotten: float = 0.0
    """How many images of forgotten classes are in the scatter, less one for each of these classes."""

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
        forgotten = tensors[cls.FORGOTTEN].tolist()[0] if cls.FORGOTTEN in tensors else 0.0
        if not (0 <= forgotten < MOST_IMAGES and forgotten == round(forgotten)):
            raise ValueError(f"{cls.FORGOTTEN} cannot be")
        most = (counts.sum() + 2 * forgotten) * 1.001  # each image adds features of length 1
        whole = (counts >= 1).all() and (counts == counts.round()).all() and (counts < MOST_IMAGES).all()
        if not (whole and (sums.abs() <= 1.001 * counts[:, None]).all() and (half.abs() <= most).all()):
            raise ValueError(f"{cls.NAMES[-1]} cannot be")
        gram = half.new_zeros(features, features)
        rows, columns = torch.triu_indices(features, features, device=device)
        gram[rows, columns] = gram[columns, rows] = half
        return cls(gram, sums, counts, forgotten)

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy by name; of the Gram matrix, which is symmetric, the upper half."""
        rows, columns = torch.triu_indices(*self.gram.shape, device=self.gram.device)
        parts = self.gram[rows, columns], self.sums.clone(), self.counts.clone()
        forgotten = {self.FORGOTTEN: self.counts.new_tensor([self.forgotten])} if self.forgotten else {}
        return dict(zip(self.NAMES, parts, strict=True)) | forgotten

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

    def without(self, column: int) -> Statistics:
        """Return the sums without those of one class, whose images stay in the scatter that all classes share."""
        own_D, count = self.sums[column], self.counts[column]
        others = torch.arange(len(self.counts), device=self.counts.device) != column
        gram = self.gram - own_D[:, None] * own_D / count
        return Statistics(gram, self.sums[others], self.counts[others], self.forgotten + float(count) - 1)

    def merged(self, kept: int, gone: int) -> Statistics:
        """Return the sums with the images of the class `gone` as images of the class `kept`."""
        others = torch.arange(len(self.counts), device=self.counts.device) != gone
        sums, counts = self.sums.clone(), self.counts.clone()
        sums[kept] += sums[gone]
        counts[kept] += counts[gone]
        return replace(self, sums=sums[others], counts=counts[others])

    @property
    def freedom(self) -> float:
        """How many images the scatter is of, less one for each class."""
        return float(self.counts.sum()) - len(self.counts) + self.forgotten

    @property
    def means(self) -> Tensor:
        """The mean of each class."""
        return self.sums / self.counts[:, None]

    @property
    def scatter(self) -> Tensor:
        """The scatter of the features within their classes."""
        return self.gram - self.sums.T @ self.means


class Setting(NamedTuple):
    """What is chosen by images at hand that are left out."""

    choice: int
    """The number of the features that serve."""
    penalty: float
    temperature: float


USUAL = Setting(0, 0.4, 60.0)
"""What serves until enough images are at hand to choose by."""


class Solution(NamedTuple):
    """Linear scores, whose softmax after multiplication by the temperature gives probabilities."""

    weight: Tensor
    bias: Tensor
    setting: Setting
    left_out: Tensor
    """The scores of the images at hand by all others; meaningless for an image that is the only one of its class."""

    def log_probabilities(self, features_ND: Tensor) -> Tensor:
        """Return N x classes."""
        scores_NC = features_ND.double() @ self.weight.T + self.bias
        return (self.setting.temperature * scores_NC).log_softmax(1)

    def said_by_others(self) -> Tensor:
        """Turn `left_out` into the logarithms of probabilities, without a copy, and return it."""
        for part_NC in self.left_out.split(rows_at_once(self.left_out.shape[1])):
            part_NC.copy_((self.setting.temperature * part_NC).log_softmax(1))
        return self.left_out


def solve(
    statistics: Statistics,
    features_ND: Tensor,
    labels_N: Tensor,
    choices: Sequence[slice] = (slice(None),),
    before: Setting = USUAL,
    judging_N: Tensor | None = None,
) -> Solution:
    """Solve for all images of the statistics.

    Which of the `choices` of features serves, penalty and temperature suit the images at hand, which are among those of
    the statistics, or those at hand that are `judging`: each is told by all others, and each class counts alike. If
    they are of fewer than half of the classes, the setting stays as it was `before`.
    """
    setting = before if before.choice < len(choices) else USUAL
    some = _to_choose_by(statistics, labels_N, judging_N)
    choosing = 2 * len(labels_N[some].unique()) >= len(statistics.counts)
    serving = range(len(choices)) if choosing else [setting.choice]
    parts = {number: _in_own_directions(statistics, features_ND, choices[number]) for number in serving}
    if choosing:
        tried = []
        for number, (values_D, _, x_ND, means_CD) in parts.items():
            for penalty in PENALTIES:
                scores = _left_out(statistics, x_ND[some], labels_N[some], means_CD, values_D, penalty)
                loss, temperature = _best_temperature(scores, labels_N[some])
                tried.append((loss, Setting(number, penalty, temperature)))
        setting = min(tried)[1]
    values_D, vectors_DD, x_ND, means_CD = parts[setting.choice]
    inverse_D = 1 / (values_D + setting.penalty)
    left_out_NC, row = x_ND.new_empty(len(x_ND), len(means_CD)), 0
    for part_NC in _left_out(statistics, x_ND, labels_N, means_CD, values_D, setting.penalty):
        left_out_NC[row : row + len(part_NC)] = part_NC
        row += len(part_NC)
    scaled_CD, weight_CD = means_CD * inverse_D, torch.zeros_like(statistics.sums)
    weight_CD[:, choices[setting.choice]] = scaled_CD @ vectors_DD.T
    squares_C = (scaled_CD * means_CD).sum(1) - _chance(inverse_D, setting.penalty, statistics) / statistics.counts
    return Solution(weight_CD, -0.5 * squares_C, setting, left_out_NC)


def _chance(inverse_D: Tensor, penalty: float, statistics: Statistics) -> Tensor:
    """Return by how much chance lengthens the square of a mean of one image; that of n images has an n-th of it."""
    return (1 - penalty * inverse_D).sum() / max(statistics.freedom, 1)


def _to_choose_by(statistics: Statistics, labels_N: Tensor, judging_N: Tensor | None = None) -> Tensor:
    """Return the images that can be left out, at most so many of each class that there are `MOST_CHOSEN_BY` in all."""
    order_N = labels_N.argsort(stable=True)
    can_N = statistics.counts[labels_N] > 1
    if judging_N is not None:
        can_N, order_N = can_N & judging_N, (2 * labels_N + ~judging_N).argsort(stable=True)  # those of a class first
    sizes = labels_N.bincount(minlength=len(statistics.counts))
    place_N = torch.empty_like(order_N)
    place_N[order_N] = torch.arange(len(order_N), device=order_N.device) - (sizes.cumsum(0) - sizes)[labels_N[order_N]]
    most = max(1, MOST_CHOSEN_BY // len(statistics.counts))
    return (can_N & (place_N < most)).nonzero()[:, 0]


def _in_own_directions(
    statistics: Statistics, features_ND: Tensor, chosen: slice
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the scatter's values and directions for the chosen features, and features and means along these."""
    values_D, vectors_DD = _own_directions(statistics.scatter[chosen, chosen])
    x_ND, means_CD = features_ND[:, chosen].double() @ vectors_DD, statistics.means[:, chosen] @ vectors_DD
    return values_D.clamp_min(0), vectors_DD, x_ND, means_CD


def _own_directions(matrix_DD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values and directions of a symmetric matrix.

    The library that torch calls with several threads gives up on some matrices of low rank, which NumPy's does not.
    """
    try:
        return torch.linalg.eigh(matrix_DD)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values_D, vectors_DD = map(torch.from_numpy, np.linalg.eigh(matrix_DD.cpu().numpy()))
        return values_D.to(matrix_DD.device), vectors_DD.to(matrix_DD.device)


def _best_temperature(scores: Iterable[Tensor], labels_N: Tensor) -> tuple[float, float]:
    """Return the least cross-entropy that a temperature gives, and the temperature; the scores come in parts of rows.

    The labels are smoothed, so that images which are all told right do not ask for ever higher temperatures. The loss
    is convex in the temperature, which spares most of them where all scores are at hand at once.
    """
    losses, row, weights = dict.fromkeys(TEMPERATURES, 0.0), 0, 0.0
    for part_NC in scores:
        count_C = labels_N.bincount(minlength=part_NC.shape[1])
        weight_C = (count_C > 0) / count_C.clamp_min(1).to(part_NC.dtype)  # a class without images here has no say
        labels = labels_N[row : row + len(part_NC)]
        loss = functools.partial(_smoothed_loss, part_NC, labels, weight_C)
        row += len(part_NC)
        weights += float(weight_C[labels].sum())
        if len(part_NC) == len(labels_N):
            best = _least(loss, TEMPERATURES)
            return loss(best) / weights, best
        for temperature in TEMPERATURES:
            losses[temperature] += loss(temperature)
    best = min(TEMPERATURES, key=lambda temperature: losses[temperature])
    return losses[best] / weights, best


def _smoothed_loss(scores_NC: Tensor, labels_N: Tensor, weight_C: Tensor, temperature: float) -> float:
    scaled_NC = temperature * scores_NC
    return float(F.cross_entropy(scaled_NC, labels_N, weight_C, label_smoothing=SMOOTHING, reduction="sum"))


def _least(function: Callable[[float], float], values: Sequence[float]) -> float:
    """Return which of these values, in rising order, a convex function is least at."""
    value = functools.cache(function)
    lowest, highest = 0, len(values) - 1
    while lowest < highest:
        middle = (lowest + highest) // 2
        falls = value(values[middle]) > value(values[middle + 1])
        lowest, highest = (middle + 1, highest) if falls else (lowest, middle)
    return values[lowest]


def rows_at_once(classes: int) -> int:
    """Return for how many images scores are computed at once, which bounds the memory that they take meanwhile."""
    return max(1, MOST_AT_ONCE // max(classes, 1))


def _left_out(
    statistics: Statistics, x_ND: Tensor, labels_N: Tensor, means_CD: Tensor, values_D: Tensor, penalty: float
) -> Iterator[Tensor]:
    """Yield the scores of each image by the solution without it, in parts of rows.

    All are given in the scatter's own directions.
    """
    classes, inverse_D = len(means_CD), 1 / (values_D + penalty)
    scaled_CD = means_CD * inverse_D
    mean_mean_CC = scaled_CD @ means_CD.T if classes**2 <= MOST_PRODUCTS and len(labels_N) else None
    for x_nD, labels_n in zip(*(part.split(rows_at_once(classes)) for part in (x_ND, labels_N)), strict=True):
        if len(labels_n):
            mean_mean_nC = scaled_CD[labels_n] @ means_CD.T if mean_mean_CC is None else mean_mean_CC[labels_n]
            yield _left_out_of(statistics, x_nD, labels_n, means_CD, mean_mean_nC, inverse_D, penalty)


def _left_out_of(
    statistics: Statistics,
    x_ND: Tensor,
    labels_N: Tensor,
    means_CD: Tensor,
    mean_mean_NC: Tensor,
    inverse_D: Tensor,
    penalty: float,
) -> Tensor:
    """Return the scores of each image by the solution without it.

    Without image x of class y with n images, the mean m of y becomes m - d / (n - 1) with d = x - m, and the scatter
    loses n / (n - 1) times the outer product of d with itself. Products below are with the inverse in between.
    """
    own = torch.arange(len(labels_N), device=labels_N.device), labels_N
    counts_N = statistics.counts[labels_N]
    rest_N = (counts_N - 1).clamp_min(1)
    x_mean_NC = (x_ND * inverse_D) @ means_CD.T
    x_x_N = (x_ND * inverse_D * x_ND).sum(1)
    d_mean_NC = x_mean_NC - mean_mean_NC
    d_x_N = x_x_N - x_mean_NC[own]
    d_d_N = d_x_N - d_mean_NC[own]
    # By Sherman and Morrison; positive but for rounding, where an image's features were summed on another machine.
    gain_N = 1 / (rest_N / counts_N - d_d_N).clamp_min(1e-6)
    x_mean_NC = x_mean_NC + gain_N[:, None] * d_x_N[:, None] * d_mean_NC
    squares_NC = (means_CD * inverse_D * means_CD).sum(1) + gain_N[:, None] * d_mean_NC.square()
    stretch_N = 1 + gain_N * d_d_N
    own_x_N = x_mean_NC[own] - d_x_N * stretch_N / rest_N
    own_square_N = squares_NC[own] - (2 * d_mean_NC[own] - d_d_N / rest_N) * stretch_N / rest_N
    # The trace of the inverse without the image, and with it what chance adds to the squares of means.
    d_ND = x_ND - means_CD[labels_N]
    trace_N = inverse_D.sum() + gain_N * (d_ND * inverse_D).square().sum(1)
    chance_N = (len(inverse_D) - penalty * trace_N) / max(statistics.freedom - 1, 1)
    scores_NC = x_mean_NC - 0.5 * (squares_NC - chance_N[:, None] / statistics.counts)
    scores_NC[own] = own_x_N - 0.5 * (own_square_N - chance_N / rest_N)
    return scores_NC
