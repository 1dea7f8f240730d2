"""The cross-distilled loss against oracles written from equations 1 to 3."""

from __future__ import annotations

import itertools

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.core import losses
from treering.core.network import SPARE_LOGIT

UNEVEN_HEADS = [1, 7, 2, 30]
TEMPERATURES = [1.0, 2.0, 3.5]


def heads_of(head_sizes: list[int]) -> Tensor:
    return torch.arange(len(head_sizes)).repeat_interleave(torch.tensor(head_sizes))


def random_logits(seed: int, count: int, columns: int, scale: float = 3.0) -> Tensor:
    return torch.randn(count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale


def random_labels(seed: int, count: int, columns: int) -> Tensor:
    return torch.randint(columns, (count,), generator=torch.Generator().manual_seed(seed))


def targets_of(teacher: Tensor, head_sizes: list[int], distilled: list[int], temperature: float) -> Tensor:
    """Soft targets from the oracle, zero in the columns of the heads left out."""
    targets = torch.zeros_like(teacher)
    for head in distilled:
        columns = oracles.head_slices(head_sizes)[head]
        rows = [oracles.softened(row[columns], temperature) for row in teacher.numpy()]
        targets[:, columns] = torch.tensor(rows, dtype=torch.float64)
    return targets


def gradient_of(loss: Tensor, logits: Tensor) -> np.ndarray:
    return torch.autograd.grad(loss, logits)[0].numpy()


def test_cross_entropy_is_one_softmax_over_all_heads():
    logits, labels = random_logits(0, 9, 40).requires_grad_(), random_labels(1, 9, 40)
    loss = losses.cross_entropy(logits, labels)
    rows = logits.detach().numpy()
    assert loss.item() == pytest.approx(oracles.cross_entropy(rows, labels.tolist()), abs=1e-6)
    np.testing.assert_allclose(
        gradient_of(loss, logits), oracles.cross_entropy_gradient(rows, labels.tolist()), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_soft_targets_are_each_heads_softmax_raised_to_one_over_t_and_normalised(temperature: float):
    teacher = random_logits(2, 6, 40)
    expected = targets_of(teacher, UNEVEN_HEADS, [0, 1, 2, 3], temperature)
    seen = losses.soft_targets(teacher, heads_of(UNEVEN_HEADS), temperature)
    torch.testing.assert_close(seen, expected, atol=1e-6, rtol=0)
    for columns in oracles.head_slices(UNEVEN_HEADS):
        torch.testing.assert_close(seen[:, columns].sum(1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("distilled", [[0, 1, 2, 3], [0, 1, 2], [1, 3], [0], []])
def test_distillation_has_the_value_of_equation_3_summed_over_the_distilled_heads(
    distilled: list[int], temperature: float
):
    logits, teacher = random_logits(3, 8, 40), random_logits(4, 8, 40)
    targets = targets_of(teacher, UNEVEN_HEADS, distilled, temperature)
    loss = losses.distillation(logits, targets, heads_of(UNEVEN_HEADS), temperature)
    expected = oracles.distillation(logits.numpy(), teacher.numpy(), UNEVEN_HEADS, distilled, temperature)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("distilled", [[0, 1, 2, 3], [0, 1, 2], [1, 3], []])
def test_distillation_gradient_is_qdist_minus_pdist_over_t_and_n_without_t_squared(
    distilled: list[int], temperature: float
):
    logits, teacher = random_logits(5, 8, 40).requires_grad_(), random_logits(6, 8, 40)
    targets = targets_of(teacher, UNEVEN_HEADS, distilled, temperature)
    loss = losses.distillation(logits, targets, heads_of(UNEVEN_HEADS), temperature)
    expected = oracles.distillation_gradient(
        logits.detach().numpy(), teacher.numpy(), UNEVEN_HEADS, distilled, temperature
    )
    np.testing.assert_allclose(gradient_of(loss, logits), expected, atol=1e-6, rtol=0)


def test_distillation_gradient_agrees_with_finite_differences_of_equation_3():
    head_sizes, distilled, temperature = [1, 4, 2], [0, 1, 2], 2.0
    logits, teacher = random_logits(7, 3, 7).requires_grad_(), random_logits(8, 3, 7)
    targets = targets_of(teacher, head_sizes, distilled, temperature)
    seen = gradient_of(losses.distillation(logits, targets, heads_of(head_sizes), temperature), logits)
    for row, column in itertools.product(range(3), range(7)):
        ends = []
        for step in (1e-5, -1e-5):
            moved = logits.detach().numpy().copy()
            moved[row, column] += step
            ends.append(oracles.distillation(moved, teacher.numpy(), head_sizes, distilled, temperature))
        assert seen[row, column] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


@settings(max_examples=100)
@given(
    head_sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    count=st.integers(1, 5),
    temperature=st.floats(0.5, 5),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_cross_distilled_is_equation_1_for_any_heads(
    head_sizes: list[int], count: int, temperature: float, seed: int, data: st.DataObject
):
    distilled = data.draw(st.lists(st.sampled_from(range(len(head_sizes))), unique=True))
    columns = sum(head_sizes)
    logits, teacher = random_logits(seed, count, columns).requires_grad_(), random_logits(seed + 1, count, columns)
    labels = random_labels(seed, count, columns)
    targets = targets_of(teacher, head_sizes, distilled, temperature)
    loss = losses.cross_distilled(logits, labels, targets, heads_of(head_sizes), temperature)

    student = (logits.detach().numpy(), teacher.numpy(), head_sizes, distilled, temperature)
    value = oracles.cross_entropy(student[0], labels.tolist()) + oracles.distillation(*student)
    gradient = oracles.cross_entropy_gradient(student[0], labels.tolist()) + oracles.distillation_gradient(*student)
    assert loss.item() == pytest.approx(value, abs=1e-6)
    np.testing.assert_allclose(gradient_of(loss, logits), gradient, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [1e3, -1e3])
def test_heads_a_thousand_apart_do_not_overflow_and_do_not_disturb_each_other(gap: float, dtype: torch.dtype):
    heads = heads_of(UNEVEN_HEADS)
    base, teacher = random_logits(9, 5, 40), random_logits(10, 5, 40)
    logits = (base + gap * heads).to(dtype).requires_grad_()
    labels = random_labels(11, 5, 40)
    targets = losses.soft_targets((teacher - gap * heads).to(dtype), heads, 2.0)
    loss = losses.cross_distilled(logits, labels, targets, heads, 2.0)

    exact = logits.detach().double().numpy()
    shifted_teacher = (teacher - gap * heads).to(dtype).double().numpy()
    student = (exact, shifted_teacher, UNEVEN_HEADS, [0, 1, 2, 3], 2.0)
    value = oracles.cross_entropy(exact, labels.tolist()) + oracles.distillation(*student)
    gradient = oracles.cross_entropy_gradient(exact, labels.tolist()) + oracles.distillation_gradient(*student)
    precise = 1e-6 if dtype == torch.float64 else 1e-3
    assert loss.item() == pytest.approx(value, rel=precise)
    np.testing.assert_allclose(gradient_of(loss, logits), gradient, atol=precise, rtol=0)


def test_logits_a_thousand_apart_within_a_head_do_not_overflow():
    logits = torch.tensor([[0.0, 1000.0, -1000.0, 5.0], [1e4, -1e4, 3.0, 4.0]], dtype=torch.float64).requires_grad_()
    targets = torch.tensor([[0.25, 0.5, 0.25, 1.0], [0.0, 0.5, 0.5, 1.0]], dtype=torch.float64)
    loss = losses.distillation(logits, targets, heads_of([3, 1]), 2.0)
    # log qdist is (l - largest) / 2 here: the largest logit of a head outweighs the rest beyond float64.
    expected = (0.25 * 500 + 0.25 * 1000 + 0.5 * 10_000 + 0.5 * 4998.5) / 2
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    gradient = [[-0.25, 0.5, -0.25, 0.0], [1.0, -0.5, -0.5, 0.0]]
    np.testing.assert_allclose(gradient_of(loss, logits), np.array(gradient) / 2 / 2, atol=1e-9)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("spare", [1, 13])
def test_spare_columns_change_nothing(spare: int, temperature: float):
    columns, heads = sum(UNEVEN_HEADS), heads_of(UNEVEN_HEADS)
    logits, labels = random_logits(12, 6, columns), random_labels(13, 6, columns)
    targets = targets_of(random_logits(14, 6, columns), UNEVEN_HEADS, [0, 1, 2], temperature)
    plain = logits.clone().requires_grad_()
    loss = losses.cross_distilled(plain, labels, targets, heads, temperature)

    wide = torch.cat([logits, torch.full((6, spare), SPARE_LOGIT, dtype=torch.float64)], 1).requires_grad_()
    wide_targets = torch.cat([targets, torch.zeros(6, spare, dtype=torch.float64)], 1)
    wide_heads = torch.cat([heads, torch.full((spare,), columns + spare)])
    wide_loss = losses.cross_distilled(wide, labels, wide_targets, wide_heads, temperature)
    assert wide_loss.item() == pytest.approx(loss.item(), abs=1e-12)
    gradient = gradient_of(wide_loss, wide)
    np.testing.assert_allclose(gradient[:, :columns], gradient_of(loss, plain), atol=1e-12)
    assert (gradient[:, columns:] == 0).all()


def test_no_gradient_flows_into_a_head_left_out():
    logits = random_logits(15, 4, 40).requires_grad_()
    targets = targets_of(random_logits(16, 4, 40), UNEVEN_HEADS, [0, 2], 2.0)
    gradient = gradient_of(losses.distillation(logits, targets, heads_of(UNEVEN_HEADS), 2.0), logits)
    assert (gradient[:, 1:8] == 0).all()
    assert (gradient[:, 10:] == 0).all()
    assert (gradient[:, 8:10] != 0).all()
