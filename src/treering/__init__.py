"""treering teaches an image classifier new classes over time without forgetting the old ones.

A faithful implementation of End-to-End Incremental Learning (Castro et al., ECCV 2018).
"""

import os

from treering.checkpoint import undo
from treering.errors import TreeringError
from treering.learner import Learner, Progress
from treering.photos import learn
from treering.recipe import Augmentation, Budget, Optimizer, Recipe, Schedule
from treering.version import __version__

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


def load(folder: str | os.PathLike[str]) -> Learner:
    """The learner saved in a model folder."""
    return Learner.load(folder)
