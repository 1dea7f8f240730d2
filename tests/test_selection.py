"""The three rules that rank a class's images, against brute force."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.core import selection

RULES = sorted(selection.RULES)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_features(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=seeded(seed))


def test_the_recipes_rules_are_herding_random_and_histogram():
    assert RULES == ["herding", "histogram", "random"]
    assert selection.BINS == 10


@settings(max_examples=100)
@given(
    classes=st.integers(1, 4),
    size=st.integers(1, 25),
    dimensions=st.integers(2, 6),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_herding_is_a_greedy_search_for_the_class_mean(
    classes: int, size: int, dimensions: int, share: float, seed: int
):
    features = random_features(seed, classes, size, dimensions)
    count = max(1, round(share * size))
    rankings = selection.herding(features, count, seeded())
    assert rankings.shape == (classes, count)
    for part, ranking in zip(features.numpy(), rankings.tolist(), strict=True):
        assert len(set(ranking)) == count
        assert oracles.herding_regret(list(part), ranking) <= 1e-6


def test_herding_finds_the_ranking_of_brute_force():
    features = random_features(1, 3, 40, 5)
    for part, ranking in zip(features.numpy(), selection.herding(features, 40, seeded()).tolist(), strict=True):
        assert ranking == oracles.herding(list(part), 40)


@pytest.mark.parametrize("count", [1, 8, 100])
def test_rank_herds_each_class_alone_on_normalised_features_whatever_the_class_sizes(count: int):
    sizes = [5, 12, 5, 1, 30, 12]
    # Lengths from 0.01 to 100: without normalising, the ranking would be another.
    features = [
        random_features(i, size, 4) * 10 ** torch.linspace(-2, 2, size)[:, None] for i, size in enumerate(sizes)
    ]
    rankings = selection.rank(features, count, selection.herding, seeded())
    assert len(rankings) == len(sizes)
    for part, size, ranking in zip(features, sizes, rankings, strict=True):
        assert ranking.tolist() == oracles.herding(oracles.normalised(part.numpy()), min(count, size))


@pytest.mark.parametrize("rule", RULES)
def test_a_count_beyond_the_class_size_ranks_every_image_once(rule: str):
    features = [random_features(i, size, 3) for i, size in enumerate([1, 9, 4])]
    rankings = selection.rank(features, 1000, selection.RULES[rule], seeded())
    assert [sorted(ranking.tolist()) for ranking in rankings] == [[0], list(range(9)), list(range(4))]


@settings(max_examples=100)
@given(
    points=st.lists(st.tuples(st.integers(-1, 1), st.integers(-1, 1)), min_size=1, max_size=20),
    rule=st.sampled_from(RULES),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_duplicates_ties_and_zero_features_give_a_valid_ranking(points: list, rule: str, dtype: torch.dtype):
    features = torch.tensor(points, dtype=dtype)
    [ranking] = selection.rank([features], len(points), selection.RULES[rule], seeded())
    assert sorted(ranking.tolist()) == list(range(len(points)))
    if rule == "herding":
        assert oracles.herding_regret(oracles.normalised(features.numpy()), ranking.tolist()) <= 1e-6


@pytest.mark.parametrize("rule", RULES)
def test_features_that_are_all_zero_give_a_valid_ranking(rule: str):
    [ranking] = selection.rank([torch.zeros(7, 3)], 5, selection.RULES[rule], seeded())
    assert len(set(ranking.tolist())) == 5
    assert set(ranking.tolist()) <= set(range(7))


@pytest.mark.parametrize("rule", RULES)
def test_a_shorter_ranking_is_the_beginning_of_a_longer_one(rule: str):
    features = [random_features(3, 30, 4)]
    [long] = selection.rank(features, 30, selection.RULES[rule], seeded(4))
    [short] = selection.rank(features, 11, selection.RULES[rule], seeded(4))
    assert short.tolist() == long.tolist()[:11]


@pytest.mark.parametrize("rule", RULES)
def test_the_same_seed_gives_the_same_ranking(rule: str):
    features = [random_features(i, size, 4) for i, size in enumerate([20, 13, 20])]
    first, again = (selection.rank(features, 20, selection.RULES[rule], seeded(5)) for _ in range(2))
    assert [ranking.tolist() for ranking in first] == [ranking.tolist() for ranking in again]


@pytest.mark.parametrize("rule", ["random", "histogram"])
def test_another_seed_gives_another_ranking(rule: str):
    features = [random_features(0, 50, 4)]
    rankings = [selection.rank(features, 50, selection.RULES[rule], seeded(seed))[0].tolist() for seed in range(2)]
    assert rankings[0] != rankings[1]


def test_random_puts_every_image_at_every_rank_equally_often():
    classes, size = 6000, 5
    rankings = selection.random(torch.zeros(classes, size, 2), size, seeded(6))
    expected = classes / size
    deviation = math.sqrt(classes * (1 / size) * (1 - 1 / size))
    for position in range(size):
        counts = torch.bincount(rankings[:, position], minlength=size)
        assert (counts - expected).abs().max() < 5 * deviation
    assert (rankings.sort(1).values == torch.arange(size)).all()


def test_random_ignores_the_features():
    near, far = (selection.random(torch.full((1, 9, 2), value), 9, seeded(7)) for value in (0.0, 5.0))
    assert near.tolist() == far.tolist()


@settings(max_examples=200)
@given(size=st.integers(3, 80), dimensions=st.integers(1, 4), power=st.floats(0.3, 4), seed=st.integers(0, 2**31))
def test_every_prefix_of_the_histogram_ranking_takes_from_each_bin_its_proportion(
    size: int, dimensions: int, power: float, seed: int
):
    """A bin of m of N images gives c of the first n, |c - n m / N| <= (1 - m / N) / 2 + (filled bins - 1) m / N / 2.

    Its j-th image stands at (j + 1/2) / m of the ranking, so up to place t it has given t m + e with |e| <= 1/2.
    All bins together: n = t N + the sum of their e. So c - n m / N = e - (the sum of all e) m / N.
    """
    directions = random_features(seed, size, dimensions)
    features = directions / directions.norm(dim=1, keepdim=True) * directions.norm(dim=1, keepdim=True) ** power
    bins = oracles.distance_bins(list(features.numpy()))
    totals = Counter(bins)
    [ranking] = selection.histogram(features[None], size, seeded(seed)).tolist()
    assert sorted(ranking) == list(range(size))
    given: Counter[int] = Counter()
    for n, pick in enumerate(ranking, start=1):
        given[bins[pick]] += 1
        for label, total in totals.items():
            share = total / size
            bound = (1 - share) / 2 + share * (len(totals) - 1) / 2
            assert abs(given[label] - n * share) <= bound + 1e-9


def test_the_histogram_ranks_each_class_by_its_own_bins():
    features = torch.stack([random_features(8, 60, 3), random_features(9, 60, 3) * 100 + 7])
    rankings = selection.histogram(features, 60, seeded(10)).tolist()
    for part, ranking in zip(features.numpy(), rankings, strict=True):
        bins = oracles.distance_bins(list(part))
        half = Counter(bins[pick] for pick in ranking[:30])
        for label, total in Counter(bins).items():
            share = total / 60
            assert abs(half[label] - total / 2) <= (1 - share) / 2 + share * 4.5


def test_equal_distances_to_the_mean_make_one_bin():
    corners = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    [ranking] = selection.histogram(corners[None], 4, seeded()).tolist()
    assert sorted(ranking) == [0, 1, 2, 3]


def test_images_of_one_bin_come_in_random_order():
    same = torch.ones(1, 40, 3, dtype=torch.float64)
    [ranking] = selection.histogram(same, 40, seeded(11)).tolist()
    assert sorted(ranking) == list(range(40))
    assert ranking != list(range(40))
    assert abs(np.corrcoef(ranking, range(40))[0, 1]) < 0.6


def test_any_function_of_the_signature_can_stand_in_for_a_rule():
    seen = []

    def longest_first(features_BND: Tensor, count: int, generator: torch.Generator) -> Tensor:
        seen.append((tuple(features_BND.shape), count))
        return features_BND[:, :, 0].argsort(1, descending=True)[:, :count]

    features = [torch.tensor([[1.0, 9.0], [9.0, 1.0], [5.0, 5.0]]), torch.tensor([[0.0, 1.0]]), torch.eye(3, 2)]
    rankings = selection.rank(features, 2, longest_first, seeded())
    assert [ranking.tolist() for ranking in rankings] == [[1, 2], [0], [0, 1]]
    assert sorted(seen) == [((1, 1, 2), 1), ((2, 3, 2), 2)]
