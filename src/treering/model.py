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
