"""End-to-End Incremental Learning (Castro et al., ECCV 2018): the four stages of a step [4].

Here and everywhere a number in brackets is a section of the paper.

The ablations of table 2b are settings of the recipe: `augmentation.kind = "none"` and `balanced.epochs = 0`.
"""

from __future__ import annotations

from torch import Tensor

from treering import words
from treering.core import fused, losses
from treering.core.memory import together
from treering.methods.base import Method, Step
from treering.methods.plan import Counts, StagePlan
from treering.recipe import Recipe

logger = words.logger(__name__)


class EEIL(Method):
    """The paper's method: cross-distilled loss over all heads, balanced fine-tuning, representative memory."""

    def learn_step(self, step: Step) -> None:
        network, memory, recipe = self.network, self.memory, self.recipe
        self.require_room(step)

        # Stage 1: the training set is the new images and every exemplar; each image is labelled for distillation by
        # all old heads as they are now, before training.
        old_classes = network.classes
        first_step = old_classes == 0
        if step.new_classes:
            self.add_head(step.new_classes)
        images, labels = self.with_exemplars(step)
        training_set = self.training_set(images, labels, distilled_classes=old_classes)

        # Stage 2: all weights learn, with the cross-distilled loss (equation 1).
        logger.info("training on %d images", len(images))
        self.trainer.fit("training", training_set, recipe.training)
        del training_set

        # Stage 3: balanced fine-tuning on as many images of each class in the step as old classes have exemplars. With
        # the paper's temporary distillation of the new head, all heads are distilled from the network as it is now.
        candidates = self.candidates(step)
        if not first_step and recipe.balanced.epochs:
            images, labels = together(memory.exemplars | self.rank(candidates, memory.largest_class()))
            training_set = self.training_set(images, labels, distilled_classes=network.classes)
            logger.info("balanced fine-tuning on %d images", len(images))
            self.trainer.fit("balanced", training_set, recipe.balanced, recipe.training.epochs)

        # Stage 4: old classes shrink from the end of their ranked lists, then the step's best images are stored [3.1].
        self.update_memory(candidates)

    def add_head(self, classes: int) -> None:
        """Add the head of a step's new classes."""
        self.network.add_head(classes, self.generator)

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        function = fused.cross_distilled if self.network.engine.kernels else losses.cross_distilled
        return function(logits_NC, labels_N, targets_NC, head_of_class_C, self.recipe.temperature)

    @classmethod
    def label(cls, recipe: Recipe) -> str:
        """Return the method's name in results; the ablations have names of their own (table 2b)."""
        augmented, balanced = recipe.augmentation.kind != "none", recipe.balanced.epochs > 0
        ablations = {(False, False): "-base", (True, False): "-da", (False, True): "-bf", (True, True): ""}
        return recipe.method + ablations[augmented, balanced]

    @classmethod
    def plan_step(cls, recipe: Recipe, step: Counts, memory: Counts) -> list[StagePlan]:
        stages = super().plan_step(recipe, step, memory)
        if memory and recipe.balanced.epochs:
            largest = max(memory.values())
            cut = {label: min(images + memory.get(label, 0), largest) for label, images in step.items()}
            balanced = sum((dict(memory) | cut).values())
            stages.append(StagePlan.of(balanced, recipe.balanced, recipe))
        return stages
