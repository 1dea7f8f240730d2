"""The closed form against plain loops in float64: the solution, and every image left out in earnest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.core import closed_form
from treering.core.closed_form import Statistics, solve

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
    return np.array([[x @ inverse @ mean - mean @ inverse @ mean / 2 for mean in means] for x in asked])


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=14), st.integers(2, 9), st.integers(0, 99))
def test_every_image_is_left_out_in_earnest(labels: list[int], size: int, seed: int) -> None:
    labels = [*labels, *range(4), *range(4)]
    x_ND, labels_N = features_of(labels, size, seed)
    found = solve(statistics_of(x_ND, labels_N, 4), x_ND, labels_N)
    x, y = x_ND.numpy(), labels_N.numpy()
    for index in range(len(labels)):
        others = np.arange(len(labels)) != index
        wanted = discriminants(x[others], y[others], 4, found.penalty, x[index : index + 1])[0]
        np.testing.assert_allclose(found.left_out[index].numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_the_solution_is_that_of_linear_discriminants() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 6 + [0] * 5, 7, 1)
    asked, _ = features_of([0, 1, 2] * 3, 7, 2)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    wanted = discriminants(x_ND.numpy(), labels_N.numpy(), 3, found.penalty, asked.numpy())
    np.testing.assert_allclose((asked @ found.weight.T + found.bias).numpy(), wanted, rtol=1e-8)
    probabilities = found.log_probabilities(asked).exp()
    assert torch.allclose(probabilities.sum(1), torch.ones(9, dtype=torch.float64))


def test_the_order_of_steps_makes_no_difference() -> None:
    x_ND, labels_N = features_of([0, 1, 2, 3] * 8, 6, 3)
    at_once = statistics_of(x_ND, labels_N, 4)
    in_steps = Statistics.empty(6, CPU)
    for known, part in ((2, labels_N < 2), (4, labels_N >= 2)):
        in_steps = in_steps.added(x_ND[part], labels_N[part], known)
    for one, other in ((at_once.gram, in_steps.gram), (at_once.sums, in_steps.sums)):
        assert torch.allclose(one, other, rtol=1e-12)
    assert torch.equal(at_once.counts, in_steps.counts)


def test_penalty_and_temperature_are_the_best_for_images_left_out() -> None:
    x_ND, labels_N = features_of([0, 1, 2] * 7, 8, 4)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    x, y, losses = x_ND.numpy(), labels_N.numpy(), {}
    for penalty in closed_form.PENALTIES[::3]:
        scores = [
            discriminants(x[np.arange(21) != index], y[np.arange(21) != index], 3, penalty, x[index : index + 1])[0]
            for index in range(21)
        ]
        for temperature in closed_form.TEMPERATURES[::3]:
            told = torch.from_numpy(temperature * np.array(scores)).log_softmax(1)
            losses[penalty, temperature] = -float(told.gather(1, labels_N[:, None]).mean())
    own = (found.temperature * found.left_out).log_softmax(1).gather(1, labels_N[:, None])
    assert -float(own.mean()) <= min(losses.values()) + 1e-9


def test_a_class_with_a_single_image_is_solved_too() -> None:
    x_ND, labels_N = features_of([0] * 6 + [1] * 6 + [2], 5, 5)
    found = solve(statistics_of(x_ND, labels_N, 3), x_ND, labels_N)
    assert found.weight.isfinite().all()
    assert int(found.log_probabilities(x_ND[-1:]).argmax()) == 2


@pytest.mark.parametrize("many", [3, 60])
def test_classes_count_alike_however_many_images_they_have(many: int) -> None:
    x_ND, labels_N = features_of([0] * many + [1] * 6, 4, 6)
    found = solve(statistics_of(x_ND, labels_N, 2), x_ND, labels_N)
    middle = statistics_of(x_ND, labels_N, 2).means.mean(0, keepdim=True)
    assert found.log_probabilities(middle).exp()[0].tolist() == pytest.approx([0.5, 0.5])
