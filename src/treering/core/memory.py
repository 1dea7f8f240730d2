"""The representative memory [3.1]: ranked exemplars of every class, of which the last are removed first.

The number that a class may keep, n = floor(K / c), is `Budget.quota` in recipe.py.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from treering.runtime import pixels
from treering.runtime.pixels import Images


class Memory:
    """The exemplars of each class as uint8 images, best first; `Method.update_memory` shrinks and stores them."""

    def __init__(self) -> None:
        self.exemplars: dict[int, Images] = {}
        """The images n x C x H x W of each class, best first, by the class's column."""

    def __len__(self) -> int:
        return sum(len(images) for images in self.exemplars.values())

    def largest_class(self) -> int:
        """Return the most exemplars that a class has; balanced fine-tuning cuts new classes to this number [4]."""
        return max(len(images) for images in self.exemplars.values())

    def shrink(self, quota: int) -> None:
        """Cut each class to its best `quota` exemplars; the others never come back."""
        self.exemplars = {label: _best(images, quota) for label, images in self.exemplars.items()}

    def store(self, label: int, ranked_images: Images) -> None:
        """Set the exemplars of one class, best first."""
        self.exemplars[label] = ranked_images

    def forget(self, label: int) -> None:
        """Remove the exemplars of a class; the labels behind it move up by one."""
        self.exemplars = moved_up(self.exemplars, label)

    def merge(self, kept: int, gone: int, quota: int) -> None:
        """Give the exemplars of the class `gone` to the class `kept`, then `forget` it; the best `quota` stay."""
        self.exemplars = merged(self.exemplars, kept, gone, quota)

    def contents(self) -> tuple[Tensor, Tensor]:
        """Return all exemplars and their labels."""
        return together(self.exemplars)


def _best(images: Images, count: int) -> Images:
    """Return the first `count` images; a copy of a tensor's, so that the others' storage is freed."""
    if len(images) <= count:
        return images
    return images[:count].clone() if isinstance(images, Tensor) else images[:count]


def moved_up(by_class: Mapping[int, Images], gone: int) -> dict[int, Images]:
    """Return what each class has without the class `gone`, the numbers behind which move up by one."""
    return {label - (label > gone): part for label, part in by_class.items() if label != gone}


def merged(by_class: Mapping[int, Images], kept: int, gone: int, quota: int) -> dict[int, Images]:
    """Return what each class has once the images of the class `gone` are those of `kept`, by turns and `quota` of them.

    An image that both have counts once. The numbers behind `gone` move up by one.
    """
    parts = [pixels.tensor(by_class[label]).cpu() for label in (kept, gone) if label in by_class]
    longest = max(map(len, parts), default=0)
    turns = [part[rank] for rank in range(longest) for part in parts if rank < len(part)]
    once: dict[bytes, Tensor] = {}
    for image in turns:
        once.setdefault(image.cpu().numpy().tobytes(), image)
    best = [*once.values()][:quota]
    own = {kept: torch.stack(best)} if best else {}
    return moved_up({**by_class, **own}, gone)


def together(images_by_class: Mapping[int, Images]) -> tuple[Tensor, Tensor]:
    """Return the images of all classes in one tensor, and their labels."""
    parts = list(map(pixels.tensor, images_by_class.values()))
    labels = [
        torch.full((len(part),), label, device=part.device) for label, part in zip(images_by_class, parts, strict=True)
    ]
    return torch.cat(parts), torch.cat(labels)
