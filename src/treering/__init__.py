"""treering teaches an image classifier new classes over time without forgetting the old ones.

A faithful implementation of End-to-End Incremental Learning (Castro et al., ECCV 2018).
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from treering.errors import TreeringError
from treering.recipe import Augmentation, Budget, Optimizer, Recipe, Schedule
from treering.version import __version__

if TYPE_CHECKING:
    from treering.learner import Learner
    from treering.model import undo
    from treering.photos.learn import learn
    from treering.progress import Progress

__all__ = [
    "Augmentation",
    "Budget",
    "Learner",
    "Optimizer",
    "Progress",
    "Recipe",
    "Schedule",
    "TreeringError",
    "__version__",
    "learn",
    "load",
    "undo",
]


_WITH_TORCH = {
    "Learner": "learner",
    "Progress": "progress",
    "learn": "photos.learn",
    "undo": "model",
}
"""The module of each name that is imported on first use: PyTorch takes seconds to load, which `--help` must not."""


def load(folder: str | os.PathLike[str]) -> Learner:
    """Return the learner that was saved in a model folder; `Learner.load` also takes a device and your own backbone."""
    from treering.learner import Learner

    return Learner.load(folder)


if not TYPE_CHECKING:  # a type checker has the names from above; with this it would accept misspelt ones too

    def __getattr__(name: str) -> Any:
        if name not in _WITH_TORCH:
            raise AttributeError(f"module 'treering' has no attribute {name!r}")
        return getattr(importlib.import_module(f"treering.{_WITH_TORCH[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
