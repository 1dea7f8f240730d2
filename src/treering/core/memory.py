"""The representative memory [3.1]: ranked exemplars of every class, of which the last are removed first.

The number that a class may keep, n = floor(K / c), is `Budget.quota` in recipe.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Memory:
    """The exemplars of each class as uint8 images, best first. Callers keep the budget: they `shrink`, then `store`."""

    def __init__(self) -> None:
        self.exemplars: dict[int, Tensor] = {}
        """The images n x C x H x W of each class, best first, by the class's column."""

    def __len__(self) -> int:
        return sum(len(images) for images in self.exemplars.values())

    def largest_class(self) -> int:
        """Return the most exemplars that a class has; balanced fine-tuning cuts new classes to this number [4]."""
        return max(len(images) for images in self.exemplars.values())

    def shrink(self, quota: int) -> None:
        """Cut each class to its best `quota` exemplars; the others never come back."""
        # A copy, so that the removed images' storage is freed.
        self.exemplars = {
            label: images if len(images) <= quota else images[:quota].clone()
            for label, images in self.exemplars.items()
        }

    def store(self, label: int, ranked_images: Tensor) -> None:
        """Set the exemplars of one class, best first."""
        self.exemplars[label] = ranked_images

    def contents(self) -> tuple[Tensor, Tensor]:
        """Return all exemplars and their labels."""
        return together(self.exemplars)


def together(images_by_class: Mapping[int, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the images of all classes in one tensor, and their labels."""
    parts = list(images_by_class.values())
    labels = [torch.full((len(part),), label, device=part.device) for label, part in images_by_class.items()]
    return torch.cat(parts), torch.cat(labels)
