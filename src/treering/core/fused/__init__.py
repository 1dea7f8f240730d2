"""Kernels of our own for the parts of a training step on a GPU: residual networks, cross-distilled loss, update.

Each computes the same function as the plain code it stands for (`network`, `losses`, `optim`), in a fraction of the
launches. The kernels are written in Triton, which is imported only where they run.
"""

from treering.core.fused.loss import cross_distilled
from treering.core.fused.residual import FusedExtractor, extractor
from treering.core.fused.update import Update

__all__ = ["FusedExtractor", "Update", "cross_distilled", "extractor"]
