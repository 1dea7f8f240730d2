"""What a learner has learnt: all that a model folder holds."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from treering.methods.base import Method


@dataclass
class Model:
    """A method with its network and memory, and what its columns mean."""

    method: Method
    seed: int
    image_shape: tuple[int, ...]
    """C, H, W of the images as they were given."""
    classes: list[Hashable] = field(default_factory=list)
    """The label of each column."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record per step."""
    held_out: dict[int, Tensor] = field(default_factory=dict)
    """Images of each column that only measure the accuracy and are never trained on."""

    def sorted_columns(self) -> list[int]:
        """The columns of the classes in the order in which users see them."""
        column = {name: index for index, name in enumerate(self.classes)}
        return [column[name] for name in in_order(set(self.classes))]


def in_order(labels: set[Hashable]) -> list[Hashable]:
    """Sorted; labels that have no order are sorted by their text."""
    if any(isinstance(label, frozenset) for label in labels):  # their < is "part of"
        return sorted(
            labels, key=lambda label: sorted(map(repr, label)) if isinstance(label, frozenset) else [repr(label)]
        )
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return sorted(labels, key=repr)
