"""Averages over the steps of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering import metrics


def test_average_counts_every_step():
    assert metrics.average([90.0, 60.0, 30.0]) == pytest.approx(60.0)


def test_average_without_first_leaves_the_first_step_out():
    assert metrics.average_without_first([90.0, 60.0, 30.0]) == pytest.approx(45.0)


@given(first=st.floats(0, 100), rest=st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_average_without_first_does_not_depend_on_the_first_step(first: float, rest: list[float]):
    total = 0.0
    for accuracy in rest:
        total += accuracy
    assert metrics.average_without_first([first, *rest]) == pytest.approx(total / len(rest))
    assert metrics.average([first, *rest]) == pytest.approx((first + total) / (1 + len(rest)))
