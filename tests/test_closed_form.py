"""The closed form against plain loops in float64: the solution, and every image left out in earnest."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from conftest import run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.core import closed_form
from treering.core.closed_form import Statistics, solve
from treering.core.unknown import Distances

CPU = torch.device("cpu")


def features_of(labels: list[int], size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features of length 1, drawn around a centre for each class, and their labels."""
    random = np.random.RandomState(seed)
    centres = random.normal(0, 1, (max(labels) + 1, size))
    x_ND = torch.from_numpy(centres[labels] + random.normal(0, 0.8, (len(labels), size)))
    return torch.nn.functional.normalize(x_ND), torch.tensor(labels)


def statistics_of(x_ND: Tensor, labels_N: Tensor, classes: int) -> Statistics:
    return Statistics.empty(x_ND.shape[1], CPU).added(x_ND, labels_N, classes)


def discriminants(x_ND: np.ndarray, labels: np.ndarray, classes: int, penalty: float, asked: np.ndarray) -> np.ndarray:
    """The scores of linear discriminants, from the definition."""
    means = [x_ND[labels == label].mean(0) for label in range(classes)]
    scatter = penalty * np.eye(x_ND.shape[1])
    for x, label in zip(x_ND, labels, strict=True):
        scatter += np.outer(x - means[label], x - means[label])
    inverse = np.linalg.inv(scatter)
    covariance = (scatter - penalty * np.eye(x_ND.shape[1])) / max(len(labels) - classes, 1)
    by_chance = np.trace(inverse @ covariance)  # the expected square of the error of a mean of one image
    squares = [mean @ inverse @ mean - by_chance / (labels == label).sum() for label, mean in enumerate(means)]
    return np.array(
        [[x @ inverse @ mean - square / 2 for mean, square in zip(means, squares, strict=True)] for x in asked]
    )


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=14), st.integers(2, 9), st.integers(0, 99))
def test_every_image_is_left_out_in_earnest(labels: list[int], size: int, seed: int) -> None:
    labels = [*labels, *range(4), *range(4)]
    x_ND, labels_N = features_of(labels, size, seed)
    found = solve(statistics_of(x_ND, labels_N, 4), x_ND, labels_N)
    x, y = x_ND.numpy(), labels_N.numpy()
    for index in range(len(labels)):
        others = np.arange(len(labels)) != index
        wanted = discriminants(x[others], y[others], 4, found.setting.penalty, x[index : index + 1])[0]
        np.testing.assert_allclose(found.left_out[index].numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_the_solution_is_that_of_linear_discriminants() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 6 + [0] * 5, 7, 1)
    asked, _ = features_of([0, 1, 2] * 3, 7, 2)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    wanted = discriminants(x_ND.numpy(), labels_N.numpy(), 3, found.setting.penalty, asked.numpy())
    np.testing.assert_allclose((asked @ found.weight.T + found.bias).numpy(), wanted, rtol=1e-8)
    probabilities = found.log_probabilities(asked).exp()
    assert torch.allclose(probabilities.sum(1), torch.ones(9, dtype=torch.float64))


def test_a_matrix_that_torch_gives_up_on_is_solved_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 4, 20, 1)
    wanted = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)

    def gives_up(matrix: Tensor) -> tuple[Tensor, Tensor]:
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", gives_up)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    assert found.setting == wanted.setting
    assert torch.allclose(found.weight, wanted.weight, atol=1e-9)
    assert torch.allclose(found.left_out, wanted.left_out, atol=1e-9)


