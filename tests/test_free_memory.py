"""Training that would take more memory than is free is refused before it begins, in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from conftest import run_python
from learn_helper import CHANGES, FIRST, SECOND, learn, make_folder, model_state
from photo_helper import command
from torch import Tensor, nn

from treering import TreeringError
from treering.core.network import IncrementalNetwork
from treering.core.update import memory_of
from treering.runtime import free_memory


def network(features: nn.Module) -> IncrementalNetwork:
    return IncrementalNetwork(features, 4, torch.zeros(3, 1, 1), 1.0)


def convolution() -> nn.Module:
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(), *pooled)


@pytest.mark.parametrize("bounded", ["own", "parent"])
@pytest.mark.parametrize("bound", ["max", "5000000"])
def test_what_is_free_is_what_the_system_and_its_bounds_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, bounded: str
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    6000 kB\nSwapFree:  1000 kB\n")
    (tmp_path / "cgroup").write_text("0::/ours/mine\n")
    (tmp_path / "ours" / "mine").mkdir(parents=True)
    files = "anon 7\ninactive_file 300000\nactive_file 200000\n"
    bounds = {"ours": bound if bounded == "parent" else "max", "ours/mine": bound if bounded == "own" else "max"}
    for group, most in bounds.items():
        for name, content in {"memory.max": most, "memory.current": "3000000", "memory.stat": files}.items():
            (tmp_path / group / name).write_text(content)
    monkeypatch.setattr(free_memory, "FACTS", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(free_memory, "GROUPS", tmp_path)
    assert free_memory.found() == (7000 * 1024 if bound == "max" else 2_500_000)
    monkeypatch.setattr(free_memory, "FACTS", tmp_path / "none")
    assert free_memory.found() is None
    free_memory.require(2**60, "anything", "whatever")  # it is not known to be too much


@pytest.mark.parametrize("free", [0, 100_000])
def test_a_learn_that_needs_more_is_refused_and_the_model_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    path = tmp_path / "model"
    learn(path, make_folder(tmp_path / "first", FIRST))
    before = model_state(path)
    monkeypatch.setattr(free_memory, "found", lambda: free)
    done = command("learn", path, make_folder(tmp_path / "second", SECOND, seed=1), "--device", "cpu")
    assert done.code == 2
    assert done.err.startswith("treering: training on ")
    assert done.err.count("\n") == 1
    assert "close other programs, or begin a model of smaller images" in done.err
    assert model_state(path) == before
    monkeypatch.undo()
    assert learn(path, tmp_path / "second") is not None


def test_images_whose_augmented_copies_need_more_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """15 images become 180 of 1,200 values, which are there twice for a moment."""
    monkeypatch.setattr("treering.core.trainer.memory_of", lambda *arguments: 0)
    monkeypatch.setattr(free_memory, "found", lambda: 2 * 180 * 1200 - 1)
    folder = make_folder(tmp_path / "first", FIRST)
    settings = (*CHANGES, "augmentation.kind=twelvefold", "memory.held_out=0")
    with pytest.raises(TreeringError, match=r"15 images of 20 x 20 pixels, augmented .* learn fewer images at a time"):
        learn(tmp_path / "model", folder, changes=settings)
    monkeypatch.setattr(free_memory, "found", lambda: 2 * 180 * 1200)
    assert learn(tmp_path / "model", folder, changes=settings) is not None


def test_images_of_more_classes_than_can_be_told_of_at_once_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15 images say 8 bytes of each of 2 classes."""
    folder, settings = make_folder(tmp_path / "first", FIRST), (*CHANGES, "method=closed-form")
    monkeypatch.setattr(free_memory, "found", lambda: 8 * 15 * 2 - 1)
    with pytest.raises(
        TreeringError, match=r"telling 15 images among 2 classes by all others would take .* learn fewer images"
    ):
        learn(tmp_path / "model", folder, changes=settings)
    monkeypatch.setattr(free_memory, "found", lambda: 8 * 15 * 2)
    assert learn(tmp_path / "model", folder, changes=settings) is not None


def test_memory_grows_with_the_batch_and_the_pixels() -> None:
    twin = network(convolution())
    one = memory_of(twin, 1, (3, 64, 64))
    assert one > 4 * 64 * 64 * (3 + 4)  # the image and what the convolution makes of it
    assert memory_of(twin, 10, (3, 64, 64)) == pytest.approx(10 * one, rel=0.1)
    assert memory_of(twin, 1, (3, 4096, 4096)) == pytest.approx(64**2 * one, rel=0.1)


def test_a_network_for_images_of_one_size_is_asked_with_such_a_one() -> None:
    seen: list[int] = []

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = convolution()

        def forward(self, images: Tensor) -> Tensor:
            assert images.shape[2] == 256
            seen.append(len(images))
            features: Tensor = self.inner(images)
            return features

    assert memory_of(network(Fixed()), 8, (3, 256, 256)) > 8 * 4 * 256 * 256 * 3
    assert seen == [1]


def test_a_network_stays_as_it_is_while_its_memory_is_told() -> None:
    twin = network(convolution()).train()
    before, drawn = {name: part.clone() for name, part in twin.state_dict().items()}, torch.get_rng_state()
    memory_of(twin, 4, (3, 32, 32))
    assert twin.training
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(part, before[name]) for name, part in twin.state_dict().items())


TRAINS = """
import resource, sys, torch
from treering import methods
from treering.core import backbones
from treering.core.update import TrainingSet, memory_of
from treering.recipe import Recipe
torch.set_num_threads(1)
shape, device = (3, 256, 256), torch.device("cpu")
features = backbones.build(sys.argv[1], 3, 0, pretrained=False)
method = methods.create(Recipe(backbone=sys.argv[1]), features, torch.zeros(*shape), 0, device)
method.network.add_head(10, method.generator)
method.network.train()
told = memory_of(method.network, 32, shape)
before = 4096 * int(open("/proc/self/statm").read().split()[1])
update = method.trainer.batch_update(TrainingSet.empty(32, shape, 10, device), 32)
update.start_epoch(torch.arange(32))
update()
taken = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(told / taken)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux does")
def test_what_is_told_is_about_what_training_takes() -> None:
    done = run_python(TRAINS, "small")
    assert done.returncode == 0, done.stderr
    assert 0.6 < float(done.stdout) < 1.6
