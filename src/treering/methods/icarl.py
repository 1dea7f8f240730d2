"""iCaRL (Rebuffi et al., CVPR 2017), and hybrid1, the same network read out by its own outputs.

One network with sigmoid outputs learns features; images are classified by the nearest mean of exemplars. Its settings
differ from EEIL's: see the ready recipes whose names end in icarl.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from treering.core import augment
from treering.core.network import IncrementalNetwork
from treering.core.update import TrainingSet
from treering.methods.base import Method, Snapshot, Step
from treering.recipe import Recipe
from treering.runtime import pixels
from treering.runtime.pixels import Images


class ICaRL(Method):
    """A method with binary cross-entropy, old outputs as targets of old classes, and the nearest mean of exemplars."""

    further_readouts: Mapping[str, str] = {"hybrid1": "network_outputs"}

    spare_outputs = True  # the published network has an output for each class from the start

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        network.reserve(recipe.outputs)
        super().__init__(recipe, network, generator)
        self._class_means: Tensor | None = None

    def learn_step(self, step: Step) -> None:
        self.require_room(step)
        self.learn_outputs(*self.with_exemplars(step), step.new_classes)
        self.update_memory(self.candidates(step))
        self._class_means = None

    def learn_outputs(self, images: Images, labels: Tensor, new_classes: int) -> None:
        """Train the network towards the teacher's sigmoids for old classes, and 0 or 1 for new and future classes."""
        old_classes = self.network.classes
        teacher = copy.deepcopy(self.network) if old_classes else None
        if new_classes:
            self.network.add_head(new_classes, self.generator)

        def targets_of(augmented: Tensor, labels: Tensor) -> Tensor:
            targets = F.one_hot(labels, self.network.columns).float()
            if teacher:
                targets[:, :old_classes] = teacher.predict_logits(augmented).sigmoid()
            return targets

        inside = pixels.tensor(images).to(self.network.device)  # the published code draws each epoch in one part

        def draw() -> Iterator[TrainingSet]:
            yield self.augmented(inside, labels, targets_of)

        self.trainer.fit("training", draw, self.recipe.training)

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        """Return the binary cross-entropy, averaged over the batch and all outputs, also of future classes."""
        return F.binary_cross_entropy_with_logits(logits_NC, targets_NC)

    def probabilities(self, images: Tensor) -> Tensor:
        """Return N x classes: the softmax of the negative squared distances to the classes' means."""
        if self._class_means is None:
            self._class_means = self.class_means()
        features_ND = F.normalize(self.network.predict_features(self.plain(images)))
        return (-torch.cdist(features_ND, self._class_means).square()).softmax(1)

    def class_means(self) -> Tensor:
        """Return the mean feature of each class's exemplars and their mirror images, normalised before and after."""
        means = []
        for label in range(self.network.classes):
            images = self.plain(pixels.tensor(self.memory.exemplars[label]))
            both = torch.stack([self.network.predict_features(part) for part in (images, augment.mirror(images))])
            means.append(F.normalize(both, dim=2).mean((0, 1)))
        return F.normalize(torch.stack(means))

    def network_outputs(self, images: Tensor) -> Tensor:
        """Return N x classes: the sigmoid outputs, scaled to sum to 1."""
        return F.logsigmoid(self.network.predict_logits(self.plain(images))).softmax(1)

    def forget(self, column: int) -> None:
        """Remove a class; its output becomes one for a class to come."""
        super().forget(column)
        self._class_means = None

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to `snapshot`."""
        super().restore(snapshot)
        self._class_means = None
