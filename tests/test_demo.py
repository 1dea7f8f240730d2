"""The demo: EEIL remembers where fine-tuning forgets, and the picture shows it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from treering import Progress, Schedule, TreeringError, demo
from treering.core import metrics
from treering.data import digits
from treering.data.stream import Dataset, class_order, split_steps

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same everywhere: on a machine with a GPU too."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(scope="module")
def half() -> Dataset:
    """The digits with every second training image."""
    whole = digits.load()
    return replace(whole, train_images=whole.train_images[::2], train_labels=whole.train_labels[::2])


def test_the_digits_are_split_by_class_into_training_and_test_images() -> None:
    dataset = digits.load()
    assert dataset.train_images.shape[1:] == dataset.test_images.shape[1:] == (8, 8, 1)
    assert dataset.train_images.dtype == np.uint8
    assert (dataset.train_images.min(), dataset.train_images.max()) == (0, 255)
    assert len(dataset.train_labels) + len(dataset.test_labels) == 1797
    for digit in range(10):
        share = np.sum(dataset.test_labels == digit) / (
            np.sum(dataset.test_labels == digit) + np.sum(dataset.train_labels == digit)
        )
        assert share == pytest.approx(0.2, abs=0.01)
    assert dataset.class_names == tuple("0123456789")


def test_eeil_remembers_what_fine_tuning_forgets(half: Dataset) -> None:
    recipe = replace(demo.RECIPE, training=Schedule(1, 0.1), balanced=Schedule(1, 0.01))
    eeil, fine_tuning = (demo.learn_digits(half, replace(recipe, method=name), 0) for name in ("eeil", "finetune"))
    for outcome in (eeil, fine_tuning):
        assert len(outcome.accuracy) == len(outcome.first_classes) == 5
        assert outcome.accuracy[0] == outcome.first_classes[0]
    assert eeil.accuracy[0] == fine_tuning.accuracy[0] > 90, "the first step is the same for both"

    reached = metrics.average_without_first(eeil.accuracy)
    assert reached >= metrics.average_without_first(fine_tuning.accuracy) + 25
    assert reached >= 80
    assert eeil.accuracy[-1] >= 75
    assert eeil.first_classes[-1] >= 75
    assert fine_tuning.first_classes[-1] <= 10


def test_only_classes_seen_so_far_are_tested(half: Dataset) -> None:
    recipe = replace(demo.RECIPE, training=Schedule(1, 0.1), method="finetune")
    seen: list[Progress] = []
    demo.learn_digits(half, recipe, 3, seen.append)
    assert [now.step for now in seen] == [1, 2, 3, 4, 5]
    steps = split_steps(class_order(10, 3), demo.RECIPE.run.classes_per_step)
    images = [12 * int(np.isin(half.train_labels, classes).sum()) for classes in steps]
    assert all(0 <= now.image_passes - count < 128 for now, count in zip(seen, images, strict=True))


OUTCOMES = {
    "eeil": demo.Outcome([100.0, 98.0, 97.0, 95.0, 94.0], [100.0, 99.0, 98.0, 97.0, 96.0]),
    "finetune": demo.Outcome([100.0, 50.0, 33.0, 25.0, 20.0], [100.0, 0.0, 0.0, 0.0, 0.0]),
}
STEPS = split_steps(class_order(10, 0), 2)


def test_the_picture_is_drawn_as_png_and_svg(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = demo.draw(OUTCOMES, STEPS, tmp_path / "new" / "folder")
    assert paths == [tmp_path / "new" / "folder" / "digits.png", tmp_path / "new" / "folder" / "digits.svg"]
    picture = Image.open(paths[0]).convert("RGB")
    assert 1000 <= picture.width <= 3000
    assert 400 <= picture.height <= 1500
    colours = {colour for _, colour in picture.getcolors(10**6) or []}
    assert {(0x1B, 0x6E, 0x3C), (0xC0, 0x39, 0x2B)} <= colours, "a curve for each method"
    assert ElementTree.parse(paths[1]).getroot().tag.endswith("svg")
    assert 10_000 < paths[1].stat().st_size < 1_000_000


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(TreeringError, match=r"pip install 'treering\[demo\]'"):
        digits.load()


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TreeringError, match=r"pip install 'treering\[demo\]'"):
        demo.draw(OUTCOMES, STEPS, tmp_path)
