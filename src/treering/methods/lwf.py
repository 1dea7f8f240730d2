"""LwF.MC: Learning without Forgetting (Li and Hoiem, 2016) for many classes, as Rebuffi et al. define it.

It trains like iCaRL, but without exemplars, and classifies by the network's own outputs.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from treering.methods.base import Step
from treering.methods.icarl import ICaRL


class LwFMC(ICaRL):
    """A method that trains and distils on the new images alone."""

    keeps_memory = False
    further_readouts: Mapping[str, str] = {}

    def learn_step(self, step: Step) -> None:
        self.learn_outputs(step.images, step.labels, step.new_classes)

    def probabilities(self, images: Tensor) -> Tensor:
        """Return N x classes: the sigmoid outputs, scaled to sum to 1."""
        return self.network_outputs(images)
