"""GEM: its quadratic programme, its loss, the updates it makes, its memory, and what it keeps of a first task."""

from __future__ import annotations

import copy
import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from conftest import RECIPE, SIDE, TinyFeatures, Watching, examples, images_of, kept, method_of, state_of, tiny_learner
from hypothesis import given, settings
from hypothesis import strategies as st
from run_helper import TINY, Interruptible, tiny_images
from scipy import optimize
from torch import Tensor, nn

from treering import Augmentation, Budget, Optimizer, Recipe, Schedule, TreeringError, data, methods
from treering.core import backbones
from treering.core.network import SPARE_LOGIT, IncrementalNetwork
from treering.data.stream import ResidentImages
from treering.experiments import run as runner
from treering.experiments.result import run_name
from treering.experiments.run import StreamRun
from treering.methods import gem as gem_module
from treering.methods.base import Step
from treering.methods.gem import GEM, projection
from treering.recipe import Run, ready_names

PLAIN = Optimizer(batch_size=64, momentum=0.0, weight_decay=0.0, noise_eta=0.0)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def tiny_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREERING_COMMIT", "of the tests")
    monkeypatch.setitem(backbones.BACKBONES, "tiny", TinyFeatures)


def gem(features: nn.Module | None = None, size: int = 4, seed: int = 0, **changes: Any) -> GEM:
    """A method that has learnt nothing yet."""
    plain = replace(RECIPE, method="gem", memory=Budget("per-step", size, "random"), optimizer=PLAIN)
    mean = torch.full((3, SIDE, SIDE), 0.5)
    method = methods.create(replace(plain, **changes), features or TinyFeatures(), mean, seed, CPU)
    assert isinstance(method, GEM)
    return method


def step_of(labels: list[int], new_classes: int, seed: int = 0) -> Step:
    pixels = torch.from_numpy(images_of(labels, seed)).movedim(-1, 1).contiguous()
    return Step(pixels, torch.tensor(labels), new_classes)


# --- The quadratic programme ------------------------------------------------------------------------------------------


def brute_force(gradient: np.ndarray, earlier_KP: np.ndarray, margin: float) -> np.ndarray:
    """g + G'v with the v that minimises v'Pv / 2 + q'v subject to v >= margin, unless no product is negative.

    In the best v, each weight either is the margin or makes the derivative Pv + q vanish: tries all combinations.
    """
    P, q = earlier_KP @ earlier_KP.T, earlier_KP @ gradient
    if min(q) >= 0:
        return gradient
    best, least = None, np.inf
    for at_margin in itertools.product([True, False], repeat=len(q)):
        bound, free = np.flatnonzero(at_margin), np.flatnonzero(~np.array(at_margin))
        v = np.full(len(q), margin)
        if len(free):
            wanted = -q[free] - P[np.ix_(free, bound)] @ v[bound]
            v[free] = np.linalg.lstsq(P[np.ix_(free, free)], wanted, rcond=1e-10)[0]
        value = v @ P @ v / 2 + q @ v
        if (v >= margin - 1e-9).all() and value < least:
            best, least = v, value
    assert best is not None
    return gradient + best @ earlier_KP


def projected(gradient: np.ndarray, earlier_KP: np.ndarray, margin: float) -> np.ndarray:
    weights = projection(earlier_KP @ earlier_KP.T, earlier_KP @ gradient, margin)
    assert weights.shape == (len(earlier_KP),)
    assert (weights >= margin - 1e-12).all() or not weights.any()
    return gradient + weights @ earlier_KP


