"""The representative memory [3.1]: ranked exemplars of every class, within a budget, shrunk from the end.

How many a class may keep, n = floor(K / c), is `Budget.quota` in recipe.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Memory:
    """Exemplars as uint8 images, per class best first. The budget is kept by whoever calls `shrink` before `store`."""

    def __init__(self) -> None:
        self.exemplars: dict[int, Tensor] = {}
        """Class (its column) -> n x C x H x W, ranked."""

    def __len__(self) -> int:
        return sum(len(images) for images in self.exemplars.values())

    def largest_class(self) -> int:
        """The most exemplars any class has: what balanced fine-tuning cuts the new classes to [4]."""
        return max(len(images) for images in self.exemplars.values())

    def shrink(self, quota: int) -> None:
        """Remove from the end of each class's list; what is removed never comes back."""
        # A copy, so that the removed images' storage is freed.
        self.exemplars = {
            label: images if len(images) <= quota else images[:quota].clone()
            for label, images in self.exemplars.items()
        }

    def store(self, label: int, ranked_images: Tensor) -> None:
        """Set the exemplars of one class, best first."""
        self.exemplars[label] = ranked_images

    def contents(self) -> tuple[Tensor, Tensor]:
        """All exemplars and their labels."""
        return together(self.exemplars)


def together(images_by_class: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
    """The images of all classes and their labels."""
    parts = list(images_by_class.values())
    labels = [torch.full((len(part),), label, device=part.device) for label, part in images_by_class.items()]
    return torch.cat(parts), torch.cat(labels)
