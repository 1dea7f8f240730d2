"""The worked example of docs/adding-a-method.md does what the page says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RECIPE, examples, state_of

from treering import Learner, methods
from treering.data.stream import Dataset, ResidentImages
from treering.experiments.runner import StreamRun
from treering.recipe import Run

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-method.md"


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> type[methods.Method]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    monkeypatch.setitem(methods.METHODS, "replay", names["Replay"])
    return names["Replay"]


def test_the_example_learns_remembers_and_is_saved(replay: type[methods.Method], tmp_path: Path) -> None:
    learner = Learner(recipe=replace(RECIPE, method="replay"), device="cpu")
    learner.partial_fit(*examples({"cat": 6, "dog": 5})).partial_fit(*examples({"owl": 4, "cat": 2}))
    assert [len(learner.exemplars_[name]) for name in ("cat", "dog", "owl")] == [4, 4, 4]
    learner.save(tmp_path / "model")
    assert state_of(Learner.load(tmp_path / "model", device="cpu")) == state_of(learner)


def test_the_example_runs_over_a_stream_as_planned(replay: type[methods.Method], tmp_path: Path) -> None:
    labels = np.arange(6).repeat(5)
    images, _ = examples(dict.fromkeys(range(6), 5))
    dataset = Dataset("tiny", images, labels, images, labels, tuple("abcdef"))
    recipe = replace(RECIPE, method="replay", run=Run("tiny", 2))
    run = StreamRun(recipe, ResidentImages.of(dataset, torch.device("cpu")), tmp_path)
    result = run()
    assert result["method"] == "replay"
    assert result["image_passes"] == run.image_passes_planned
    assert len(result["accuracy"]) == 3