@st.composite
def gradients(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """A gradient and up to five earlier ones in up to four dimensions: small whole numbers, so often dependent."""
    numbers = st.integers(-3, 3).map(float)
    size = draw(st.integers(1, 4))
    vectors = st.lists(numbers, min_size=size, max_size=size)
    return np.array(draw(vectors)), np.array(draw(st.lists(vectors, min_size=1, max_size=5)))


@settings(max_examples=300)
@given(gradients(), st.sampled_from([0.0, 0.5, 2.0]))
def test_the_projected_gradient_is_the_best_of_all_active_sets(
    given_: tuple[np.ndarray, np.ndarray], margin: float
) -> None:
    gradient, earlier = given_
    found = projected(gradient, earlier, margin)
    np.testing.assert_allclose(found, brute_force(gradient, earlier, margin), atol=1e-6)
    assert (earlier @ found >= -1e-6).all(), "no earlier loss increases"


def random_gradients(tasks: int, parameters: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The new gradient points away from most of the earlier ones."""
    random = np.random.RandomState(seed)
    return random.normal(-0.6, 1, parameters), random.normal(0.1, 0.2, (tasks, parameters))


@pytest.mark.parametrize(("tasks", "parameters"), [(1, 1), (1, 30), (3, 30), (12, 30), (20, 60), (20, 8)])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_the_projected_gradient_is_that_of_another_solver(tasks: int, parameters: int, margin: float) -> None:
    bent = 0
    for seed in range(8):
        gradient, earlier = random_gradients(tasks, parameters, seed)
        found = projected(gradient, earlier, margin)
        if min(earlier @ gradient) >= 0:
            assert np.array_equal(found, gradient)
            continue
        # v'Pv / 2 + q'v is |g + G'v|^2 / 2 but for a constant.
        other = optimize.lsq_linear(earlier.T, -gradient, (margin, np.inf), method="trf", tol=1e-14, max_iter=1000)
        np.testing.assert_allclose(found, gradient + other.x @ earlier, atol=1e-5)
        bent += not np.allclose(found, gradient + margin * earlier.sum(0))
    assert bent, "the margin alone is not enough"


@pytest.mark.parametrize(("tasks", "parameters"), [(1, 3), (4, 10), (8, 10), (20, 30)])
def test_without_a_margin_it_is_the_nearest_vector_that_harms_no_earlier_task(tasks: int, parameters: int) -> None:
    for seed in range(4):
        gradient, earlier = random_gradients(tasks, parameters, seed)
        nearest = optimize.minimize(
            lambda x, target=gradient: ((x - target) ** 2).sum() / 2,
            np.zeros(parameters),
            jac=lambda x, target=gradient: x - target,
            constraints={"type": "ineq", "fun": lambda x, G=earlier: G @ x, "jac": lambda x, G=earlier: G},
            method="SLSQP",
            options={"ftol": 1e-12, "maxiter": 500},
        )
        assert nearest.success
        np.testing.assert_allclose(projected(gradient, earlier, 0.0), nearest.x, atol=1e-5)


def test_one_earlier_task_by_hand() -> None:
    assert projection(np.array([[4.0]]), np.array([-8.0])).tolist() == pytest.approx([2.0]), "-q / P"
    assert projection(np.array([[4.0]]), np.array([-1.0])).tolist() == pytest.approx([0.5]), "0.25 is below the margin"
    assert projection(np.array([[4.0]]), np.array([-1.0]), 0.0).tolist() == pytest.approx([0.25])


@pytest.mark.parametrize("products", [[3.0], [0.0], [0.0, 2.0], [5.0, 0.0, 1e-9]], ids=str)
def test_a_gradient_that_harms_nobody_stays_as_it_is(products: list[float]) -> None:
    assert projection(np.eye(len(products)), np.array(products)).tolist() == [0.0] * len(products)


def test_an_earlier_gradient_of_zero_leaves_the_others_their_weights() -> None:
    """A task of one class has it always: its loss is 0."""
    earlier = np.array([[0.0, 0.0, 2.0, -1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    for gradient in ([0.0, 0.0, 0.0, 1.0], [1.0, 0.0, -3.0, -2.0], [0.0, 0.0, -1.0, -3.0]):
        for margin in (0.0, 0.5):
            expected = brute_force(np.array(gradient), earlier[[0, 2, 3]], margin)
            np.testing.assert_allclose(projected(np.array(gradient), earlier, margin), expected, atol=1e-6)


def test_without_a_margin_a_task_counts_however_small_its_gradient() -> None:
    for seed in range(8):
        gradient, earlier = random_gradients(4, 10, seed)
        lengths = np.array([1.0, 1e-3, 1.0, 1e-7])[:, None]
        expected = brute_force(gradient, earlier, 0.0)
        np.testing.assert_allclose(projected(gradient, earlier * lengths, 0.0), expected, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_left_to_the_trainer(bad: float) -> None:
    assert projection(np.array([[bad, 0.0], [0.0, 1.0]]), np.array([-1.0, -1.0])).tolist() == [0.0, 0.0]


def test_twins_are_projected_as_one() -> None:
    gradient, earlier = np.array([-2.0, 1.0]), np.array([[1.0, 0.0]] * 3 + [[0.0, 0.0]])
    np.testing.assert_allclose(projected(gradient, earlier, 0.0), [0.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(projected(gradient, earlier, 0.5), [0.0, 1.0], atol=1e-9)


# --- The loss ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("head_sizes", [[3], [2, 3], [1, 4, 2]], ids=str)
def test_the_loss_counts_only_the_classes_of_an_images_own_task(head_sizes: list[int], spare: int) -> None:
    method, classes = gem(), sum(head_sizes)
    method.network.reserve(classes + spare)
    for size in head_sizes:
        method.network.add_head(size, method.generator)
    random = np.random.RandomState(0)
    labels = [*range(classes), *random.randint(0, classes, 3)]
    logits = np.full((len(labels), classes + spare), SPARE_LOGIT)
    logits[:, :classes] = random.normal(0, 5, (len(labels), classes))
    shown = torch.from_numpy(logits).requires_grad_()
    loss = method.loss(shown, torch.tensor(labels), torch.zeros(logits.shape), method.network.head_of_class)
    (gradient,) = torch.autograd.grad(loss, shown)

    total, expected = 0.0, np.zeros(logits.shape)
    for row, label in enumerate(labels):
        (own,) = [part for part in oracles.head_slices(head_sizes) if part.start <= label < part.stop]
        total += oracles.cross_entropy(logits[row : row + 1, own], [label - own.start])
        expected[row, own] = oracles.cross_entropy_gradient(logits[row : row + 1, own], [label - own.start])[0]
    assert loss.item() == pytest.approx(total / len(labels), abs=1e-9)
    np.testing.assert_allclose(gradient.numpy(), expected / len(labels), atol=1e-9)
    assert not gradient.numpy()[expected == 0].any(), "exactly nothing for other tasks and spare columns"


# --- Updates ----------------------------------------------------------------------------------------------------------


class Smooth(nn.Module):
    """A layer without batch norm: the gradient of a batch is that of a function of its images alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * SIDE * SIDE, 4)
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(np.random.RandomState(0).normal(0, 0.1, (4, 3 * SIDE * SIDE))))
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1)).tanh()


