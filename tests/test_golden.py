"""A refactoring may not change what is computed: the losses of a small seeded run are those in golden_losses.json.

Where a change is meant to change them, write them anew with `python tests/test_golden.py` and say why in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treering import Augmentation, Budget, Learner, Optimizer, Recipe, Schedule
from treering.core.trainer import EpochReport, Watcher

GOLDEN = Path(__file__).parent / "golden_losses.json"
BATCHES = 5


class Recording(Watcher):
    """Keeps the losses of the first batches of each stage."""

    def __init__(self) -> None:
        self.step, self.stages = 0, dict[str, list[float]]()

    def epoch(self, report: EpochReport) -> None:
        losses = self.stages.setdefault(f"step {self.step} {report.stage}", [])
        losses += report.losses.double().tolist()[: BATCHES - len(losses)]


def run() -> dict[str, list[float]]:
    """Two steps of EEIL with all that belongs to it: augmentation, noise, decay, distillation, balanced stage."""
    random = np.random.RandomState(15)  # images without near-ties, which herding breaks as a CPU's rounding has it
    patterns = random.randint(0, 256, (5, 12, 12, 3))
    labels = np.repeat(np.arange(5), 8)
    images = np.clip(patterns[labels] + random.normal(0, 50, (40, 12, 12, 3)), 0, 255).astype(np.uint8)
    recipe = Recipe(
        backbone="small",
        training=Schedule(epochs=2, lr=0.02, drop_at=(1,)),
        balanced=Schedule(epochs=1, lr=0.01),
        optimizer=Optimizer(batch_size=32),
        memory=Budget(size=9),
        augmentation=Augmentation(padding=2),
    )
    learner, recording = Learner(recipe=recipe, seed=11, device="cpu"), Recording()
    for own in (labels < 2, labels >= 2):
        recording.step += 1
        learner.learn(torch.from_numpy(images[own]).movedim(-1, 1), labels[own].tolist(), watcher=recording)
    return recording.stages


def test_the_losses_of_a_seeded_run_are_the_recorded_ones() -> None:
    expected: dict[str, Any] = json.loads(GOLDEN.read_text())
    losses = run()
    assert list(losses) == list(expected) == ["step 1 training", "step 2 training", "step 2 balanced"]
    for stage, values in losses.items():
        assert len(values) == BATCHES
        assert values == pytest.approx(expected[stage], rel=1e-4), stage


if __name__ == "__main__":
    torch.set_num_threads(1)
    GOLDEN.write_text(json.dumps(run(), indent=1) + "\n")