def test_without_images_at_hand_a_hundred_thousand_classes_take_no_product_of_all_pairs() -> None:
    classes = 100_000  # pairs of them would be 80 GB
    sums = Statistics(torch.eye(3).double(), torch.ones(classes, 3).double(), torch.ones(classes).double())
    solution = solve(sums, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    assert solution.left_out.shape == (0, classes)
    assert solution.weight.shape == (classes, 3)


def test_the_order_of_steps_makes_no_difference() -> None:
    x_ND, labels_N = features_of([0, 1, 2, 3] * 8, 6, 3)
    at_once = statistics_of(x_ND, labels_N, 4)
    in_steps = Statistics.empty(6, CPU)
    for known, part in ((2, labels_N < 2), (4, labels_N >= 2)):
        in_steps = in_steps.added(x_ND[part], labels_N[part], known)
    for one, other in ((at_once.gram, in_steps.gram), (at_once.sums, in_steps.sums)):
        assert torch.allclose(one, other, rtol=1e-12)
    assert torch.equal(at_once.counts, in_steps.counts)


def smoothed_loss(scores: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """The cross-entropy that the choice is made by: each class counts alike, and labels are smoothed."""
    classes, total, weights = scores.shape[1], 0.0, 0.0
    for row, label in zip(scores, labels, strict=True):
        weight = 1 / (labels == label).sum()
        told = temperature * row - np.log(np.exp(temperature * (row - row.max())).sum()) - temperature * row.max()
        share = closed_form.SMOOTHING / classes
        each = np.array([1 / max((labels == other).sum(), 1) for other in range(classes)])
        total -= (1 - closed_form.SMOOTHING) * weight * told[label] + share * (each * told).sum()
        weights += weight
    return total / weights


def test_penalty_and_temperature_are_the_best_for_images_left_out() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 5 + [0] * 6, 8, 4)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    x, y, losses = x_ND.numpy(), labels_N.numpy(), []
    for penalty in closed_form.PENALTIES[::3]:
        others = [np.arange(21) != index for index in range(21)]
        left_out = [discriminants(x[part], y[part], 3, penalty, x[~part])[0] for part in others]
        losses += [smoothed_loss(np.array(left_out), y, one) for one in closed_form.TEMPERATURES[::3]]
    own = smoothed_loss(found.left_out.numpy(), y, found.setting.temperature)
    assert own <= min(losses) + 1e-9


def test_a_class_of_one_image_does_not_change_the_setting() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 10, 8, 3)
    before = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N).setting
    more_ND, more_N = features_of([0, 1, 2] * 10 + [3], 8, 3)
    more_ND = torch.cat([x_ND, more_ND[-1:]])
    after = solve(statistics_of(more_ND, more_N, 4), more_ND, more_N).setting
    assert after.penalty == pytest.approx(before.penalty, rel=0.6), "at most one value next to it"


def test_a_class_that_none_of_the_images_is_of_has_no_say_in_the_temperature() -> None:
    """A class of one image is such a class: the image cannot be left out."""
    x_ND, labels_N = features_of([0, 1, 2] * 10, 8, 3)
    scores_NC = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N).left_out
    smoothed = torch.full((30, 4), closed_form.SMOOTHING / 4, dtype=torch.float64)
    smoothed[range(30), labels_N] += 1 - closed_form.SMOOTHING
    smoothed[:, 3] = 0
    more_NC = torch.cat([scores_NC, scores_NC.min(1, keepdim=True).values], 1)
    wanted = min(
        float(-(smoothed * (temperature * more_NC).log_softmax(1)).sum(1).mean())
        for temperature in closed_form.TEMPERATURES
    )
    assert closed_form._best_temperature([more_NC], labels_N)[0] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_all_scores_at_once_and_in_parts_lead_to_the_same_temperature(seed: int) -> None:
    random = np.random.RandomState(seed)
    labels_N = torch.from_numpy(random.randint(0, 5, 40))
    scores_NC = torch.from_numpy(random.normal(0, 10.0 ** random.uniform(-3, 1), (40, 5)))
    scores_NC[range(40), labels_N] += random.uniform(0, 2) * scores_NC.std()
    at_once = closed_form._best_temperature([scores_NC], labels_N)
    assert at_once == pytest.approx(closed_form._best_temperature(scores_NC.split(7), labels_N), rel=1e-9)


def test_features_that_tell_nothing_are_left_aside() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 9, 5, 7)
    noise_ND = torch.from_numpy(np.random.RandomState(8).normal(0, 3, (27, 12)))
    both_ND = torch.cat([noise_ND, x_ND], 1)
    found = solve(statistics_of(both_ND, labels_N, 3), both_ND, labels_N, [slice(-5, None), slice(None)])
    assert found.setting.choice == 0
    assert not found.weight[:, :12].any()
    alone = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    assert torch.allclose(found.weight[:, 12:], alone.weight)
    assert torch.allclose(found.left_out, alone.left_out)


def test_a_few_images_do_not_change_the_setting() -> None:
    x_ND, labels_N = features_of([0, 1, 2, 3, 4] * 8, 6, 9)
    statistics = statistics_of(x_ND, labels_N, 5)
    before = solve(statistics, x_ND, labels_N).setting
    one_class = labels_N == 4
    assert solve(statistics, x_ND[one_class], labels_N[one_class], before=before).setting == before
    assert solve(statistics, x_ND[one_class], labels_N[one_class]).setting == closed_form.USUAL


def test_no_more_images_than_so_many_choose_and_all_classes_have_a_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_form, "MOST_CHOSEN_BY", 6)
    labels_N = torch.tensor([0] * 50 + [1] * 3 + [2])
    x_ND, _ = features_of(labels_N.tolist(), 4, 10)
    some = closed_form._to_choose_by(statistics_of(x_ND, labels_N, 3), labels_N)
    assert labels_N[some].tolist() == [0, 0, 1, 1], "the only image of a class cannot be left out"