PARTS = ("features.linear.weight", "features.linear.bias", "weight", "bias")


def flat(tensors: dict[str, Tensor]) -> np.ndarray:
    return torch.cat([tensors[name].double().flatten() for name in PARTS]).numpy()


def loss_gradient(tensors: dict[str, Tensor], head_sizes: list[int], images: Tensor, labels: list[int]) -> np.ndarray:
    """Of the mean cross-entropy among own classes, by autograd in float64 on a network written out here."""
    parts = {name: tensors[name].double().requires_grad_() for name in PARTS}
    x = (images.double() / 255 - 0.5).flatten(1)
    features = (x @ parts["features.linear.weight"].T + parts["features.linear.bias"]).tanh()
    logits = features @ parts["weight"].T + parts["bias"]
    loss = torch.zeros((), dtype=torch.float64)
    for row, label in zip(logits, labels, strict=True):
        (own,) = [part for part in oracles.head_slices(head_sizes) if part.start <= label < part.stop]
        loss = loss + row[own].exp().sum().log() - row[label]
    found = torch.autograd.grad(loss / len(labels), list(parts.values()))
    return torch.cat([part.flatten() for part in found]).numpy()


@pytest.mark.parametrize("spare", [0, 2])
def test_an_update_is_minus_lr_times_the_projected_gradient(spare: int) -> None:
    lr, size, bent, free = 0.3, 5, 0, 0
    method = gem(Smooth(), size, training=Schedule(epochs=6, lr=lr))
    method.network.reserve(9 * bool(spare) + spare)
    # The second task has three images only: its memory repeats two of them.
    tasks = [([0, 1] * 6, 2), ([2, 3, 2], 2), ([4, 5, 6] * 3, 3), ([7, 8, 7, 2, 1], 2), ([0, 1, 2, 3, 4, 5, 6] * 2, 0)]
    for number, (labels, new) in enumerate(tasks):
        step = step_of(labels, new, seed=number)
        memory = {label: images.clone() for label, images in method.memory.exemplars.items()}
        states: list[dict[str, Tensor]] = []

        def note(*report: object, states: list[dict[str, Tensor]] = states) -> None:
            states.append(method.network.tensors())

        with method.trainer.step(watcher=Watching(note, note)):
            method.learn_step(step)  # an epoch is one batch
        heads = method.network.head_sizes
        for before, after in itertools.pairwise(states):
            gradient, earlier = loss_gradient(before, heads, step.images, labels), []
            for own in oracles.head_slices(heads)[:number]:
                known = [(image, label) for label in range(own.start, own.stop) for image in memory.get(label, [])]
                shown = [known[turn % len(known)] for turn in range(size)]
                pixels = torch.stack([image for image, _ in shown])
                earlier.append(loss_gradient(before, heads, pixels, [label for _, label in shown]))
            expected = brute_force(gradient, np.array(earlier), 0.5) if number else gradient
            np.testing.assert_allclose(flat(after), flat(before) - lr * expected, atol=2e-6, rtol=0)
            bent += np.abs(lr * (expected - gradient)).max() > 1e-3
            free += bool(number) and np.array_equal(expected, gradient)
    assert len(states) == 7
    assert bent >= 3, "some gradients were projected"
    assert free >= 3, "and some were not"


