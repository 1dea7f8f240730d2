"""Rules that rank the images of a class for the memory [3.1, 6.3]: plain functions from features to a ranking.

A rule takes the features of B classes of N images each and returns, per class, the indices of its `count` best
images, best first. Features are L2-normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Rule = Callable[[Tensor, int, torch.Generator], Tensor]

BINS = 10
"""The number of bins of the histogram rule [6.3]."""


def herding(features_BND: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Pick greedily: the k-th pick brings the mean of the k picked features nearest to the class mean."""
    mean_BD = features_BND.mean(1)
    squares_BN = features_BND.square().sum(2)
    picked_sum_BD = torch.zeros_like(mean_BD)
    taken_BN = torch.zeros_like(squares_BN)
    ranking = []
    for k in range(1, count + 1):
        # |k mean - (sum + f)|^2 = constant - 2 f.(k mean - sum) + |f|^2
        wanted_BD1 = (k * mean_BD - picked_sum_BD)[:, :, None]
        distance_BN = squares_BN - 2 * (features_BND @ wanted_BD1)[:, :, 0] + taken_BN
        pick_B1 = distance_BN.argmin(1, keepdim=True)
        taken_BN.scatter_(1, pick_B1, torch.inf)
        picked_sum_BD += features_BND.take_along_dim(pick_B1[:, :, None], 1)[:, 0]
        ranking.append(pick_B1)
    return torch.cat(ranking, 1)


def random(features_BND: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rank the images of each class in random order."""
    keys_BN = torch.rand(features_BND.shape[:2], generator=generator, device=generator.device)
    return keys_BN.argsort(1)[:, :count]


def histogram(features_BND: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Bin the images by their distance to the class mean; each prefix of the ranking has every bin's proportion.

    The j-th image of a bin of m, counted from 0 in random order, stands at (j + 1/2) / m of the ranking.
    """
    distance_BN = (features_BND - features_BND.mean(1, keepdim=True)).norm(dim=2)
    low, high = distance_BN.amin(1, keepdim=True), distance_BN.amax(1, keepdim=True)
    position_BN = (distance_BN - low) / (high - low).clamp_min(torch.finfo(distance_BN.dtype).tiny)
    bin_BN = (position_BN * BINS).long().clamp_max(BINS - 1)

    shuffled_BN = random(features_BND, features_BND.shape[1], generator)
    member_BNK = F.one_hot(bin_BN.gather(1, shuffled_BN), BINS)
    size_BN = member_BNK.sum(1).gather(1, bin_BN.gather(1, shuffled_BN))
    earlier_BN = (member_BNK.cumsum(1) * member_BNK).sum(2) - 1
    place_BN = (earlier_BN + 0.5) / size_BN
    return shuffled_BN.gather(1, place_BN.argsort(dim=1, stable=True))[:, :count]


RULES: dict[str, Rule] = {"herding": herding, "random": random, "histogram": histogram}


def rank(features: Sequence[Tensor], count: int, rule: Rule, generator: torch.Generator) -> list[Tensor]:
    """Return each class's ranking of at most `count` images; classes of the same size are ranked together."""
    rankings: dict[int, Tensor] = {}
    for size in sorted({len(part) for part in features}):
        group = [index for index, part in enumerate(features) if len(part) == size]
        stacked_BND = F.normalize(torch.stack([features[index] for index in group]), dim=2)
        rankings.update(zip(group, rule(stacked_BND, min(count, size), generator), strict=True))
    return [rankings[index] for index in range(len(features))]
