"""Plain fine-tuning, the lower bound: each step trains on its own images alone, with nothing against forgetting."""

from __future__ import annotations

from torch import Tensor

from treering.core import losses
from treering.methods.base import Method, Step


class FineTuning(Method):
    """A method with cross-entropy over all heads, no memory and no distillation."""

    keeps_memory = False

    def learn_step(self, step: Step) -> None:
        if step.new_classes:
            self.network.add_head(step.new_classes, self.generator)
        self.trainer.fit("training", self.training_set(step.images, step.labels), self.recipe.training)

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        return losses.cross_entropy(logits_NC, labels_N)
