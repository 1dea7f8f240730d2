"""The upper bound: all images of all classes so far, trained together from the start. It keeps every image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from treering.core import losses
from treering.core.network import IncrementalNetwork
from treering.methods.base import Method, Step
from treering.methods.plan import Counts
from treering.recipe import Recipe
from treering.runtime import pixels


class Joint(Method):
    """A method with one head for all classes and cross-entropy, which starts from the first weights at every step."""

    keeps_memory = False
    keeps_everything = True

    def __init__(self, recipe: Recipe, network: IncrementalNetwork, generator: torch.Generator) -> None:
        super().__init__(recipe, network, generator)
        self._first_weights = network.tensors()
        self._build: Callable[[], nn.Module] | None = None

    def start_from(self, build: Callable[[], nn.Module]) -> None:
        """Take a function that makes the first weights; a step calls it when it needs them, as it may download."""
        self._build = build

    def learn_step(self, step: Step) -> None:
        if self._build:
            first = self._build().state_dict().items()
            self._first_weights |= {f"features.{name}": tensor.to(self.network.device) for name, tensor in first}
            self._build = None
        classes = self.network.classes + step.new_classes
        for label, images in self.candidates(step).items():
            self.memory.store(label, pixels.tensor(images).to(self.network.device))
        self.network.load_tensors([], self._first_weights | {"mean_image": self.network.mean_image})
        self.network.add_head(classes, self.generator)
        self.trainer.fit("training", self.training_set(*self.memory.contents()), self.recipe.training)

    def loss(self, logits_NC: Tensor, labels_N: Tensor, targets_NC: Tensor, head_of_class_C: Tensor) -> Tensor:
        return losses.cross_entropy(logits_NC, labels_N)

    @classmethod
    def memory_before(cls, recipe: Recipe, steps: Sequence[Counts]) -> list[dict[Any, int]]:
        """Count every image so far: all are kept."""
        return [dict(item for step in steps[:number] for item in step.items()) for number in range(len(steps))]
