"""Images in a file behave like the tensor they are stored from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.runtime import pixels
from treering.runtime.pixels import PixelFile, StoredImages


def random_images(count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def stored(images: Tensor, *cuts: int, folder: Path | None = None) -> StoredImages:
    """The images in a file, put there in parts."""
    file = PixelFile(images.shape[1:], folder)
    for part in images.tensor_split(sorted(cuts)):
        file.append(part)
    return file.images()


shapes = st.tuples(st.sampled_from([1, 3]), st.integers(1, 5), st.integers(1, 5))
batches = st.builds(random_images, st.integers(0, 12), shapes, st.integers(0, 9))


@st.composite
def indexed(draw: Any) -> tuple[Tensor, list[Any]]:
    """Images and a chain of indices, each for what the one before leaves."""
    images = draw(batches)
    left, indices = len(images), []
    for _ in range(draw(st.integers(0, 3))):
        kinds: list[Any] = [
            st.slices(left).filter(lambda part: part.step is None or 0 < part.step < 100),
            st.lists(st.booleans(), min_size=left, max_size=left).map(
                lambda mask: torch.tensor(mask, dtype=torch.bool)
            ),
        ]
        rows = st.lists(st.integers(-left, left - 1), max_size=8) if left else st.just([])
        kinds.append(rows.map(lambda chosen: torch.tensor(chosen, dtype=torch.long)))
        index = draw(st.one_of(kinds))
        indices.append(index)
        left = len(torch.arange(left)[index])
    return images, indices


@given(indexed(), st.lists(st.integers(0, 12), max_size=3), st.integers(1, 6))
@settings(max_examples=100)
def test_stored_images_are_indexed_and_split_as_a_tensor_is(
    case: tuple[Tensor, list[Any]], cuts: list[int], size: int
) -> None:
    images, indices = case
    inside = stored(images, *cuts)
    for index in indices:
        images, inside = images[index], inside[index]
    assert len(inside) == len(images)
    assert inside.shape == images.shape
    assert inside.tensor().dtype == torch.uint8
    assert torch.equal(inside.tensor(), images)
    assert torch.equal(pixels.tensor(inside), images)
    parts = list(inside.split(size))
    expected = images.split(size)
    assert len(parts) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(parts, expected, strict=True))


@given(shapes, st.lists(st.tuples(st.sampled_from(["tensor", "stored"]), st.integers(0, 6)), min_size=1))
@settings(max_examples=100)
def test_joined_images_are_those_of_the_parts(shape: tuple[int, int, int], kinds: list[tuple[str, int]]) -> None:
    shared, start = PixelFile(shape), 0
    parts: list[pixels.Images] = []
    plain = []
    for seed, (kind, count) in enumerate(kinds):
        images = random_images(count, shape, seed)
        plain.append(images)
        if kind == "stored":
            shared.append(images)
        parts.append(images if kind == "tensor" else shared.images()[start:])
        start = shared.rows
    joined = pixels.join(parts)
    assert isinstance(joined, Tensor) == all(kind == "tensor" for kind, _ in kinds)
    assert joined.shape == torch.cat(plain).shape
    assert torch.equal(pixels.tensor(joined), torch.cat(plain))
    assert shared.rows == start, "what is joined stays where it is"
    for part, images in zip(parts, plain, strict=True):
        assert torch.equal(pixels.tensor(part), images), "the parts stay as they were"


def test_images_of_two_files_can_be_joined() -> None:
    first, second = (random_images(3, (3, 4, 4), seed) for seed in (0, 1))
    joined = pixels.join([stored(first), stored(second)])
    assert torch.equal(pixels.tensor(joined), torch.cat([first, second]))


@given(indexed(), st.integers(0, 9), st.integers(0, 9), st.integers(1, 6))
def test_joined_images_are_indexed_and_split_as_a_tensor_is(
    case: tuple[Tensor, list[Any]], first: int, second: int, size: int
) -> None:
    images, indices = case
    joined = pixels.join([stored(images[:first]), images[first:][:second], stored(images[first:][second:])])
    for index in indices:
        joined, images = joined[index], images[index]
    assert joined.shape == images.shape
    assert torch.equal(pixels.tensor(joined), images)
    parts, expected = list(joined.split(size)), images.split(size)
    assert all(torch.equal(one, other) for one, other in zip(parts, expected, strict=True))


def test_a_tensor_is_its_own_pixels() -> None:
    images = random_images(2, (3, 2, 2), 0)
    assert pixels.tensor(images) is images


def test_what_is_stored_later_stands_behind_what_is_there() -> None:
    file = PixelFile((1, 2, 2))
    parts = [random_images(count, (1, 2, 2), count) for count in (3, 0, 2)]
    for part in parts:
        file.append(part)
    assert torch.equal(file.images().tensor(), torch.cat(parts))


def test_images_of_any_strides_are_stored_as_they_look() -> None:
    images = random_images(4, (3, 5, 6), 0)
    for seen in (
        images.movedim(1, -1).contiguous().movedim(-1, 1),
        images.flip(0),
        images[::2],
        images.transpose(2, 3),
    ):
        assert torch.equal(stored(seen).tensor(), seen)


def test_what_is_read_is_a_copy() -> None:
    images = random_images(2, (1, 2, 2), 0)
    inside = stored(images)
    inside.tensor().zero_()
    assert torch.equal(inside.tensor(), images)


def test_the_file_has_no_name_and_lies_in_the_folder_given(tmp_path: Path) -> None:
    inside = stored(random_images(50, (3, 8, 8), 0), folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert inside.tensor().shape == (50, 3, 8, 8)
    with pytest.raises(OSError, match="No such file"):
        PixelFile((1, 1, 1), tmp_path / "nowhere")
