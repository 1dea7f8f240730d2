"""The cross-distilled loss and its gradient, computed by one kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def cross_distilled(
    logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor, temperature: float
) -> Tensor:
    """Return what `losses.cross_distilled` returns, computed by one kernel."""
    return _CrossDistilled.apply(  # type: ignore[no-untyped-call]
        logits_NC, labels_N, targets_NC, head_of_class_C, temperature
    )


class _CrossDistilled(torch.autograd.Function):
    """The loss with its gradient, which are computed at once since training always needs both."""

    @staticmethod
    def forward(
        ctx: Any, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor, temperature: float
    ) -> Tensor:
        from treering.core.fused import loss_kernel

        rows, columns = logits_NC.shape
        loss_N, ctx.gradient_NC = logits_NC.new_empty(rows), logits_NC.new_empty(rows, columns)
        block = min(1024, max(32, 1 << (columns - 1).bit_length()))  # each thread of a warp has a column at least
        loss_kernel.cross_distilled[(rows,)](
            logits_NC.contiguous(),
            labels_N.contiguous(),
            targets_NC.contiguous(),
            head_of_class_C.contiguous(),
            loss_N,
            ctx.gradient_NC,
            logits_NC.new_empty(3, rows, columns),
            temperature,
            rows,
            columns,
            block,
            num_warps=max(1, block // 128),
        )
        return loss_N.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor) -> tuple[Tensor | None, ...]:
        return loss_gradient * ctx.gradient_NC, None, None, None, None
