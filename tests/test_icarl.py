"""iCaRL: its loss, its targets, the nearest mean of exemplars, and hybrid1 as another readout of the same training."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import run_helper
import torch
from conftest import RECIPE, SIDE, TinyFeatures, examples, images_of, kept, method_of, tiny_learner
from run_helper import TINY, result_files, tiny_images
from test_draws import DRAWN, Fit, watch_fits
from torch import Tensor

from treering import Augmentation, Budget, Learner, Optimizer, Recipe, Schedule, methods
from treering.core import augment, backbones
from treering.core.network import IncrementalNetwork
from treering.errors import TreeringError
from treering.experiments import run as runner
from treering.experiments.result import run_name
from treering.experiments.run import StreamRun
from treering.methods.base import Step
from treering.methods.icarl import ICaRL
from treering.recipe import Run, ready_names

FIRST, SECOND, THIRD = examples({0: 10, 1: 9}), examples({2: 8, 3: 10, 4: 9}, seed=1), examples({5: 7}, seed=2)
TESTS = images_of([0, 1, 2, 3, 4, 5] * 6, seed=9)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Fit]:
    return watch_fits(monkeypatch)


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREERING_COMMIT", "of the tests")  # somebody may commit while they run
    monkeypatch.setitem(backbones.BACKBONES, "tiny", TinyFeatures)


# --- Oracles ----------------------------------------------------------------------------------------------------------


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def binary_cross_entropy(logits_NC: oracles.Matrix, targets_NC: oracles.Matrix) -> float:
    """-t log(s) - (1 - t) log(1 - s) of every output of every image, averaged over both."""
    total, terms = 0.0, 0
    for logits, targets in zip(logits_NC, targets_NC, strict=True):
        for logit, target in zip(logits, targets, strict=True):
            total += target * math.log1p(math.exp(-logit)) + (1 - target) * math.log1p(math.exp(logit))
            terms += 1
    return total / terms


def binary_cross_entropy_gradient(logits_NC: oracles.Matrix, targets_NC: oracles.Matrix) -> np.ndarray:
    """(s - t) / (batch * outputs)."""
    rows = []
    for logits, targets in zip(logits_NC, targets_NC, strict=True):
        terms = len(logits_NC) * len(logits)
        rows.append([(sigmoid(logit) - target) / terms for logit, target in zip(logits, targets, strict=True)])
    return np.array(rows)


def features_of(network: IncrementalNetwork, images: Tensor) -> np.ndarray:
    """N x D from the bare feature extractor."""
    extractor = copy.deepcopy(network.features).eval()
    with torch.no_grad():
        return extractor(images.float() / 255 - network.mean_image).double().numpy()


def outputs_of(network: IncrementalNetwork, images: Tensor) -> np.ndarray:
    """The sigmoid outputs of the classes that the network knows."""
    weight, bias = network.weight.detach().double().numpy(), network.bias.detach().double().numpy()
    rows = []
    for features in features_of(network, images):
        logits = [math.fsum(features * weight[label]) + bias[label] for label in range(sum(network.head_sizes))]
        rows.append([sigmoid(logit) for logit in logits])
    return np.array(rows)


def mirrored(images: Tensor) -> Tensor:
    return torch.from_numpy(np.stack([oracles.mirror(image) for image in images.numpy()]).astype(np.uint8))


def class_means(network: IncrementalNetwork, exemplars: dict[int, Tensor]) -> list[np.ndarray]:
    """Of each class in the order of its number: exemplars and mirror images, normalised, averaged, normalised again."""
    means = []
    for label in sorted(exemplars):
        own = oracles.normalised(features_of(network, exemplars[label]))
        own += oracles.normalised(features_of(network, mirrored(exemplars[label])))
        means += oracles.normalised([sum(own) / len(own)])
    return means


def distances(network: IncrementalNetwork, exemplars: dict[int, Tensor], images: Tensor) -> np.ndarray:
    """N x classes: Euclidean distances of normalised features to the means of exemplars."""
    means = class_means(network, exemplars)
    rows = oracles.normalised(features_of(network, images))
    return np.array([[math.sqrt(math.fsum((features - mean) ** 2)) for mean in means] for features in rows])


def nearest_mean(network: IncrementalNetwork, exemplars: dict[int, Tensor], images: Tensor) -> np.ndarray:
    """N x classes: exp(-d^2), scaled to sum to 1."""
    powers = np.exp(-(distances(network, exemplars, images) ** 2))
    return powers / powers.sum(1, keepdims=True)


def pixels(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).movedim(-1, 1).contiguous()


def icarl(**changes: Any) -> Learner:
    return tiny_learner(method="icarl", **{"augmentation": DRAWN} | changes)


def check_readout(learner: Learner) -> None:
    """The learner must say what the nearest mean of the exemplars that it has now says."""
    method = method_of(learner)
    expected = nearest_mean(method.network, method.memory.exemplars, pixels(TESTS))
    said = learner.predict_proba(TESTS)
    np.testing.assert_allclose(said, expected, atol=1e-6, rtol=0)
    assert said.sum(1) == pytest.approx(1, abs=1e-6)
    nearest = distances(method.network, method.memory.exemplars, pixels(TESTS)).argmin(1)
    assert said.argmax(1).tolist() == nearest.tolist()


# --- The loss ---------------------------------------------------------------------------------------------------------


OUTPUTS = 20
"""What the loss is averaged over: more than the classes known so far."""


def icarl_method(head_sizes: list[int]) -> methods.Method:
    """iCaRL with these heads."""
    recipe = replace(RECIPE, method="icarl", outputs=OUTPUTS)
    method = methods.create(recipe, TinyFeatures(), torch.full((3, SIDE, SIDE), 0.5), 0, torch.device("cpu"))
    for size in head_sizes:
        method.network.add_head(size, method.generator)
    return method


@pytest.mark.parametrize("head_sizes", [[1], [2, 3], [4, 1, 2], [OUTPUTS + 2]], ids=str)
def test_the_loss_is_the_mean_binary_cross_entropy_over_batch_and_all_outputs(head_sizes: list[int]) -> None:
    random, method = np.random.RandomState(sum(head_sizes)), icarl_method(head_sizes)
    columns = max(OUTPUTS, sum(head_sizes))
    assert method.network.columns == columns
    logits, targets = random.normal(0, 6, (5, columns)), random.uniform(0, 1, (5, columns))
    targets[:, -1] = random.randint(0, 2, 5)
    targets[0, 0] = 1.0
    given = torch.from_numpy(logits).requires_grad_()
    labels = torch.from_numpy(random.randint(0, sum(head_sizes), 5))
    loss = method.loss(given, labels, torch.from_numpy(targets), method.network.head_of_class)
    (gradient,) = torch.autograd.grad(loss, given)
    assert loss.item() == pytest.approx(binary_cross_entropy(logits, targets), abs=1e-6)
    np.testing.assert_allclose(gradient.numpy(), binary_cross_entropy_gradient(logits, targets), atol=1e-6, rtol=0)


def test_the_loss_of_outputs_far_from_their_targets_is_finite() -> None:
    method = icarl_method([2])
    logits, targets = torch.full((1, OUTPUTS), -300.0), torch.zeros(1, OUTPUTS)
    logits[0, 0], targets[0, 1] = 300.0, 1.0  # the wrong way round
    loss = method.loss(logits.requires_grad_(), torch.tensor([1]), targets, method.network.head_of_class)
    assert loss.item() == pytest.approx((300 + 300) / OUTPUTS)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.tolist()[0] == pytest.approx([1 / OUTPUTS, -1 / OUTPUTS, *[0.0] * (OUTPUTS - 2)])


def untaught(**changes: Any) -> ICaRL:
    optimizer = Optimizer(batch_size=8, noise_eta=0.0, weight_decay=0.0)
    recipe = replace(RECIPE, method="icarl", augmentation=DRAWN, optimizer=optimizer, outputs=OUTPUTS, **changes)
    method = methods.create(recipe, TinyFeatures(), torch.full((3, SIDE, SIDE), 0.5), 0, torch.device("cpu"))
    assert isinstance(method, ICaRL)
    return method


def test_outputs_of_classes_to_come_learn_towards_0_and_are_not_drawn_anew() -> None:
    method = untaught(training=Schedule(20, 2.0))
    images, labels = FIRST
    method.learn_step(Step(pixels(images), torch.tensor(labels), 2))
    features = method.network.predict_features(pixels(images))
    to_come = torch.nn.functional.linear(features, method.network.weight[2:], method.network.bias[2:]).sigmoid()
    assert to_come.max() < 0.3
    before = method.network.weight[2:].clone()
    method.network.add_head(3, method.generator)
    assert torch.equal(method.network.weight[2:], before)
    assert method.network.predict_logits(pixels(images)).shape == (len(images), 5)


def test_what_outputs_of_classes_to_come_have_learnt_is_kept_with_the_rest() -> None:
    method, other = untaught(), untaught()
    images, labels = FIRST
    method.learn_step(Step(pixels(images), torch.tensor(labels), 2))
    other.network.load_tensors(method.network.head_sizes, method.network.tensors())
    assert torch.equal(other.network.weight, method.network.weight)
    assert torch.equal(other.network.bias, method.network.bias)


def test_all_outputs_are_drawn_with_the_first_head() -> None:
    method = untaught()
    method.network.add_head(2, method.generator)
    assert (method.network.weight.abs().sum(1) > 0).all()
    assert len({tuple(row) for row in method.network.weight.tolist()}) == OUTPUTS


def test_a_saved_learner_goes_on_as_if_it_had_not_been_saved(tmp_path: Path) -> None:
    learner = icarl().partial_fit(*FIRST)
    learner.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", backbone=TinyFeatures())
    said = [one.partial_fit(*SECOND).predict_proba(TESTS) for one in (learner, loaded)]
    assert np.array_equal(*said)


# --- Targets ----------------------------------------------------------------------------------------------------------


def one_hot(labels: Tensor, classes: int) -> np.ndarray:
    return np.array([[float(label == column) for column in range(classes)] for label in labels.tolist()])


def test_the_first_step_has_targets_0_and_1(fits: list[Fit]) -> None:
    icarl().partial_fit(*FIRST)
    (fit,) = fits
    for drawn in fit.draws:
        assert drawn.targets.numpy().tolist() == one_hot(drawn.labels, drawn.targets.shape[1]).tolist()
        assert drawn.labels.tolist() == FIRST[1]


@pytest.mark.parametrize("kind", ["crop-mirror", "none", "twelvefold"])
def test_old_classes_have_the_sigmoids_of_the_network_before_the_step_new_ones_0_and_1(
    fits: list[Fit], kind: Any
) -> None:
    augmentation = Augmentation(kind=kind, padding=1)
    learner = icarl(augmentation=augmentation, training=Schedule(epochs=3, lr=0.5)).partial_fit(*FIRST)
    learner.partial_fit(*SECOND)
    teacher = copy.deepcopy(method_of(learner).network)
    learner.partial_fit(*THIRD)
    fit = fits[2]
    assert fit.drawing
    assert len(fit.epoch_draws()) == 3
    for drawn in fit.draws:
        new = drawn.labels == 5
        assert new.sum() == 7 * augment.copies(augmentation)
        assert 0 < new.sum() < len(new), "new images and exemplars alike"
        expected = outputs_of(teacher, drawn.images)
        np.testing.assert_allclose(drawn.targets[:, :5].numpy(), expected, atol=1e-6, rtol=0)
        assert np.array_equal(drawn.targets[:, 5:].numpy(), one_hot(drawn.labels, drawn.targets.shape[1])[:, 5:])
        assert expected[new.numpy()].std(0).max() > 1e-4, "the teacher tells images apart"
    now = outputs_of(fit.networks[-1], drawn.images)[:, :5]
    assert np.abs(now - expected).max() > 0.01, "the network itself has learnt on by the last epoch"


def test_the_targets_belong_to_the_images_as_they_are_drawn_in_that_epoch(fits: list[Fit]) -> None:
    icarl().partial_fit(*FIRST).partial_fit(*SECOND)
    first, second = fits[1].epoch_draws()
    moved = [index for index in range(len(first.images)) if not torch.equal(first.images[index], second.images[index])]
    assert len(moved) > len(first.images) / 2
    changes = (first.targets[moved, :2] - second.targets[moved, :2]).abs().amax(1)
    assert (changes > 1e-5).float().mean() > 0.9


def test_the_teacher_does_not_change_while_the_network_trains(fits: list[Fit]) -> None:
    learner = icarl(training=Schedule(epochs=2, lr=0.5)).partial_fit(*FIRST)
    generator = method_of(learner).generator
    sets = []
    watched = method_of(learner).trainer.fit

    def draw_before_and_after(stage: str, draw: Any, schedule: Schedule) -> None:
        state = generator.get_state()
        sets.append(next(draw()))
        generator.set_state(state)
        watched(stage, draw, schedule)
        after = generator.get_state()
        generator.set_state(state)
        sets.append(next(draw()))
        generator.set_state(after)

    method_of(learner).trainer.fit = draw_before_and_after  # type: ignore[method-assign, assignment]
    learner.partial_fit(*SECOND)
    before, after = sets
    assert torch.equal(before.images, after.images)
    assert torch.equal(before.targets, after.targets)
    assert fits[1].after is not None
    assert not torch.equal(fits[1].before.weight[:2], fits[1].after.weight[:2]), "the old outputs have trained"


def test_a_step_trains_on_its_images_and_every_exemplar(fits: list[Fit]) -> None:
    learner = icarl(augmentation=Augmentation(kind="none")).partial_fit(*FIRST)
    memory = {label: kept(images) for label, images in method_of(learner).memory.exemplars.items()}
    assert {label: len(images) for label, images in memory.items()} == {0: 6, 1: 6}
    learner.partial_fit(*SECOND)
    for drawn in fits[1].draws:
        of_class = {label: sorted(kept(drawn.images[drawn.labels == label])) for label in range(5)}
        assert {label: of_class[label] for label in (0, 1)} == {label: sorted(memory[label]) for label in (0, 1)}
        for label in (2, 3, 4):
            assert of_class[label] == sorted(kept(SECOND[0][np.array(SECOND[1]) == label]))
    assert {label: len(images) for label, images in method_of(learner).memory.exemplars.items()} == dict.fromkeys(
        range(5), 2
    )


def test_images_of_known_classes_alone_are_distilled_and_add_no_output(fits: list[Fit]) -> None:
    learner = icarl().partial_fit(*FIRST).partial_fit(*SECOND)
    teacher = copy.deepcopy(method_of(learner).network)
    learner.partial_fit(*examples({1: 5, 3: 4}, seed=7))
    assert method_of(learner).network.head_sizes == [2, 3]
    drawn = fits[2].epoch_draws()[-1]
    assert len(drawn.images) == 9 + 10
    np.testing.assert_allclose(drawn.targets[:, :5].numpy(), outputs_of(teacher, drawn.images), atol=1e-6, rtol=0)
    assert not drawn.targets[:, 5:].any()
    check_readout(learner)


def test_a_memory_too_small_for_the_classes_is_refused_before_anything_is_trained(fits: list[Fit]) -> None:
    learner = icarl(memory=4).partial_fit(*FIRST)
    said = learner.predict_proba(TESTS)
    with pytest.raises(ValueError, match="a memory of 4 images cannot hold 5 classes"):
        learner.partial_fit(*SECOND)
    assert len(fits) == 1
    assert np.array_equal(learner.predict_proba(TESTS), said)


# --- The nearest mean of exemplars ------------------------------------------------------------------------------------


def test_images_go_to_the_nearest_mean_of_exemplars_and_mirror_images() -> None:
    learner = icarl().partial_fit(*FIRST).partial_fit(*SECOND)
    check_readout(learner)
    method = method_of(learner)
    expected = nearest_mean(method.network, method.memory.exemplars, pixels(TESTS))
    assert len(set(expected.argmax(1))) > 2, "the data tell classes apart"


def test_the_data_tell_the_parts_of_the_definition_apart() -> None:
    """Without mirror images or either normalisation, the means would be others by more than the tests allow."""
    learner = icarl().partial_fit(*FIRST).partial_fit(*SECOND)
    network, exemplars = method_of(learner).network, method_of(learner).memory.exemplars
    means = class_means(network, exemplars)
    for label, mean in enumerate(means):
        raw = features_of(network, exemplars[label])
        raw_mirrored = features_of(network, mirrored(exemplars[label]))
        unmirrored = oracles.normalised([sum(oracles.normalised(raw)) / len(raw)])[0]
        own = oracles.normalised(raw) + oracles.normalised(raw_mirrored)
        once = sum(own) / len(own)
        unnormalised = oracles.normalised([np.concatenate([raw, raw_mirrored]).mean(0)])[0]
        for other in (unmirrored, once, unnormalised):
            assert np.abs(other - mean).max() > 1e-5


def test_after_each_step_the_means_are_those_of_the_new_network_and_memory() -> None:
    learner = icarl()
    for step in (FIRST, SECOND, examples({0: 4, 2: 5}, seed=6), THIRD):
        learner.partial_fit(*step)
        check_readout(learner)


def test_after_going_back_the_means_are_computed_anew() -> None:
    learner = icarl().partial_fit(*FIRST)
    method = method_of(learner)
    first, snapshot = method.probabilities(pixels(TESTS)), method.snapshot()
    images, labels = examples({0: 9, 1: 9}, seed=8)
    method.learn_step(Step(pixels(images), torch.tensor(labels), 0))
    second = method.probabilities(pixels(TESTS))
    assert not torch.allclose(first, second, atol=1e-5)
    method.restore(snapshot)
    assert torch.equal(method.probabilities(pixels(TESTS)), first)


def test_exemplars_are_chosen_by_herding_with_the_trained_network() -> None:
    learner = icarl().partial_fit(*FIRST)
    method = method_of(learner)
    for label in (0, 1):
        pool = pixels(FIRST[0][np.array(FIRST[1]) == label])
        features = oracles.normalised(features_of(method.network, pool))
        names = kept(pool)
        ranking = [names.index(name) for name in kept(method.memory.exemplars[label])]
        assert oracles.herding_regret(features, ranking) < 1e-6


# --- hybrid1 ----------------------------------------------------------------------------------------------------------

HYBRID = replace(
    TINY,
    method="icarl",
    augmentation=DRAWN,
    training=Schedule(epochs=2, lr=0.5),
    optimizer=Optimizer(batch_size=8, reset_momentum=False, noise_eta=0.0),
    run=Run("tiny", (2, 3, 1)),
)
SCORES = {"method", "accuracy", "top5", "average", "average_without_first", "class_accuracy", "confusion"}
SCORES |= {"task_accuracy", "task_aware_accuracy"}
ICARL_FILE, HYBRID_FILE = f"{run_name(HYBRID)}.json", f"{run_name(HYBRID, 'hybrid1')}.json"


def test_hybrid1_is_the_networks_own_outputs() -> None:
    learner = icarl().partial_fit(*FIRST).partial_fit(*SECOND)
    method = method_of(learner)
    (readout,) = (getattr(method, name) for name in method.further_readouts.values())
    said = readout(pixels(TESTS)).numpy()
    outputs = outputs_of(method.network, pixels(TESTS))
    np.testing.assert_allclose(said, outputs / outputs.sum(1, keepdims=True), atol=1e-6, rtol=0)
    assert said.sum(1) == pytest.approx(1, abs=1e-6)


def test_outputs_far_below_zero_are_probabilities_too() -> None:
    learner = icarl().partial_fit(*FIRST)
    method = method_of(learner)
    readout = getattr(method, method.further_readouts["hybrid1"])
    predicted = readout(pixels(TESTS)).argmax(1)
    for shift in (60.0, 700.0):
        with torch.no_grad():
            method.network.bias -= shift
        said = readout(pixels(TESTS))
        assert said.sum(1).numpy() == pytest.approx(1, abs=1e-6)
        assert torch.equal(said.argmax(1), predicted)


def test_one_run_writes_two_results_that_differ_in_method_and_scores_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tiny_images(tests_per_class=8)
    after: list[tuple[IncrementalNetwork, dict[int, Tensor]]] = []
    learn_step = ICaRL.learn_step

    def watched(method: ICaRL, step: Step) -> None:
        learn_step(method, step)
        after.append((copy.deepcopy(method.network), dict(method.memory.exemplars)))

    monkeypatch.setattr(ICaRL, "learn_step", watched)
    run = StreamRun(HYBRID, images, tmp_path)
    returned = run()
    results = result_files(tmp_path)
    assert set(results) == {ICARL_FILE, HYBRID_FILE}
    assert ICARL_FILE == "tiny-2+3+1-icarl-total14-herding-order0-seed0.json"
    assert HYBRID_FILE == "tiny-2+3+1-hybrid1-total14-herding-order0-seed0.json"
    icarl_result, hybrid_result = results[ICARL_FILE], results[HYBRID_FILE]
    assert (icarl_result["method"], hybrid_result["method"], returned["method"]) == ("icarl", "hybrid1", "icarl")
    assert icarl_result.keys() == hybrid_result.keys()
    different = {key for key in icarl_result if icarl_result[key] != hybrid_result[key]}
    assert {"method", "accuracy"} <= different <= SCORES
    assert icarl_result["recipe"] == hybrid_result["recipe"] == HYBRID.to_dict()
    assert icarl_result["image_passes"] == hybrid_result["image_passes"] == run.image_passes_planned

    expected: dict[str, list[float]] = {"icarl": [], "hybrid1": []}
    for step, (network, exemplars) in zip(run.stream, after, strict=True):
        guesses = {
            "icarl": distances(network, exemplars, step.test_images).argmin(1),
            "hybrid1": outputs_of(network, step.test_images).argmax(1),
        }
        for name, guess in guesses.items():
            expected[name].append(100 * float(np.mean(guess == step.test_labels.numpy())))
    assert icarl_result["accuracy"] == pytest.approx(expected["icarl"])
    assert hybrid_result["accuracy"] == pytest.approx(expected["hybrid1"])
    for result in (icarl_result, hybrid_result):
        accuracy = result["accuracy"]
        assert result["average"] == pytest.approx(sum(accuracy) / 3)
        assert result["average_without_first"] == pytest.approx(sum(accuracy[1:]) / 2)
        assert sum(result["confusion"][label][label] for label in range(6)) / 48 * 100 == pytest.approx(accuracy[-1])


@pytest.mark.parametrize("written", [0, 1])
def test_a_crash_between_the_two_results_leaves_the_run_unfinished_and_the_next_completes_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    images = tiny_images(per_class=4)
    StreamRun(HYBRID, images, tmp_path / "whole")()
    write = runner.files.write
    results: list[Path] = []

    def crash(file: Path, content: bytes) -> None:
        if file.suffix == ".json":
            if len(results) == written:
                raise KeyboardInterrupt
            results.append(file)
        write(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(runner.files, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            StreamRun(HYBRID, images, tmp_path / "crashed")()
    assert [file.name for file in results] == [HYBRID_FILE][:written], "the run's own result comes last"
    run = StreamRun(HYBRID, images, tmp_path / "crashed")
    assert run()["method"] == "icarl"
    assert result_files(tmp_path / "crashed") == result_files(tmp_path / "whole")
    assert len(result_files(tmp_path / "whole")) == 2
    assert not run.state.file.exists()


def test_hybrid1_of_other_settings_is_refused_and_stays(tmp_path: Path) -> None:
    images = tiny_images(per_class=4)
    StreamRun(HYBRID, images, tmp_path)()
    (tmp_path / ICARL_FILE).unlink()
    before = (tmp_path / HYBRID_FILE).read_bytes()
    with pytest.raises(TreeringError, match=r"hybrid1.* holds a run with other settings"):
        StreamRun(replace(HYBRID, temperature=3.0), images, tmp_path)()
    assert (tmp_path / HYBRID_FILE).read_bytes() == before


def test_hybrid1_that_was_removed_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    images = tiny_images(per_class=4)
    StreamRun(HYBRID, images, tmp_path)()
    (tmp_path / HYBRID_FILE).unlink()
    StreamRun(HYBRID, images, tmp_path)()
    (warning,) = caplog.messages
    assert warning == f"{tmp_path / HYBRID_FILE} is gone: to have it made again, remove {tmp_path / ICARL_FILE} too"


# --- Settings ---------------------------------------------------------------------------------------------------------


def ready(ending: str) -> dict[str, Recipe]:
    return {name: Recipe.find(name) for name in ready_names() if name.endswith(ending)}


def assert_icarls_training(recipe: Recipe) -> None:
    """As published; its code adds 1e-5 * |w|^2 to the loss."""
    schedule = recipe.training
    assert schedule.epochs == 70
    rates = [2.0] * 49 + [0.4] * 14 + [0.08] * 7
    assert [schedule.lr_at(epoch) for epoch in range(70)] == pytest.approx(rates)
    assert recipe.optimizer == Optimizer(
        batch_size=128, momentum=0.9, reset_momentum=False, weight_decay=2e-5, decay="plain", noise_eta=0.0
    )
    assert (recipe.augmentation.kind, recipe.augmentation.padding) == ("crop-mirror", 4)
    assert recipe.backbone == "resnet32-linear"
    assert recipe.pixel_scale == 255


def test_features_of_large_images_have_no_last_relu_either() -> None:
    recipes = [*ready("-icarl").values(), *ready("-lwf-mc").values()]
    large = [recipe for recipe in recipes if recipe.run.dataset.startswith(("imagenet", "stanford-dogs"))]
    assert len(large) == 5
    for recipe in large:
        assert (recipe.backbone, recipe.pixel_scale) == ("resnet18-linear", 1)
        assert recipe.optimizer.weight_decay == 1e-5  # its published code halves |w|^2, that for CIFAR-100 does not
    torch.manual_seed(0)
    assert backbones.build("resnet18-linear", 3, 0).eval()(torch.randn(2, 3, 64, 64)).min() < 0


def test_the_ready_recipes_are_icarls_settings() -> None:
    recipes = {name: recipe for name, recipe in ready("-icarl").items() if name.startswith("cifar100")}
    steps = [2, 5, 10, 20, 50]
    assert set(recipes) == {f"cifar100-{size}-icarl" for size in steps} | {"cifar100-vehicles-icarl"}
    for name, recipe in recipes.items():
        assert_icarls_training(recipe)
        vehicles = "vehicles" in name
        assert recipe.method == "icarl"
        assert recipe.outputs == 100, "the learning rate belongs to so many"
        assert recipe.memory == Budget("total", 200 if vehicles else 2000, "herding")
        assert recipe.run.dataset == ("cifar100-vehicles" if vehicles else "cifar100")
        assert recipe.run.classes_per_step == (2 if vehicles else int(name.split("-")[1]))


def test_icarls_features_may_be_negative_and_resnet32s_never_are() -> None:
    images = torch.from_numpy(np.random.RandomState(0).uniform(-0.5, 0.5, (6, 3, 16, 16))).float()
    features = {}
    for name in ("resnet32", "resnet32-linear"):
        network = backbones.build(name, 3, seed=0).eval()
        with torch.no_grad():
            features[name] = network(images)
        last = network.body[-1]
        weights = network.state_dict()
        # The last block, from its parts: only its last ReLU may be missing.
        with torch.no_grad():
            x = network.body[:-1](network.stem(images))
            out = last.norm2(last.convolution2(torch.relu(last.norm1(last.convolution1(x))))) + x
        out = out if name == "resnet32-linear" else out.clamp_min(0)
        assert torch.allclose(features[name], out.mean((2, 3)), atol=1e-5)
    assert (features["resnet32"] >= 0).all()
    assert (features["resnet32-linear"] < 0).float().mean() > 0.05
    assert features["resnet32-linear"].shape == (6, 64)
    same = backbones.build("resnet32", 3, seed=0).state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(tensor, same[name]) for name, tensor in weights.items())


def test_a_run_of_the_ready_recipe_made_small_works(tmp_path: Path) -> None:
    changes = ["training.epochs=1", "run.classes_per_step=3", "memory.size=12", "backbone=tiny"]
    recipe = Recipe.find("cifar100-10-icarl").changed(changes)
    result = StreamRun(recipe, run_helper.tiny_images(per_class=4), tmp_path)()
    assert len(result["accuracy"]) == 2
    assert result["memory"] == {"kind": "total", "size": 12}
