"""What the tests of the learner share: a recipe and a network so tiny that a step takes milliseconds, and images.

Images come from NumPy's RandomState. Test files import these helpers: `from conftest import ...`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from treering import Augmentation, Budget, Learner, Optimizer, Recipe, Schedule
from treering.core import trainer
from treering.core.trainer import EpochReport, Watcher
from treering.methods import Method
from treering.runtime import pixels
from treering.runtime.pixels import Images

torch.set_num_threads(1)


def _use_a_key_of_our_own() -> None:
    """Keep the tests from the key of whoever runs them; processes that a test starts share the test's key."""
    mark = "treering-tests-"
    if mark in os.environ.get("XDG_STATE_HOME", ""):
        return
    state, process = tempfile.mkdtemp(prefix=mark), os.getpid()
    os.environ["XDG_STATE_HOME"] = state
    atexit.register(lambda: shutil.rmtree(state, ignore_errors=True) if os.getpid() == process else None)


_use_a_key_of_our_own()

# The same examples each time, however slow the machine: `pytest --hypothesis-profile explore` looks for others.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("same")

SIDE = 8
RECIPE = Recipe(
    backbone="small",
    training=Schedule(epochs=2, lr=0.05),
    balanced=Schedule(epochs=1, lr=0.01),
    optimizer=Optimizer(batch_size=16),
    memory=Budget(size=12),
    augmentation=Augmentation(kind="none"),
)


class Watching(Watcher):
    """A watcher that calls these functions."""

    def __init__(
        self, epoch: Callable[[EpochReport], None] = lambda report: None, ready: Callable[[], None] = lambda: None
    ) -> None:
        self.told_epoch, self.told_ready = epoch, ready

    def ready(self) -> None:
        self.told_ready()

    def epoch(self, report: EpochReport) -> None:
        self.told_epoch(report)


class TinyFeatures(nn.Module):
    """One convolution and a batch norm; its weights depend on `seed` alone."""

    def __init__(self, channels: int = 3, features: int = 8, seed: int = 0) -> None:
        super().__init__()
        random = np.random.RandomState(seed)
        self.convolution = nn.Conv2d(channels, features, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(features)
        with torch.no_grad():
            self.convolution.weight.copy_(torch.from_numpy(random.normal(0, 0.4, (features, channels, 3, 3))))
            self.convolution.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.convolution(x)).relu().mean((2, 3))


class Dropping(TinyFeatures):
    """A backbone that drops features at random while it trains."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def tiny_learner(**changes: Any) -> Learner:
    """A learner with TinyFeatures and RECIPE; `changes` are arguments of Learner, or settings of the recipe."""
    settings = {name: changes.pop(name) for name in set(changes) & set(RECIPE.to_dict()) - {"backbone", "memory"}}
    arguments = {"backbone": TinyFeatures(), "recipe": replace(RECIPE, **settings), "device": "cpu"}
    return Learner(**arguments | changes)


def images_of(labels: Iterable[Any], seed: int = 0, channels: int = 3, side: int = SIDE) -> np.ndarray:
    """One image per label, N x H x W x C: noise around a pattern of the label's own, so that they can be learnt."""
    noise = np.random.RandomState(seed)
    images = []
    for label in labels:
        key = sum((index + 1) * ord(letter) for index, letter in enumerate(repr(label)))
        pattern = np.random.RandomState(key).randint(40, 216, (1, 1, channels))
        images.append(np.clip(pattern + noise.randint(-40, 41, (side, side, channels)), 0, 255))
    return np.array(images, dtype=np.uint8)


def examples(counts: dict[Any, int], seed: int = 0, **settings: Any) -> tuple[np.ndarray, list[Any]]:
    """`counts` images of each class, and their labels, the classes interleaved as they come in."""
    labels = [label for turn in range(max(counts.values())) for label, count in counts.items() if turn < count]
    return images_of(labels, seed, **settings), labels


def method_of(learner: Learner) -> Method:
    """The learner's method; it must have learnt something."""
    assert learner._model is not None
    return learner._model.method


def state_of(learner: Learner) -> dict[str, Any]:
    """All that a learner has learnt, as plain values that are equal only if every bit is; without times of day."""
    if learner._model is None:
        return {"fitted": False, "history": learner.history_}
    method = learner._model.method
    return {
        "weights": {name: tensor.numpy().tobytes() for name, tensor in method.network.tensors().items()},
        "heads": list(method.network.head_sizes),
        "recipe": method.recipe.to_dict(),
        "memory": {label: kept(images) for label, images in method.memory.exemplars.items()},
        "generator": method.generator.get_state().numpy().tobytes(),
        "shape": learner._model.image_shape,
        "classes": list(learner._model.classes),
        "history": [
            {key: value for key, value in record.items() if key not in ("time", "seconds")}
            for record in learner.history_
        ],
    }


def kept(images: Images | np.ndarray) -> list[bytes]:
    """Images as bytes C x H x W, in their order: to be compared and looked up."""
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(np.ascontiguousarray(images)).movedim(-1, 1)
    return [image.contiguous().numpy().tobytes() for image in pixels.tensor(images)]


def run_python(script: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `script` in a process of its own that can import treering and these helpers."""
    paths = [str(Path(trainer.__file__).parents[1]), str(Path(__file__).parent)]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture
def two_steps() -> Learner:
    """A learner that knows cats and dogs, and owls since a second step."""
    learner = tiny_learner()
    learner.partial_fit(*examples({"cat": 6, "dog": 5}))
    return learner.partial_fit(*examples({"owl": 6}, seed=1))