def test_equal_images_give_finite_numbers() -> None:
    x_ND, labels_N = features_of([0, 1], 4, 11)
    twice_ND, labels_N = torch.cat([x_ND, x_ND]), torch.cat([labels_N, labels_N])
    found = solve(statistics_of(twice_ND, labels_N, 2), twice_ND, labels_N)
    assert found.left_out.isfinite().all()
    assert found.log_probabilities(twice_ND).argmax(1).tolist() == labels_N.tolist()


def test_a_class_with_a_single_image_is_solved_too() -> None:
    x_ND, labels_N = features_of([0] * 6 + [1] * 6 + [2], 5, 5)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    assert found.weight.isfinite().all()
    assert int(found.log_probabilities(x_ND[-1:]).argmax()) == 2


@pytest.mark.parametrize("many", [3, 60])
def test_classes_count_alike_however_many_images_they_have(many: int) -> None:
    x_ND, labels_N = features_of([0] * many + [1] * 6, 4, 6)
    found = solve(statistics_of(x_ND, labels_N, 2), x_ND, labels_N)
    statistics = statistics_of(x_ND, labels_N, 2)
    middle = statistics.means.mean(0, keepdim=True)
    odds = found.log_probabilities(middle)[0] @ torch.tensor([1.0, -1.0], dtype=torch.float64)
    inverse = torch.linalg.inv(statistics.scatter + found.setting.penalty * torch.eye(4, dtype=torch.float64))
    by_chance = float((inverse @ statistics.scatter).trace()) / (many + 6 - 2)
    expected = found.setting.temperature * by_chance / 2 * (1 / many - 1 / 6)
    assert float(odds) == pytest.approx(expected), "no more than what chance adds to the square of a mean"


def test_a_class_of_few_images_is_told_as_surely_as_the_others() -> None:
    """The bias makes up for the length that chance gives to a mean of few images; without it most go elsewhere."""
    random, size, told = np.random.RandomState(0), 60, []
    for _ in range(20):
        centres = random.normal(0, 0.35, (5, size))
        labels_N = torch.tensor([0] * 4 + [1, 2, 3, 4] * 30)
        x_ND = torch.from_numpy(centres[labels_N] + random.normal(0, 1, (len(labels_N), size)))
        found = solve(statistics_of(x_ND, labels_N, 5), x_ND, labels_N)
        asked = torch.from_numpy(centres[0] + random.normal(0, 1, (50, size)))
        told.append(float((found.log_probabilities(asked).argmax(1) == 0).double().mean()))
    assert np.mean(told) > 0.35


@pytest.mark.parametrize("products", [0, 2**24])
def test_images_are_left_out_in_parts_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch, products: int) -> None:
    x_ND, labels_N = features_of([0, 1, 2, 3, 3, 4] * 7 + [5], 9, 12)
    statistics, choices = statistics_of(x_ND, labels_N, 6), [slice(-4, None), slice(None)]
    whole = solve(statistics, x_ND, labels_N, choices)
    distances = Distances(statistics).left_out(x_ND, labels_N)
    monkeypatch.setattr(closed_form, "MOST_AT_ONCE", 6 * 4)
    monkeypatch.setattr(closed_form, "MOST_PRODUCTS", products)
    parts = solve(statistics, x_ND, labels_N, choices)
    assert parts.setting == whole.setting
    assert torch.allclose(parts.left_out, whole.left_out, rtol=1e-12, atol=1e-12)
    assert torch.allclose(Distances(statistics).left_out(x_ND, labels_N), distances, rtol=1e-12)
    expected = (whole.setting.temperature * whole.left_out).log_softmax(1)
    assert torch.allclose(parts.said_by_others(), expected, rtol=1e-11, atol=1e-11)


MANY_CLASSES = """
import resource, torch
from treering.core.closed_form import Statistics, solve
from treering.core.unknown import Distances
torch.set_num_threads(1)
classes = 10_000
labels_N = torch.arange(2500).repeat(2)
x_ND = torch.rand(len(labels_N), 8, dtype=torch.float64)
ones = torch.arange(classes).repeat(2)
sums = Statistics.empty(8, torch.device("cpu")).added(torch.rand(len(ones), 8), ones, classes)
sums = sums.added(x_ND, labels_N, classes)
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 1_200_000_000,) * 2)
assert solve(sums, x_ND, labels_N).said_by_others().shape == (5000, classes)
assert Distances(sums).left_out(x_ND, labels_N).isfinite().all()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bounds memory as Linux does")
def test_images_of_many_classes_take_little_more_memory_than_what_is_said_of_them() -> None:
    """What is said takes 0.4 GB here; two further tables of that size would be too many."""
    done = run_python(MANY_CLASSES)
    assert done.returncode == 0, done.stderr
