"""The memory and its budget over streams of any steps, driven as stage 4 of EEIL drives them: shrink, then store."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.core.memory import Memory
from treering.errors import TreeringError
from treering.recipe import Budget

BUDGETS = st.builds(Budget, kind=st.sampled_from(["total", "per-class"]), size=st.integers(1, 60))
STREAMS = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=5), min_size=1, max_size=6)
"""Steps of classes, each class by its number of images."""


def images_of(label: int, count: int) -> Tensor:
    """`count` images of two pixels that hold the label and the image's place in its class's ranking."""
    places = torch.arange(count, dtype=torch.uint8)
    return torch.stack([torch.full_like(places, label), places], 1).reshape(count, 1, 1, 2)


def places(images: Tensor) -> list[int]:
    return images[:, 0, 0, 1].tolist()


@settings(max_examples=150)
@given(budget=BUDGETS, stream=STREAMS)
def test_memory_never_holds_more_than_k_and_each_class_keeps_the_beginning_of_its_ranking(
    budget: Budget, stream: list[list[int]]
):
    memory = Memory()
    expected: dict[int, list[int]] = {}
    for step in stream:
        classes = len(expected) + len(step)
        if budget.kind == "total" and budget.size < classes:
            with pytest.raises(TreeringError):
                budget.quota(classes)
            return
        quota = budget.quota(classes)
        limit = budget.size if budget.kind == "total" else budget.size * classes

        before = {label: list(kept) for label, kept in expected.items()}
        memory.shrink(quota)
        expected = {label: kept[:quota] for label, kept in expected.items()}
        for size in step:
            label = len(expected)
            expected[label] = list(range(min(size, quota)))
            memory.store(label, images_of(label, size)[:quota])
            assert len(memory) <= limit

        assert {label: places(images) for label, images in memory.exemplars.items()} == expected
        assert all((images[:, 0, 0, 0] == label).all() for label, images in memory.exemplars.items())
        for label, had in before.items():
            kept = places(memory.exemplars[label])
            assert len(kept) == min(quota, len(had))
            assert kept == had[: len(kept)]
        assert len(memory) == sum(map(len, expected.values())) <= limit
        assert memory.largest_class() == max(map(len, expected.values()))


@settings(max_examples=100)
@given(size=st.integers(1, 3000), classes=st.integers(1, 3000))
def test_a_total_budget_gives_each_class_the_largest_whole_share(size: int, classes: int):
    budget = Budget(kind="total", size=size)
    if classes > size:
        with pytest.raises(TreeringError) as error:
            budget.quota(classes)
        assert f" {size} " in str(error.value)
        assert f" {classes} " in str(error.value)
    else:
        quota = budget.quota(classes)
        assert quota * classes <= size < (quota + 1) * classes


@given(size=st.integers(1, 500), classes=st.integers(1, 1000))
def test_a_per_class_budget_is_constant(size: int, classes: int):
    assert Budget(kind="per-class", size=size).quota(classes) == size


@given(size=st.integers(-5, -1), kind=st.sampled_from(["total", "per-class"]))
def test_a_memory_of_less_than_no_images_is_an_error(size: int, kind: str):
    with pytest.raises(TreeringError, match=f"not {size}"):
        Budget(kind=kind, size=size)  # type: ignore[arg-type]


def test_the_papers_memory_with_the_papers_classes():
    assert [Budget(size=2000).quota(classes) for classes in (10, 20, 30, 100)] == [200, 100, 66, 20]


def test_shrinking_removes_from_the_end_and_leaves_smaller_classes_alone():
    memory = Memory()
    for label, count in enumerate([3, 10, 5]):
        memory.store(label, images_of(label, count))
    memory.shrink(5)
    assert [places(images) for images in memory.exemplars.values()] == [[0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


def test_what_is_removed_never_comes_back():
    memory = Memory()
    memory.store(0, images_of(0, 10))
    memory.shrink(4)
    memory.shrink(8)
    assert places(memory.exemplars[0]) == [0, 1, 2, 3]


def test_shrinking_frees_the_removed_images():
    memory = Memory()
    memory.store(0, images_of(0, 100))
    memory.shrink(10)
    kept = memory.exemplars[0]
    assert kept.untyped_storage().nbytes() == kept.numel() == 20


def test_shrinking_leaves_an_earlier_snapshot_as_it_was():
    memory = Memory()
    memory.store(0, images_of(0, 6))
    snapshot = dict(memory.exemplars)
    memory.shrink(2)
    memory.store(1, images_of(1, 2))
    assert list(snapshot) == [0]
    assert places(snapshot[0]) == [0, 1, 2, 3, 4, 5]


def test_storing_a_class_again_replaces_its_exemplars():
    memory = Memory()
    memory.store(0, images_of(0, 6))
    memory.store(0, images_of(0, 6)[[4, 1]])
    assert places(memory.exemplars[0]) == [4, 1]
    assert len(memory) == 2


@given(counts=st.dictionaries(st.integers(0, 50), st.integers(1, 6), min_size=1, max_size=8))
def test_contents_gives_every_exemplar_its_own_label(counts: dict[int, int]):
    memory = Memory()
    for label, count in counts.items():
        memory.store(label, images_of(label, count))
    images, labels = memory.contents()
    assert images.dtype == torch.uint8
    assert images[:, 0, 0, 0].tolist() == labels.tolist()
    assert sorted(labels.tolist()) == sorted(label for label, count in counts.items() for _ in range(count))
    for label, count in counts.items():
        assert places(images[labels == label]) == list(range(count))


def test_a_class_is_in_the_memory_once_it_is_stored():
    memory = Memory()
    assert len(memory) == 0
    memory.store(3, images_of(3, 1))
    assert len(memory) == 1
    assert list(memory.exemplars) == [3]
