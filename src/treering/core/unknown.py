"""How far an image is from the class it resembles most, so that one that resembles no class can be told.

The distance is Mahalanobis's, by the covariance that all classes share; it needs the sums of `closed_form.py` alone.
What is usual is known from images that are left out: each is measured by all others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from treering.core.closed_form import Statistics, rows_at_once

PENALTY = 1.5
"""What is added to the diagonal of the scatter of features of length 1."""
QUANTILES = 201
"""How many quantiles of the usual distances are kept: the share of images that are refused may be any."""


class Distances:
    """The distances of images to the nearest class mean, squared."""

    def __init__(self, statistics: Statistics, chosen: slice = slice(None)) -> None:
        self.chosen, self.counts = chosen, statistics.counts
        self.means = statistics.means[:, chosen]
        self.inverse = torch.cholesky_inverse(_factor(statistics, chosen))

    def __call__(self, features_ND: Tensor) -> Tensor:
        """Return the distance of each image to the nearest class."""
        return self._to_classes(features_ND[:, self.chosen].double())[0].min(1).values

    def module(self) -> nn.Module:
        """Return a module that does the same in float32."""
        return _InFloat32(self)

    def left_out(self, features_ND: Tensor, labels_N: Tensor) -> Tensor:
        """Return the distances of images that the sums hold, each as the sums would be without it.

        Infinite for the only image of a class.
        """
        parts = (part.split(rows_at_once(len(self.means))) for part in (features_ND, labels_N))
        return torch.cat([self._left_out_of(x_ND, labels) for x_ND, labels in zip(*parts, strict=True)])

    def _left_out_of(self, features_ND: Tensor, labels_N: Tensor) -> Tensor:
        """Do that for a part of the images.

        Without image x of class y with n images, the mean of y moves away from x, and the scatter loses n / (n - 1)
        times the outer product of x - mean with itself.
        """
        x_ND = features_ND[:, self.chosen].double()
        distance_NC, x_inverse_ND = self._to_classes(x_ND)
        own, counts_N = (torch.arange(len(labels_N), device=labels_N.device), labels_N), self.counts[labels_N]
        rest_N = counts_N - 1
        d_ND = x_ND - self.means[labels_N]
        d_inverse_ND = x_inverse_ND - (self.means @ self.inverse)[labels_N]
        d_d_N = (d_ND * d_inverse_ND).sum(1)
        gain_N = 1 / (rest_N / counts_N - d_d_N).clamp_min(1e-6)
        d_x_NC = (d_inverse_ND * x_ND).sum(1)[:, None] - d_inverse_ND @ self.means.T
        distance_NC = distance_NC + gain_N[:, None] * d_x_NC.square()
        distance_NC[own] = (counts_N / rest_N).square() * (d_d_N + gain_N * d_d_N.square())
        return torch.where(rest_N > 0, distance_NC.min(1).values, torch.inf)

    def _to_classes(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        x_inverse_ND = x_ND @ self.inverse
        squares_C = ((self.means @ self.inverse) * self.means).sum(1)
        return (x_inverse_ND * x_ND).sum(1)[:, None] - 2 * x_inverse_ND @ self.means.T + squares_C, x_inverse_ND


class _InFloat32(nn.Module):
    """Maps features of length 1 to distances; both are seen from the middle of all classes, which costs few digits."""

    middle: Tensor
    inverse: Tensor
    directions: Tensor
    squares: Tensor

    def __init__(self, distances: Distances) -> None:
        super().__init__()
        self.chosen = distances.chosen
        middle = distances.means.mean(0)
        means = distances.means - middle
        directions = means @ distances.inverse
        parts = {"middle": middle, "inverse": distances.inverse, "directions": directions.T}
        parts["squares"] = (directions * means).sum(1)
        for name, part in parts.items():
            self.register_buffer(name, part.float().contiguous())

    def forward(self, features_ND: Tensor) -> Tensor:
        x_ND = features_ND[:, self.chosen] - self.middle
        to_classes_NC = self.squares - 2 * x_ND @ self.directions
        return (x_ND @ self.inverse * x_ND).sum(1) + to_classes_NC.amin(1)


def require_a_covariance(statistics: Statistics, chosen: slice) -> None:
    """Raise ValueError if no images have such a scatter of the chosen features."""
    _factor(statistics, chosen)


def _factor(statistics: Statistics, chosen: slice) -> Tensor:
    """Return the Cholesky factor of the scatter of the chosen features, with the penalty on its diagonal."""
    sums_CD = statistics.sums[:, chosen]
    scatter = statistics.gram[chosen, chosen] - sums_CD.T @ statistics.means[:, chosen]
    scatter.diagonal().add_(PENALTY)
    factor, wrong = torch.linalg.cholesky_ex(scatter)
    if wrong:
        raise ValueError(f"{Statistics.NAMES[0]} cannot be")
    return factor


def usual(distances_N: Tensor) -> Tensor:
    """Return quantiles of the finite distances, from the least to the largest; none if there are none."""
    finite_N = distances_N[distances_N.isfinite()]
    if not len(finite_N):
        return finite_N
    return finite_N.quantile(torch.linspace(0, 1, QUANTILES, dtype=finite_N.dtype, device=finite_N.device))
