"""Training sets that are drawn anew for each epoch, and what every method must do: plan, resume, save and go on."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import run_helper
import torch
from conftest import SIDE, Watching, examples, images_of, kept, method_of, state_of, tiny_learner
from run_helper import TINY, Interruptible, tiny_images
from test_augment import windows_of
from torch import Tensor

from treering import Augmentation, Budget, Learner, Optimizer, Recipe, Schedule
from treering.core import augment, backbones
from treering.core.network import IncrementalNetwork
from treering.core.trainer import Trainer
from treering.core.update import TrainingSet
from treering.experiments import run as runner
from treering.experiments.run import StreamRun
from treering.methods import METHODS
from treering.progress import Progress
from treering.recipe import Run

DRAWN = Augmentation(kind="crop-mirror", padding=1)
Example = tuple[bytes, int, bytes]
"""An image, its label and its targets."""


@dataclass
class Fit:
    """One call of the training loop: what it was given, what it drew, what its batches were, the network around it."""

    schedule: Schedule
    before: IncrementalNetwork
    drawing: bool
    """Whether it was given a function that draws."""
    draws: list[TrainingSet] = field(default_factory=list)
    """Every training set that was drawn, the last of them those of the epochs; or the one that was given."""
    networks: list[IncrementalNetwork] = field(default_factory=list)
    """The network at each draw."""
    trained: list[list[Example]] = field(default_factory=list)
    """Each epoch's batches, one after another."""
    after: IncrementalNetwork | None = None

    def epoch_draws(self) -> list[TrainingSet]:
        return self.draws[-self.schedule.epochs :]


def examples_of(images: Tensor, labels: Tensor, targets: Tensor) -> list[Example]:
    rows = [row.numpy().tobytes() for row in targets.detach()]
    return list(zip(kept(images), labels.tolist(), rows, strict=True))


def copied(given: TrainingSet) -> TrainingSet:
    return TrainingSet(given.images.clone(), given.labels.clone(), given.targets.clone())


def watch_fits(monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    """Fills up with every call of `Trainer.fit` from here on."""
    seen: list[Fit] = []
    fit, extract = Trainer.fit, IncrementalNetwork.extract
    batches: list[Tensor] = []
    """The images of each batch that a training network has been shown."""

    def watched_extract(network: IncrementalNetwork, images: Tensor) -> Tensor:
        if network.training:
            batches.append(images.clone())
        return extract(network, images)

    def watched(trainer: Trainer, stage: str, training_set: Any, schedule: Schedule, *rest: Any, **more: Any) -> None:
        now = Fit(schedule, copy.deepcopy(trainer.network), callable(training_set))
        seen.append(now)
        epoch: list[Example] = []
        loss, course = trainer.loss, trainer._course
        watcher = course.watcher

        def record(drawn: TrainingSet) -> TrainingSet:
            now.draws.append(copied(drawn))
            now.networks.append(copy.deepcopy(trainer.network))
            return drawn

        def watched_loss(logits: Tensor, labels: Tensor, targets: Tensor, heads: Tensor) -> Tensor:
            epoch.extend(examples_of(batches[-1], labels, targets))
            return loss(logits, labels, targets, heads)

        def watched_epoch(report: Any) -> None:
            now.trained.append(epoch.copy())
            epoch.clear()
            watcher.epoch(report)

        trainer.loss, course.watcher = watched_loss, Watching(watched_epoch, watcher.ready)
        try:
            given = (lambda: map(record, training_set())) if now.drawing else record(training_set)
            fit(trainer, stage, given, schedule, *rest, **more)
        finally:
            trainer.loss, course.watcher = loss, watcher
        now.after = copy.deepcopy(trainer.network)

    monkeypatch.setattr(IncrementalNetwork, "extract", watched_extract)
    monkeypatch.setattr(Trainer, "fit", watched)
    return seen


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    return watch_fits(monkeypatch)


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREERING_COMMIT", "of the tests")  # somebody may commit while they run
    monkeypatch.setitem(backbones.BACKBONES, "tiny", run_helper.TinyFeatures)


# --- Crops and mirrors ------------------------------------------------------------------------------------------------


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise_images(count: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.RandomState(5).randint(1, 256, (count, *shape)).astype(np.uint8))


def places_of(images: Tensor, seen: Tensor, padding: int) -> list[tuple[int, int, bool]]:
    """Where in its zero-padded image each was cropped, and whether it was mirrored then; there is just one way."""
    places = []
    for image, crop in zip(images.numpy(), seen.numpy(), strict=True):
        ways = [(*corner, False) for corner in windows_of(image, crop, padding)]
        ways += [(*corner, True) for corner in windows_of(image, oracles.mirror(crop), padding)]
        assert len(ways) == 1, "no window of this very image, mirrored or not, explains what came out"
        places += ways
    return places


@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 5, 7)], ids=["colour", "grey, not square"])
def test_crop_mirror_gives_a_window_of_each_padded_image_and_mirrors_about_half(shape: tuple[int, int, int]) -> None:
    images = noise_images(400, *shape)
    (seen,) = augment.crop_mirror(images, Augmentation(kind="crop-mirror", padding=2), seeded())
    assert seen.dtype == torch.uint8
    assert seen.shape == images.shape
    places = places_of(images, seen, padding=2)
    for axis in (0, 1):
        counts = [sum(place[axis] == offset for place in places) for offset in range(5)]
        assert sum(counts) == 400
        assert min(counts) > 50, "every offset from 0 to twice the padding, about as often as any other"
    assert len({place[:2] for place in places}) == 25, "rows and columns are drawn for themselves"
    mirrored = [place for place in places if place[2]]
    assert 160 < len(mirrored) < 240
    assert len({place[:2] for place in mirrored}) == 25, "whether to mirror does not depend on the window"


