"""The training loop: what an epoch visits, what it reports, what it keeps."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from conftest import Watching
from torch import Tensor, nn

from treering import Learner, Recipe, Schedule, TreeringError
from treering.core.network import IncrementalNetwork
from treering.core.trainer import EpochReport, Trainer
from treering.core.update import TrainingSet, batch_plan
from treering.recipe import Optimizer


class Seen(nn.Module):
    """A linear feature extractor that notes the first pixel of each image it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.batches: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches.append([round(value) for value in x[:, 0, 0, 0].tolist()])
        return self.linear(x.flatten(1))


def trainer_of(features: nn.Module, **settings: Any) -> Trainer:
    generator = torch.Generator().manual_seed(0)
    network = IncrementalNetwork(features, 3, torch.zeros(1, 2, 2), 1.0)
    network.add_head(2, generator)

    def loss(logits: Tensor, labels: Tensor, targets: Tensor, head_of_class: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, labels)

    return Trainer(network, loss, Optimizer(noise_eta=0.0, **settings), generator)


def numbered(count: int) -> TrainingSet:
    """Images whose pixels are their number."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 2, 2).contiguous()
    return TrainingSet(images, torch.arange(count) % 2, torch.zeros(count, 2))


@pytest.mark.parametrize(("count", "batch_size"), [(1, 8), (2, 8), (7, 8), (8, 8), (9, 8), (23, 8), (24, 8)])
def test_every_epoch_visits_every_image_in_full_batches(count: int, batch_size: int) -> None:
    features = Seen()
    trainer_of(features, batch_size=batch_size).fit("training", numbered(count), Schedule(3, 0.001))
    size, batches = batch_plan(count, Optimizer(batch_size=batch_size))
    assert [len(batch) for batch in features.batches] == [size] * (3 * batches)
    for epoch in range(3):
        visited = [image for batch in features.batches[epoch * batches : (epoch + 1) * batches] for image in batch]
        assert set(visited) == set(range(count))
        assert visited[count:] == visited[: len(visited) - count], "the last batch is filled with the first images"


def test_epochs_have_orders_of_their_own() -> None:
    features = Seen()
    trainer_of(features, batch_size=24).fit("training", numbered(24), Schedule(2, 0.001))
    assert features.batches[0] != features.batches[1]


def test_reports_count_epochs_and_passes_and_hold_the_losses() -> None:
    trainer = trainer_of(Seen(), batch_size=8)
    reports: list[tuple[Any, ...]] = []

    def note(report: EpochReport) -> None:
        assert report.mean_loss == pytest.approx(report.losses.mean().item())
        reports.append((report.stage, report.epoch, report.epochs, report.image_passes, len(report.losses)))

    with trainer.step(watcher=Watching(note)):
        trainer.fit("training", numbered(20), Schedule(2, 0.001))
    assert reports == [("training", 1, 2, 24, 3), ("training", 2, 2, 24, 3)]


def test_the_learning_rate_follows_the_schedule_and_the_noise_counts_on() -> None:
    trainer = trainer_of(Seen(), batch_size=64)
    rates: list[tuple[float, int, int]] = []
    update = trainer.batch_update

    def watched(*arguments: Any) -> Any:
        made = update(*arguments)
        start = made.optimizer.start_epoch

        def note(lr: float, epoch: int, batch_size: int) -> None:
            rates.append((lr, epoch, batch_size))
            start(lr, epoch, batch_size)

        made.optimizer.start_epoch = note
        return made

    trainer.batch_update = watched
    trainer.fit("balanced", numbered(8), Schedule(3, 0.1, (1, 2)), epochs_before=40)
    assert [epoch for _, epoch, _ in rates] == [41, 42, 43]
    assert {batch_size for _, _, batch_size in rates} == {8}, "a stage smaller than a batch is its own batch"
    assert [lr for lr, _, _ in rates] == pytest.approx([0.1, 0.01, 0.001])


def test_a_diverged_training_is_an_error_and_leaves_the_learner_as_it_was() -> None:
    recipe = Recipe(backbone="small", training=Schedule(2, 0.01), balanced=Schedule(0, 0.01))
    images = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    learner = Learner(recipe=recipe, memory=4).partial_fit(images, [0, 1] * 4)
    before = learner.predict_proba(images)
    learner._model.method.recipe = Recipe(backbone="small", training=Schedule(3, 1e29), balanced=Schedule(0, 0.01))
    with pytest.raises(TreeringError, match="training diverged"):
        learner.partial_fit(images, [2, 3] * 4)
    assert (learner.predict_proba(images) == before).all()


def test_nothing_of_the_training_set_is_kept_after_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Tensor]] = []
    fit = Trainer.fit

    def watched(self: Trainer, stage: str, training_set: TrainingSet, *rest: Any) -> None:
        kept.append(weakref.ref(training_set.images))
        fit(self, stage, training_set, *rest)

    monkeypatch.setattr(Trainer, "fit", watched)
    recipe = Recipe(backbone="small", training=Schedule(1, 0.01), balanced=Schedule(1, 0.01))
    images = torch.randint(0, 256, (8, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    learner = Learner(recipe=recipe, memory=4)
    learner.partial_fit(images, [0, 1] * 4).partial_fit(images, [2, 3] * 4)
    gc.collect()
    assert len(kept) == 3
    assert [part() for part in kept] == [None, None, None]
