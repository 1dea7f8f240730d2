"""The parts of a training step on a GPU by kernels of our own: residual networks, cross-distilled loss, update.

Each is the same function as the plain code it stands for (`network`, `losses`, `optim`), in a fraction of the launches.
The kernels are in Triton, which is imported only where they run.
"""

from __future__ import annotations

import logging

import torch

from treering.core.fused.loss import cross_distilled
from treering.core.fused.residual import FusedExtractor, extractor
from treering.core.fused.update import Update

__all__ = ["FusedExtractor", "Update", "available", "cross_distilled", "extractor", "failures", "give_up"]

logger = logging.getLogger(__name__)

failures: list[str] = []
"""Why the kernels do not run here."""


def available() -> bool:
    """Whether the kernels run on this GPU, as far as is known: Triton comes with PyTorch, but not everywhere."""
    if not failures:
        try:
            import triton  # noqa: F401

            if not torch.cuda.is_bf16_supported(including_emulation=False):
                raise RuntimeError("this GPU has no bfloat16")
        except Exception as error:  # whatever a broken or missing Triton raises
            give_up(error)
    return not failures


def give_up(error: Exception) -> None:
    """Leave everything to the framework from now on: a kernel has failed, for want of a C compiler, say."""
    *_, last_line = str(error).strip().splitlines() or [""]
    failures.append(f"{type(error).__name__}: {last_line}")
    logger.warning("training is slower than it could be, without the kernels for GPUs (%s)", failures[-1])