def test_every_batch_of_an_epoch_is_held_against_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[bytes]] = []
    extract = IncrementalNetwork.extract

    def watched(network: IncrementalNetwork, images: Tensor) -> Tensor:
        if network.training:
            shown.append(kept(images))
        return extract(network, images)

    method = gem(size=4, optimizer=replace(PLAIN, batch_size=3), training=Schedule(epochs=2, lr=0.01))
    for number in range(3):
        method.learn_step(step_of([2 * number, 2 * number + 1] * 4, 2, seed=number))
    past = [kept(torch.cat([method.memory.exemplars[label] for label in method.memory.exemplars if label // 2 == task]))
            for task in range(3)]  # fmt: skip
    monkeypatch.setattr(IncrementalNetwork, "extract", watched)
    step = step_of([6, 7] * 4, 2, seed=3)
    method.learn_step(step)
    assert [len(batch) for batch in shown] == [3, 4, 4, 4] * 6
    assert all(shown[first + 1 : first + 4] == past for first in range(0, 24, 4))
    assert {image for batch in shown[::4] for image in batch} == set(kept(step.images))


def test_the_memory_is_shown_as_the_network_sees_images_outside_training() -> None:
    method = gem(augmentation=Augmentation(kind="twofold", crop_size=6), optimizer=replace(PLAIN, batch_size=8))
    method.network.mean_image = torch.full((3, 6, 6), 0.5)
    method.learn_step(step_of([0, 1] * 4, 2))
    method.learn_step(step_of([2, 3] * 4, 2))
    stored = torch.cat([method.memory.exemplars[label] for label in (0, 1) if label in method.memory.exemplars])
    assert stored.shape == (4, 3, SIDE, SIDE)
    assert torch.equal(method.episodes._images.images, method.plain(stored))
    assert method.episodes._images.images.shape == (4, 3, 6, 6)


def test_a_diverged_training_is_an_error() -> None:
    method = gem(training=Schedule(epochs=4, lr=1e29))
    with pytest.raises(TreeringError, match="training diverged"):
        method.learn_step(step_of([0, 1] * 4, 2))
    method = gem()
    method.learn_step(step_of([0, 1] * 4, 2))
    method.recipe = replace(method.recipe, training=Schedule(epochs=4, lr=1e29))
    with pytest.raises(TreeringError, match="training diverged"):
        method.learn_step(step_of([2, 3] * 4, 2))


# --- The memory -------------------------------------------------------------------------------------------------------

UNTRAINED = Schedule(epochs=0, lr=0.1)


@settings(max_examples=40)
@given(
    steps=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    more=st.integers(0, 3),
    size=st.integers(1, 12),
    seed=st.integers(0, 100),
)
def test_a_step_adds_at_most_its_share_from_its_own_new_classes(
    steps: list[list[int]], more: int, size: int, seed: int
) -> None:
    method, known = gem(size=size, seed=seed, training=UNTRAINED), 0
    for number, counts in enumerate(steps):
        before = {label: kept(images) for label, images in method.memory.exemplars.items()}
        labels = [known + label for label, count in enumerate(counts) for _ in range(count)]
        again = [label % known for label in range(more)] if known else []
        step = step_of(labels + again, len(counts), seed=number)
        method.learn_step(step)
        after = {label: kept(images) for label, images in method.memory.exemplars.items()}
        assert {label: after[label] for label in before} == before, "earlier steps keep theirs"
        new = {label: images for label, images in after.items() if label not in before}
        assert set(new) <= set(range(known, known + len(counts)))
        for label, images in new.items():
            assert len(set(images)) == len(images)
            assert set(images) <= set(kept(step.images[step.labels == label]))
        assert sum(map(len, new.values())) == min(size, len(labels))
        known += len(counts)
    remembered = method.memory.exemplars.copy()
    method.learn_step(step_of([0] * 3, 0, seed=9))
    assert method.memory.exemplars == remembered, "more images of a known class add nothing"


def test_the_seed_chooses_among_all_images_of_the_step() -> None:
    step = step_of([0, 1, 0, 0, 1, 1, 0, 1], 2)
    choices = []
    for seed in [*range(40), 0]:
        method = gem(size=4, seed=seed, training=UNTRAINED)
        method.learn_step(step)
        choices.append({label: kept(images) for label, images in method.memory.exemplars.items()})
    assert choices[0] == choices[-1]
    assert len({str(choice) for choice in choices}) > 30
    assert {image for choice in choices for images in choice.values() for image in images} == set(kept(step.images))
    assert len({len(choice.get(0, [])) for choice in choices}) > 2, "of the step, not of each class"


def test_a_task_with_fewer_images_than_its_share_repeats_them_and_stores_no_more() -> None:
    method = gem(size=5, training=UNTRAINED)
    for number, (labels, new) in enumerate([([0, 1, 1], 2), ([2] * 9, 1), ([4, 3], 2)]):
        method.learn_step(step_of(labels, new, seed=number))
    method.episodes.replace(method._by_task(), 5)
    episodes, stored = method.episodes._images, method.memory.exemplars
    assert {label: len(images) for label, images in stored.items()} == {0: 1, 1: 2, 2: 5, 3: 1, 4: 1}
    assert episodes.labels.tolist() == [0, 1, 1, 0, 1] + [2] * 5 + [3, 4, 3, 4, 3]
    first, third = [*kept(stored[0]), *kept(stored[1])], [*kept(stored[3]), *kept(stored[4])]
    assert kept(episodes.images) == [*first, *first[:2], *kept(stored[2]), *third, *third, third[0]]
    assert episodes.targets.shape == (15, 5)


def test_a_memory_of_absurd_size_is_not_filled_with_copies() -> None:
    method = gem(size=10**15, training=UNTRAINED)
    for number, (labels, new) in enumerate([([0, 1, 1], 2), ([2] * 4, 1)]):
        method.learn_step(step_of(labels, new, seed=number))
    method.episodes.replace(method._by_task(), 10**15)
    assert method.episodes.image_passes == 2 * gem_module.MOST_REPEATED


# --- Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "budget",
    [Budget("total", 12, "random"), Budget("per-class", 4, "random"), Budget("per-step", 4, "herding"),
     Budget("per-step", 4, "histogram")],
    ids=lambda budget: f"{budget.kind}-{budget.selection}",
)  # fmt: skip
def test_gem_refuses_a_memory_that_it_cannot_keep(budget: Budget, tmp_path: Path) -> None:
    with pytest.raises(TreeringError, match=r"^GEM .*memory\.kind to per-step and memory\.selection to random$"):
        gem(memory=budget)
    with pytest.raises(TreeringError, match=r"^GEM "):
        StreamRun(replace(RUN, memory=budget), tiny_images(), tmp_path)


@pytest.mark.parametrize("method", ["eeil", "icarl"])
def test_other_methods_refuse_a_memory_per_step(method: str, tmp_path: Path) -> None:
    budget = Budget("per-step", 4)
    learner = tiny_learner(method=method, memory=budget)
    with pytest.raises(TreeringError, match=rf"^{method} cannot keep a per-step memory: set memory.kind to"):
        learner.partial_fit(images_of([0, 1] * 4), [0, 1] * 4)
    with pytest.raises(TreeringError, match=rf"^{method} cannot keep"):
        StreamRun(replace(RUN, method=method, memory=budget), tiny_images(), tmp_path)


def test_the_ready_recipes_have_the_published_settings() -> None:
    names = {name for name in ready_names() if "gem" in name}
    assert names == {f"cifar100-5-gem-{size}" for size in (200, 1280, 2000, 2560, 5120)}
    for name in names:
        recipe = Recipe.find(name)
        assert (recipe.method, recipe.run.dataset, recipe.run.classes_per_step) == ("gem", "cifar100", 5)
        assert (recipe.memory.kind, recipe.memory.selection) == ("per-step", "random")
        assert recipe.memory.size * 20 == int(name.split("-")[-1]), "in all, over 20 steps"
        assert (recipe.training.epochs, recipe.training.lr_at(0)) == (1, 0.1)
        optimizer = recipe.optimizer
        assert (optimizer.batch_size, optimizer.momentum) == (10, 0)
        assert (optimizer.weight_decay, optimizer.noise_eta, recipe.augmentation.kind) == (0, 0, "none")
        methods.create(recipe, TinyFeatures(), torch.zeros(3, SIDE, SIDE), 0, CPU)


# --- Runs -------------------------------------------------------------------------------------------------------------

RUN = replace(
    TINY,
    method="gem",
    memory=Budget("per-step", 4, "random"),
    optimizer=replace(PLAIN, batch_size=4),
    run=Run("tiny", classes_per_step=2),
)


@pytest.mark.parametrize("augmentation", ["none", "twelvefold"])
@pytest.mark.parametrize("steps", [3, (3, 1, 4), 1], ids=str)
def test_a_run_takes_the_image_passes_that_were_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Any, augmentation: Any
) -> None:
    shown: list[int] = []
    extract = IncrementalNetwork.extract

    def watched(network: IncrementalNetwork, images: Tensor) -> Tensor:
        shown.append(len(images) * network.training)
        return extract(network, images)

    monkeypatch.setattr(IncrementalNetwork, "extract", watched)
    recipe = replace(
        RUN, augmentation=Augmentation(kind=augmentation, padding=1), run=Run("tiny", classes_per_step=steps)
    )
    run = StreamRun(recipe, tiny_images(8, per_class=(7, 1, 5, 3, 9, 2, 6, 4)), tmp_path)
    trained: list[int] = []
    fit = run.method.trainer.fit
    run.method.trainer.fit = lambda stage, data, *rest: (trained.append(len(data.images)), fit(stage, data, *rest))  # type: ignore[method-assign,func-returns-value]
    result = run()
    assert result["image_passes"] == run.image_passes_planned == sum(shown)
    assert run._largest_stage == max(trained)


def test_an_interrupted_run_goes_on_from_there_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    momentum = replace(PLAIN, batch_size=4, momentum=0.9, reset_momentum=False)
    recipe = replace(RUN, optimizer=momentum, training=Schedule(epochs=3, lr=0.2, drop_at=(2,)))
    case = Interruptible(recipe, tmp_path, tiny_images(per_class=4))
    for epoch in range(1, 10):
        case.interrupt(str(epoch), epoch)
        case.check_the_end(str(epoch), 9 - epoch)


def test_a_learner_can_be_taught_more_images_of_known_classes() -> None:
    learner = tiny_learner(method="gem", memory=Budget("per-step", 4, "random"), training=Schedule(8, 0.05))
    learner.partial_fit(images_of([0, 1] * 8), [0, 1] * 8).partial_fit(images_of([2, 3] * 8), [2, 3] * 8)
    learner.partial_fit(images_of([0, 3] * 4, seed=5), [0, 3] * 4)
    assert method_of(learner).network.head_sizes == [2, 2]
    assert sum(map(len, learner.exemplars_.values())) == 8


class Layers(nn.Module):
    """So narrow that tasks compete for it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        random = np.random.RandomState(0)
        self.first, self.second = nn.Linear(64 * channels, 32), nn.Linear(32, 16)
        with torch.no_grad():
            for layer in (self.first, self.second):
                deviation = 1.5 * layer.in_features**-0.5
                layer.weight.copy_(torch.from_numpy(random.normal(0, deviation, layer.weight.shape)))
                layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(1)).relu()).relu()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The results of GEM, of its training without the projection, and of fine-tuning."""
    images = ResidentImages.of(data.load("digits", Path("nowhere")), CPU)
    recipe = replace(
        RUN,
        backbone="layers",
        training=Schedule(epochs=5, lr=0.5),
        optimizer=replace(PLAIN, batch_size=10),
        memory=Budget("per-step", 40, "random"),
        run=Run("digits", classes_per_step=(4, 2, 2, 2), order=1),
    )
    results = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TREERING_COMMIT", "of the tests")
        patch.setitem(backbones.BACKBONES, "layers", Layers)
        for name, method in (("gem", "gem"), ("unprojected", "gem"), ("finetune", "finetune")):
            run = StreamRun(replace(recipe, method=method), images, tmp_path_factory.mktemp(name))
            if name == "unprojected":
                run.method.trainer.constraint = None
            results[name] = run()
    return results


def test_gem_remembers_a_first_task_that_fine_tuning_forgets(digits: dict[str, dict[str, Any]]) -> None:
    learnt = {name: result["task_accuracy"][0][0] for name, result in digits.items()}
    first = {name: result["task_accuracy"][-1][0] for name, result in digits.items()}
    assert min(learnt.values()) > 95
    assert first["gem"] > 90
    assert first["gem"] > first["finetune"] + 15
    assert first["gem"] > first["unprojected"] + 8, "the projection does it"


def test_a_task_that_is_known_is_never_harder(digits: dict[str, dict[str, Any]]) -> None:
    result = digits["gem"]
    assert result["accuracy"][0] == pytest.approx(result["task_aware_accuracy"][0], abs=1e-3), "one task"
    for unknown, known in zip(result["accuracy"], result["task_aware_accuracy"], strict=True):
        assert unknown <= known + 1e-3
    assert result["accuracy"][-1] < result["task_aware_accuracy"][-1] - 10


def test_a_result_names_the_memory_of_a_step(digits: dict[str, dict[str, Any]]) -> None:
    assert digits["gem"]["memory"] == {"kind": "per-step", "size": 40}
    assert run_name(Recipe.find("cifar100-5-gem-2000")) == "cifar100-5-gem-per-step100-random-order0-seed0"


def test_a_copy_leaves_a_captured_update_behind() -> None:
    learner = (
        tiny_learner(method="gem", memory=Budget("per-step", 4, "random"))
        .partial_fit(*examples({0: 4, 1: 4}))
        .partial_fit(*examples({2: 4}))
    )
    method = method_of(learner)
    assert isinstance(method, GEM)
    method.episodes._update = threading.Lock()  # type: ignore[assignment]  # a graph cannot be copied either
    assert state_of(copy.deepcopy(learner)) == state_of(learner)
