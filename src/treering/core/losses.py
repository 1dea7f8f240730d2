"""The cross-distilled loss [3.2] as pure functions.

Heads lie side by side in the columns of one logits matrix; `head_of_class_C` has the number of each column's head, and
C for columns that belong to no head yet. Heads may differ in size: sums over a head are sums over a segment of columns,
never a loop. On a GPU `fused/loss.py` computes the same, gradient included, in one kernel that is tested against this.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Equation 2: one softmax over the logits of all heads."""
    return F.cross_entropy(logits_NC, labels_N)


def head_log_softmax(logits_NC: Tensor, head_of_class_C: Tensor, temperature: float) -> Tensor:
    """Log of qdist in equation 3: each head's own softmax of logits / T, for all heads at once.

    The paper raises a softmax to 1/T and normalises it again, which is the softmax of the logits divided by T.
    """
    scaled_NC = logits_NC / temperature
    count, columns = scaled_NC.shape
    segment_NC = head_of_class_C.expand(count, columns)
    with torch.no_grad():  # the shift that keeps exp from overflowing has no gradient
        lowest = torch.full_like(scaled_NC[:, :1], -torch.inf).expand(count, columns + 1)
        largest_NC = lowest.scatter_reduce(1, segment_NC, scaled_NC, "amax").gather(1, segment_NC)
    shifted_NC = scaled_NC - largest_NC
    sums = shifted_NC.new_zeros(count, columns + 1).index_add(1, head_of_class_C, shifted_NC.exp())
    return shifted_NC - sums.index_select(1, head_of_class_C).log()


def soft_targets(logits_NC: Tensor, head_of_class_C: Tensor, temperature: float) -> Tensor:
    """Pdist of equation 3 for every head: the teacher's softened outputs, the distillation labels of an image."""
    return head_log_softmax(logits_NC, head_of_class_C, temperature).exp()


def distillation(logits_NC: Tensor, targets_NC: Tensor, head_of_class_C: Tensor, temperature: float) -> Tensor:
    """Equation 3 summed over the distilled heads: cross-entropy of pdist and qdist, batch mean, no T^2 factor.

    A head whose targets are all zero adds nothing.
    """
    return -(targets_NC * head_log_softmax(logits_NC, head_of_class_C, temperature)).sum(1).mean()


def cross_distilled(
    logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor, temperature: float
) -> Tensor:
    """Equation 1: cross-entropy over all heads plus the distillation loss of each distilled head."""
    return cross_entropy(logits_NC, labels_N) + distillation(logits_NC, targets_NC, head_of_class_C, temperature)
