"""Every metric against a plain loop written from its definition."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from treering.core import metrics

accuracies = st.floats(0, 100)


def test_average_counts_every_step():
    assert metrics.average([90.0, 60.0, 30.0]) == pytest.approx(60.0)


def test_average_without_first_leaves_the_first_step_out():
    assert metrics.average_without_first([90.0, 60.0, 30.0]) == pytest.approx(45.0)


def test_one_step_has_no_incremental_accuracy():
    assert metrics.average_without_first([90.0]) is None


@given(first=accuracies, rest=st.lists(accuracies, min_size=1, max_size=20))
def test_average_without_first_does_not_depend_on_the_first_step(first: float, rest: list[float]):
    total = 0.0
    for accuracy in rest:
        total += accuracy
    assert metrics.average_without_first([first, *rest]) == pytest.approx(total / len(rest))
    assert metrics.average([first, *rest]) == pytest.approx((first + total) / (1 + len(rest)))


# --- Of scores --------------------------------------------------------------------------------------------------------


@st.composite
def predictions(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Scores N x C without ties, labels, and the task of each class; tasks are uneven and every class has an image."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    random = np.random.RandomState(draw(st.integers(0, 2**32 - 1)))
    classes = sum(sizes)
    labels = random.permutation([*range(classes), *random.randint(0, classes, draw(st.integers(0, 12)))])
    scores = np.stack([random.permutation(classes) for _ in labels]) / classes - random.randint(0, 2)
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    return torch.from_numpy(scores), torch.from_numpy(labels), torch.tensor(tasks)


def winner(scores: list[float], allowed: list[int]) -> int:
    """The class with the highest score among those allowed."""
    return max(allowed, key=lambda label: scores[label])


def share(right: list[bool]) -> float:
    return 100 * sum(right) / len(right)


@given(predictions(), st.sampled_from([1, 2, 5]))
def test_top_k_is_the_share_of_images_whose_class_has_fewer_than_k_above_it(
    given_: tuple[Tensor, Tensor, Tensor], k: int
):
    scores, labels, _ = given_
    right = []
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        right.append(sum(other > row[label] for other in row) < k)
    assert metrics.top_k(scores, labels, k) == pytest.approx(share(right))
    if scores.shape[1] <= k:
        assert metrics.top_k(scores, labels, k) == 100
    if k == 1:
        assert metrics.top_k(scores, labels) == metrics.top_k(scores, labels, 1)


@given(predictions())
def test_confusion_counts_images_by_their_class_and_the_one_they_are_taken_for(given_: tuple[Tensor, Tensor, Tensor]):
    scores, labels, _ = given_
    classes = list(range(scores.shape[1]))
    table = [[0 for _ in classes] for _ in classes]
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        table[label][winner(row, classes)] += 1
    assert metrics.confusion(scores, labels) == table


@given(predictions())
def test_the_accuracy_of_a_group_is_that_of_its_images_among_all_classes_or_with_a_known_task_among_its_own(
    given_: tuple[Tensor, Tensor, Tensor],
):
    scores, labels, tasks = given_
    classes, task_of = list(range(scores.shape[1])), tasks.tolist()
    unknown: list[list[bool]] = [[] for _ in range(task_of[-1] + 1)]
    known: list[list[bool]] = [[] for _ in range(task_of[-1] + 1)]
    for row, label in zip(scores.tolist(), labels.tolist(), strict=True):
        own = [other for other in classes if task_of[other] == task_of[label]]
        unknown[task_of[label]].append(winner(row, classes) == label)
        known[task_of[label]].append(winner(row, own) == label)
    assert metrics.by_group(scores, labels, tasks) == pytest.approx([share(right) for right in unknown])
    assert metrics.by_known_task(scores, labels, tasks) == pytest.approx([share(right) for right in known])


def test_groups_need_not_be_neighbours():
    scores = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.1, 0.2, 0.7], [0.6, 0.1, 0.3]])
    labels, groups = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 1])
    assert metrics.by_group(scores, labels, groups) == pytest.approx([0, 100 * 2 / 3])
    assert metrics.by_known_task(scores, labels, groups) == pytest.approx([100, 100 * 2 / 3])


# --- Forgetting -------------------------------------------------------------------------------------------------------

HISTORY = [[80.0, 60.0], [50.0, 70.0, 90.0], [65.0, 40.0, 30.0, 99.0]]


def test_forgetting_is_the_best_accuracy_before_less_the_last():
    assert metrics.forgetting_by_class(HISTORY) == pytest.approx([80 - 65, 70 - 40, 90 - 30])
    assert metrics.forgetting_by_class(HISTORY[:2]) == pytest.approx([30, -10]), "the second class got better"


def test_nothing_is_forgotten_in_the_first_step():
    assert metrics.forgetting_by_class(HISTORY[:1]) == []


@st.composite
def histories(draw: st.DrawFn) -> list[list[float]]:
    known, steps = 0, []
    for size in draw(st.lists(st.integers(1, 3), min_size=2, max_size=5)):
        known += size
        steps.append(draw(st.lists(accuracies, min_size=known, max_size=known)))
    return steps


@given(histories())
def test_forgetting_of_every_class_and_step(history: list[list[float]]):
    for now in range(1, len(history)):
        lost = []
        for label in range(len(history[now - 1])):
            best = -math.inf
            for step in range(now):
                if label < len(history[step]) and history[step][label] > best:
                    best = history[step][label]
            lost.append(best - history[now][label])
        assert metrics.forgetting_by_class(history[: now + 1]) == pytest.approx(lost, abs=1e-9)


# --- Over class orders ------------------------------------------------------------------------------------------------


@given(st.lists(accuracies, min_size=2, max_size=10))
def test_the_deviation_over_orders_is_the_samples(values: list[float]):
    mean, deviation = metrics.mean_and_deviation(values)
    assert mean == pytest.approx(statistics.fmean(values))
    assert deviation == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_one_order_has_a_mean_and_no_deviation():
    assert metrics.mean_and_deviation([61.5]) == (61.5, None)


@given(st.lists(st.tuples(accuracies, accuracies), min_size=2, max_size=10))
@example([(63.1, 61.0), (64.0, 61.5), (62.7, 62.9)])
def test_the_p_value_is_that_of_the_paired_t_statistic(pairs: list[tuple[float, float]]):
    ours, theirs = [list(values) for values in zip(*pairs, strict=True)]
    differences = [a - b for a, b in pairs]
    deviation = statistics.stdev(differences)
    assume(deviation > 1e-3)
    t = statistics.fmean(differences) / (deviation / math.sqrt(len(pairs)))
    p_value = 2 * stats.t.sf(abs(t), len(pairs) - 1)
    assert metrics.paired_t_test(ours, theirs) == pytest.approx(p_value, rel=1e-6, abs=1e-9)
    assert metrics.paired_t_test(theirs, ours) == pytest.approx(p_value, rel=1e-6, abs=1e-9), "two-sided"
    better = stats.t.sf(t, len(pairs) - 1)
    assert metrics.paired_t_test(ours, theirs, one_sided=True) == pytest.approx(better, rel=1e-6, abs=1e-9)
    assert metrics.paired_t_test(theirs, ours, one_sided=True) == pytest.approx(1 - better, rel=1e-6, abs=1e-9)


def test_two_methods_that_are_equal_in_every_order_have_no_p_value():
    assert metrics.paired_t_test([61.0, 62.5, 60.0], [61.0, 62.5, 60.0]) is None


def test_one_order_has_no_p_value():
    assert metrics.paired_t_test([61.0], [55.0]) is None
