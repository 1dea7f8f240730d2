"""The numbers that are reported of one run or several: pure functions of scores, accuracies and class orders.

Accuracies are percentages. A `history` holds, for each step of a run, the accuracy of each class known by then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor


def average(accuracy: Sequence[float]) -> float:
    """Return the mean over all steps, the first included, as half of the literature reports it."""
    return sum(accuracy) / len(accuracy)


def average_without_first(accuracy: Sequence[float]) -> float | None:
    """Return the average incremental accuracy as the paper reports it [5]: the first step is not incremental."""
    return average(accuracy[1:]) if len(accuracy) > 1 else None


def top_k(scores_NC: Tensor, labels_N: Tensor, k: int = 1) -> float:
    """Return the percentage of images whose class is among the `k` with the highest scores."""
    best_NK = scores_NC.topk(min(k, scores_NC.shape[1])).indices
    return 100 * (best_NK == labels_N[:, None]).any(1).double().mean().item()


def confusion(scores_NC: Tensor, labels_N: Tensor) -> list[list[int]]:
    """Count the images of each class (row) by the class that they are taken for (column)."""
    classes = scores_NC.shape[1]
    pairs = labels_N * classes + scores_NC.argmax(1)
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).tolist()


def by_group(scores_NC: Tensor, labels_N: Tensor, group_of_class_C: Tensor) -> list[float]:
    """Return the accuracy on the images of each group of classes; an image may be taken for any class."""
    right_N = (scores_NC.argmax(1) == labels_N).double()
    group_N = group_of_class_C[labels_N]
    groups = int(group_of_class_C.max()) + 1
    images = torch.bincount(group_N, minlength=groups)
    right = right_N.new_zeros(groups).index_add(0, group_N, right_N)
    return (100 * right / images).tolist()


def by_known_task(scores_NC: Tensor, labels_N: Tensor, task_of_class_C: Tensor) -> list[float]:
    """Return the accuracy on each task if an image's task is known: only that task's classes count [appendix B]."""
    own_NC = task_of_class_C[labels_N][:, None] == task_of_class_C
    return by_group(scores_NC.masked_fill(~own_NC, -math.inf), labels_N, task_of_class_C)


def forgetting_by_class(history: Sequence[Sequence[float]]) -> list[float]:
    """Return each class's best accuracy after an earlier step minus its last one, negative if the class got better.

    Classes of the last step had no time to be forgotten and are left out.
    """
    before, last = history[:-1], history[-1]
    known = len(before[-1]) if before else 0
    best = [max(step[label] for step in before if label < len(step)) for label in range(known)]
    return [best[label] - last[label] for label in range(known)]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation over class orders; a single order has no deviation."""
    return average(values), statistics.stdev(values) if len(values) > 1 else None


def interval(percent: float, images: int) -> tuple[float, float]:
    """Return the range, in percent, that holds the true accuracy in 19 of 20 cases (Wilson's score interval)."""
    share, z = percent / 100, 1.96
    middle, width = share + z**2 / (2 * images), z * math.sqrt(share * (1 - share) / images + (z / images / 2) ** 2)
    return tuple(100 * (middle + side * width) / (1 + z**2 / images) for side in (-1, 1))  # type: ignore[return-value]


def paired_t_test(ours: Sequence[float], theirs: Sequence[float], one_sided: bool = False) -> float | None:
    """Return the p-value that two methods differ, or with `one_sided` that ours is better, paired by class order.

    It is None where there is nothing to test: fewer than two orders, or one and the same difference in all of them.
    """
    differences = {round(one - other, 9) for one, other in zip(ours, theirs, strict=True)}
    if len(differences) < 2:
        return None
    from scipy import stats  # slow to import

    return float(stats.ttest_rel(ours, theirs, alternative="greater" if one_sided else "two-sided").pvalue)