def test_crop_mirror_without_padding_only_mirrors() -> None:
    images = noise_images(40, 3, 4, 4)
    (seen,) = augment.crop_mirror(images, Augmentation(kind="crop-mirror", padding=0), seeded())
    assert {place[:2] for place in places_of(images, seen, padding=0)} == {(0, 0)}
    assert 10 < sum(torch.equal(a, b) for a, b in zip(images, seen, strict=True)) < 30


def test_augmenting_by_crop_mirror_gives_one_image_for_each_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert augment.copies(DRAWN) == 1
    images = noise_images(25, 3, 5, 5)
    monkeypatch.setattr(augment, "CHUNK", 7)
    seen = augment.augmented(images, DRAWN, seeded())
    assert len(places_of(images, seen, padding=1)) == 25


def test_crop_mirror_is_seeded_and_its_generator_alone_decides() -> None:
    images = noise_images(30, 3, 5, 5)
    generator = seeded(3)
    torch.manual_seed(11)
    first, second = (augment.augmented(images, DRAWN, generator) for _ in range(2))
    torch.manual_seed(12)
    again = augment.augmented(images, DRAWN, seeded(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, augment.augmented(images, DRAWN, seeded(4)))


def test_crop_mirror_is_for_training_only() -> None:
    images = noise_images(3, 3, 5, 5)
    assert torch.equal(augment.plain(images, DRAWN), images)


# --- A training set for each epoch ------------------------------------------------------------------------------------


def tiny_network() -> IncrementalNetwork:
    network = IncrementalNetwork(run_helper.TinyFeatures(), 8, torch.zeros(3, SIDE, SIDE), 255.0)
    network.add_head(2, seeded())
    return network


@pytest.mark.parametrize("drawing", [True, False], ids=["drawn", "given"])
def test_each_epoch_trains_on_its_own_draw_and_on_all_of_it(drawing: bool) -> None:
    """Labels tell the draw and the image: 100 x draw + image."""
    calls: list[int] = []
    trained: list[list[int]] = [[]]
    images = torch.from_numpy(images_of(range(10))).movedim(-1, 1)

    def draw() -> TrainingSet:
        calls.append(len(calls))
        return TrainingSet((images + calls[-1]).clone(), torch.arange(10) + 100 * calls[-1], torch.zeros(10, 2))

    def loss(logits: Tensor, labels: Tensor, targets: Tensor, heads: Tensor) -> Tensor:
        trained[-1] += labels.tolist()
        return logits.square().mean()

    trainer = Trainer(tiny_network(), loss, Optimizer(batch_size=4), seeded())
    with trainer.step(watcher=Watching(lambda report: trained.append([]))):
        trainer.fit("training", (lambda: iter([draw()])) if drawing else draw(), Schedule(epochs=3, lr=0.01))
    assert [len(epoch) for epoch in trained] == [12, 12, 12, 0], "three full batches each"
    numbers = [{label // 100 for label in epoch} for epoch in trained[:3]]
    if drawing:
        assert numbers == [{calls[-3]}, {calls[-2]}, {calls[-1]}]
    else:
        assert numbers == [{0}] * 3
        assert len(calls) == 1
    for epoch in trained[:3]:
        assert {label % 100 for label in epoch} == set(range(10))
        assert epoch[10:] == epoch[:2], "the last batch is filled up with the first images"
    assert len({tuple(label % 100 for label in epoch) for epoch in trained[:3]}) == 3, "in an order of their own"


@pytest.mark.parametrize("method", ["icarl", "lwf-mc"])
def test_the_images_of_every_epoch_are_cropped_and_mirrored_anew(fits: list[Fit], method: str) -> None:
    learner = tiny_learner(method=method, augmentation=DRAWN, training=Schedule(epochs=3, lr=0.05))
    first, second = examples({0: 10, 1: 9}), examples({2: 8, 3: 10}, seed=1)
    learner.partial_fit(*first).partial_fit(*second)
    for fit, given in zip(fits, (first, second), strict=True):
        draws = fit.epoch_draws()
        for epoch, drawn in zip(fit.trained, draws, strict=True):
            assert set(epoch) == set(examples_of(drawn.images, drawn.labels, drawn.targets))
            assert len(epoch) == -(-len(drawn.images) // 16) * 16
        for a, b in ((0, 1), (0, 2), (1, 2)):
            assert torch.equal(draws[a].labels, draws[b].labels)
            same = sum(torch.equal(x, y) for x, y in zip(draws[a].images, draws[b].images, strict=True))
            assert same < len(draws[a].images) / 3
        originals = torch.from_numpy(given[0]).movedim(-1, 1)
        for drawn in draws:
            places_of(originals, drawn.images[: len(originals)], padding=1)
            assert drawn.labels[: len(originals)].tolist() == given[1]


def test_the_seed_decides_what_is_drawn(fits: list[Fit]) -> None:
    for seed in (0, 0, 1):
        tiny_learner(method="lwf-mc", augmentation=DRAWN, seed=seed).partial_fit(*examples({0: 10, 1: 9}))
    assert fits[0].trained == fits[1].trained
    assert set(fits[0].trained[0]) != set(fits[2].trained[0])


# --- Every method: plans ----------------------------------------------------------------------------------------------

UNEVEN = (7, 1, 5, 3, 9, 2, 6, 4)


@pytest.mark.parametrize("steps", [3, (3, 1, 4), (1,) * 8, 8], ids=str)
@pytest.mark.parametrize(
    ("method", "budget"),
    [
        (method, budget)
        for method in METHODS
        for budget in (Budget("total", 17), Budget("per-class", 3))
        if method != "gem" and METHODS[method].trains
    ],
    ids=str,
)
def test_a_run_takes_the_image_passes_that_were_planned(
    tmp_path: Path, fits: list[Fit], method: str, budget: Budget, steps: Any
) -> None:
    recipe = replace(
        TINY,
        method=method,
        memory=budget,
        optimizer=Optimizer(batch_size=5),
        training=Schedule(epochs=2, lr=0.01),
        balanced=Schedule(epochs=1, lr=0.01),
        augmentation=DRAWN,
        run=Run("tiny", steps),
    )
    run = StreamRun(recipe, tiny_images(classes=8, per_class=UNEVEN), tmp_path)
    result = run()
    taken = sum(len(epoch) for fit in fits for epoch in fit.trained)
    assert taken == result["image_passes"] == run.image_passes_planned
    planned = METHODS[method].plan(
        recipe, [{label: UNEVEN[label] for label in classes} for classes in run.stream.steps]
    )
    stages = [stage for step in planned for stage in step]
    assert [stage.images for stage in stages] == [len(fit.draws[0].images) for fit in fits]
    assert [stage.image_passes for stage in stages] == [sum(map(len, fit.trained)) for fit in fits]


# --- Every method: interruption ---------------------------------------------------------------------------------------

INTERRUPTED = {
    "icarl": replace(TINY, method="icarl", augmentation=DRAWN),
    "icarl, momentum kept": replace(
        TINY, method="icarl", augmentation=DRAWN, optimizer=Optimizer(batch_size=8, reset_momentum=False, noise_eta=0.0)
    ),
    "lwf-mc, momentum kept": replace(
        TINY, method="lwf-mc", augmentation=DRAWN, optimizer=Optimizer(batch_size=8, reset_momentum=False)
    ),
    "joint": replace(TINY, method="joint", augmentation=DRAWN),
}


def interruptible(variant: str, folder: Path) -> Interruptible:
    recipe = replace(INTERRUPTED[variant], training=Schedule(epochs=3, lr=0.2, drop_at=(2,)))
    return Interruptible(recipe, folder, tiny_images(per_class=4))


@pytest.mark.parametrize("variant", INTERRUPTED)
def test_a_run_interrupted_after_any_epoch_goes_on_from_there_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    case = interruptible(variant, tmp_path)
    for epoch in range(1, 10):
        case.interrupt(str(epoch), epoch)
        case.check_the_end(str(epoch), 9 - epoch)


@pytest.mark.parametrize("variant", INTERRUPTED)
def test_a_run_interrupted_between_saves_goes_on_from_the_start_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 1e9)
    case = interruptible(variant, tmp_path)
    for epoch, left in ((2, 9), (5, 6), (9, 3)):
        case.interrupt(str(epoch), epoch)
        case.check_the_end(str(epoch), left)


# --- Every method: a learner ------------------------------------------------------------------------------------------

STEPS = [
    examples({"cat": 6, "dog": 5}),
    examples({"owl": 6, "dog": 3}, seed=1),
    examples({"eel": 5, "ant": 4}, seed=2),
]
TESTS = images_of(["cat", "dog", "owl", "eel", "ant"] * 3, seed=3)


def learner_of(method: str) -> Learner:
    recipe = Recipe(
        method=method,
        training=Schedule(epochs=2, lr=0.1),
        balanced=Schedule(epochs=1, lr=0.01),
        optimizer=Optimizer(batch_size=8),
        augmentation=Augmentation(kind="photo", crop_size=SIDE) if method == "tuned" else DRAWN,
    )
    memory = Budget("per-step", 4, "random") if method == "gem" else Budget("total", 10)
    return Learner(backbone="small", memory=memory, recipe=recipe, device="cpu")


@pytest.mark.parametrize("method", METHODS)
def test_a_learner_of_any_method_can_be_saved_loaded_and_taught_on(tmp_path: Path, method: str) -> None:
    learner = learner_of(method).partial_fit(*STEPS[0]).partial_fit(*STEPS[1])
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", device="cpu")
    assert type(method_of(loaded)) is METHODS[method]
    assert state_of(loaded) == state_of(learner)
    for step in (None, STEPS[2], STEPS[0]):
        if step is not None:
            learner.partial_fit(*step)
            loaded.partial_fit(*step)
            assert state_of(loaded) == state_of(learner), "it goes on as if it had never been saved"
        probabilities = learner.predict_proba(TESTS)
        assert probabilities.shape == (len(TESTS), len(learner.classes_))
        assert np.allclose(probabilities.sum(1), 1, atol=1e-6)
        assert np.array_equal(loaded.predict_proba(TESTS), probabilities)
        assert loaded.predict(TESTS).tolist() == learner.predict(TESTS).tolist()
    assert learner.classes_.tolist() == ["ant", "cat", "dog", "eel", "owl"]


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.trains])
def test_an_interrupted_step_leaves_a_learner_of_any_method_as_it_was(method: str) -> None:
    learner = learner_of(method).partial_fit(*STEPS[0]).partial_fit(*STEPS[1])
    before, said = state_of(learner), learner.predict_proba(TESTS)
    for epoch in (1, 2):

        def interrupt(now: Progress, epoch: int = epoch) -> None:
            if now.epoch == epoch:
                raise KeyboardInterrupt

        learner.progress = interrupt
        with pytest.raises(KeyboardInterrupt):
            learner.partial_fit(*STEPS[2])
        assert state_of(learner) == before
        assert np.array_equal(learner.predict_proba(TESTS), said)
    learner.progress = None
    whole = learner_of(method).partial_fit(*STEPS[0]).partial_fit(*STEPS[1]).partial_fit(*STEPS[2])
    assert state_of(learner.partial_fit(*STEPS[2])) == state_of(whole)
    assert np.array_equal(learner.predict_proba(TESTS), whole.predict_proba(TESTS))
