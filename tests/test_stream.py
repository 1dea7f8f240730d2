"""Class orders and their division into steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treering.data.stream import Dataset, ResidentImages, Stream, class_order, split_steps
from treering.errors import TreeringError


def test_order_0_is_the_one_most_of_the_literature_uses():
    order = class_order(100, 0)
    assert order == np.random.RandomState(1993).permutation(100).tolist()
    assert order[:10] == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]  # as printed by iCaRL's descendants
    assert all(type(name) is int for name in order)


@pytest.mark.parametrize("index", [1, 2, 3, 4])
def test_order_i_is_drawn_with_seed_1993_plus_i(index: int):
    assert class_order(100, index) == np.random.RandomState(1993 + index).permutation(100).tolist()
    assert class_order(100, index) != class_order(100, 0)


def test_given_classes_are_permuted_like_their_positions():
    classes = [8, 13, 48, 58, 90, 41, 69, 81, 85, 89]
    assert class_order(classes, 2) == [classes[place] for place in class_order(10, 2)]


def test_class_order_leaves_numpys_global_random_state_alone():
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    class_order(100, 0)
    assert np.random.random() == expected


def test_even_steps():
    assert split_steps([5, 3, 1, 0, 2, 4], 2) == [[5, 3], [1, 0], [2, 4]]


def test_last_step_holds_the_remainder():
    assert split_steps(range(7), 3) == [[0, 1, 2], [3, 4, 5], [6]]
    assert split_steps(range(3), 5) == [[0, 1, 2]]


def test_uneven_steps():
    assert split_steps([9, 8, 7, 6, 5], [1, 3, 1]) == [[9], [8, 7, 6], [5]]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9), seed=st.integers(0, 99))
def test_steps_keep_every_class_once_and_in_order(sizes: list[int], seed: int):
    order = class_order(sum(sizes), seed)
    steps = split_steps(order, sizes)
    assert [len(step) for step in steps] == sizes
    assert [name for step in steps for name in step] == order
    by_size = split_steps(order, sizes[0])
    assert [name for step in by_size for name in step] == order
    assert {len(step) for step in by_size[:-1]} <= {sizes[0]}
    assert 1 <= len(by_size[-1]) <= sizes[0]


@pytest.mark.parametrize("sizes", [[5, 4], [5, 6], [10, 0], [11, -1], [0, 10], []])
def test_steps_that_do_not_add_up_are_an_error_that_names_both(sizes: list[int]):
    with pytest.raises(TreeringError) as error:
        split_steps(range(10), sizes)
    assert str(sizes) in str(error.value)
    assert "10 classes" in str(error.value)


@pytest.mark.parametrize("size", [0, -3])
def test_a_step_of_no_classes_is_an_error_that_names_the_number(size: int):
    with pytest.raises(TreeringError, match=f"not {size}"):
        split_steps(range(10), size)


def tiny_dataset(train_counts: list[int], test_counts: list[int], seed: int) -> Dataset:
    """Images 2 x 3 x 1 whose first pixel is their class and second their place in the set, the classes mixed."""
    random = np.random.RandomState(seed)

    def images_and_labels(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
        labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
        images = np.zeros((len(labels), 2, 3, 1), dtype=np.uint8)
        images[:, 0, 0, 0], images[:, 0, 1, 0] = labels, np.arange(len(labels))
        return images, labels

    names = tuple(f"class {index}" for index in range(len(train_counts)))
    return Dataset("tiny", *images_and_labels(train_counts), *images_and_labels(test_counts), names)


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    order=st.integers(0, 9),
    data=st.data(),
)
def test_a_stream_gives_each_step_its_own_training_images_and_the_test_images_of_all_classes_so_far(
    sizes: list[int], order: int, data: st.DataObject
):
    classes = sum(sizes)
    counts = [data.draw(st.lists(st.integers(1, 5), min_size=classes, max_size=classes)) for _ in range(2)]
    dataset = tiny_dataset(*counts, seed=order)
    stream = Stream(ResidentImages.of(dataset, torch.device("cpu")), sizes, order)
    names = class_order(classes, order)
    assert len(stream) == len(sizes)

    known: list[int] = []
    steps = list(stream)
    for step, size in zip(steps, sizes, strict=True):
        new = names[len(known) : len(known) + size]
        known += new
        assert step.classes == new
        for images, labels, of, all_labels in (
            (step.images, step.labels, new, dataset.train_labels),
            (step.test_images, step.test_labels, known, dataset.test_labels),
        ):
            assert images.shape[1:] == (1, 2, 3)
            assert images[:, 0, 0, 0].tolist() == [names[column] for column in labels.tolist()]
            assert images[:, 0, 0, 1].tolist() == [i for i, label in enumerate(all_labels) if label in of]


def test_a_dataset_can_be_cut_to_some_classes_numbered_as_given() -> None:
    labels = np.array([0, 1, 2, 0, 1, 2])
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    whole = Dataset("three", images, labels, images[::-1], labels[::-1], ("a", "b", "c"))
    part = whole.only([2, 0])
    assert part.class_names == ("c", "a")
    assert part.train_labels.tolist() == [1, 0, 1, 0]
    assert part.train_images.ravel().tolist() == [0, 2, 3, 5]
    assert part.test_labels.tolist() == [0, 1, 0, 1]
    assert part.test_images.ravel().tolist() == [5, 3, 2, 0]
