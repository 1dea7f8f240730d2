"""Each augmentation against a per-pixel oracle; the combinations by what could have produced what they return."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from treering.core import augment
from treering.recipe import Augmentation

TWELVEFOLD = Augmentation(kind="twelvefold")
TWOFOLD = Augmentation(kind="twofold", crop_size=8)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(seed: int, *shape: int) -> Tensor:
    return torch.randint(256, shape, generator=seeded(seed), dtype=torch.uint8)


def assert_pixels(seen: Tensor, expected: list[np.ndarray]) -> None:
    np.testing.assert_allclose(seen.numpy(), np.stack(expected), atol=1e-6, rtol=0)


IMAGES = st.builds(random_images, st.integers(0, 2**31), st.just(3), st.sampled_from([1, 3]), *[st.integers(1, 7)] * 2)


@settings(max_examples=25)
@given(images=IMAGES, shifts=st.lists(st.floats(-300, 300), min_size=3, max_size=3))
def test_brightness_adds_one_value_to_all_pixels_of_an_image_and_clips(images: Tensor, shifts: list[float]):
    seen = augment.brightness(images.double(), torch.tensor(shifts, dtype=torch.float64))
    assert_pixels(seen, [oracles.brightness(image, shift) for image, shift in zip(images.numpy(), shifts, strict=True)])


@settings(max_examples=25)
@given(images=IMAGES, factors=st.lists(st.floats(0, 5), min_size=3, max_size=3))
def test_contrast_scales_about_the_mean_of_each_channel_of_the_image_and_clips(images: Tensor, factors: list[float]):
    seen = augment.contrast(images.double(), torch.tensor(factors, dtype=torch.float64))
    assert_pixels(
        seen, [oracles.contrast(image, factor) for image, factor in zip(images.numpy(), factors, strict=True)]
    )


def test_brightness_and_contrast_clip_to_0_and_255():
    images = torch.tensor([0.0, 100.0, 200.0, 255.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    assert augment.brightness(images, torch.tensor([63.0])).flatten().tolist() == [63, 163, 255, 255]
    assert augment.brightness(images, torch.tensor([-120.0])).flatten().tolist() == [0, 0, 80, 135]
    stretched = augment.contrast(images, torch.tensor([1.8], dtype=torch.float64)).flatten().tolist()
    mean = 555 / 4
    assert stretched == pytest.approx([0, (100 - mean) * 1.8 + mean, (200 - mean) * 1.8 + mean, 255])


@settings(max_examples=25)
@given(images=IMAGES, data=st.data())
def test_crop_takes_each_images_own_window(images: Tensor, data: st.DataObject):
    height, width = images.shape[2:]
    size = (data.draw(st.integers(1, height)), data.draw(st.integers(1, width)))
    tops = data.draw(st.lists(st.integers(0, height - size[0]), min_size=3, max_size=3))
    lefts = data.draw(st.lists(st.integers(0, width - size[1]), min_size=3, max_size=3))
    seen = augment.crop(images, torch.tensor(tops), torch.tensor(lefts), size)
    corners = zip(images.numpy(), tops, lefts, strict=True)
    assert_pixels(seen, [oracles.crop(image, top, left, size) for image, top, left in corners])


@settings(max_examples=25)
@given(images=IMAGES)
def test_mirror_swaps_left_and_right(images: Tensor):
    assert_pixels(augment.mirror(images), [oracles.mirror(image) for image in images.numpy()])


def test_mirror_is_not_upside_down():
    assert augment.mirror(torch.tensor([[[[1, 2], [3, 4]]]])).tolist() == [[[[2, 1], [4, 3]]]]


@pytest.mark.parametrize(("shape", "size"), [((12, 12), 8), ((9, 14), 7), ((5, 5), 8), ((3, 10), 6)])
def test_resize_is_smoothed_bilinear_interpolation(shape: tuple[int, int], size: int):
    images = random_images(1, 2, 3, *shape)
    expected = np.stack([oracles.resize(image, size) for image in images.numpy()])
    np.testing.assert_allclose(augment.resize(images, size).numpy(), expected, atol=1e-3)


def test_resize_leaves_images_of_that_size_alone():
    images = random_images(2, 2, 3, 6, 6)
    assert torch.equal(augment.resize(images, 6), images)


def windows_of(image: np.ndarray, seen: np.ndarray, padding: int = 0) -> list[tuple[int, int]]:
    """The corners at which the zero-padded image shows what was seen."""
    height, width = seen.shape[1:]
    tops = range(image.shape[1] + 2 * padding - height + 1)
    lefts = range(image.shape[2] + 2 * padding - width + 1)
    padded = oracles.crop(image, -padding, -padding, (image.shape[1] + 2 * padding, image.shape[2] + 2 * padding))
    return [
        (top, left)
        for top in tops
        for left in lefts
        if (padded[:, top : top + height, left : left + width] == seen).all()
    ]


@pytest.mark.parametrize("shape", [(3, 10, 10), (1, 9, 12)], ids=["colour", "grey, not square"])
def test_twelvefold_is_original_brightness_contrast_their_crops_and_all_mirrors(shape: tuple[int, int, int]):
    images = random_images(3, 150, *shape)
    blocks = augment.twelvefold(images, TWELVEFOLD, seeded(4))
    assert len(blocks) == 12
    assert all(block.shape == images.shape and block.dtype == torch.uint8 for block in blocks)
    original, lit, contrasted = blocks[:3]
    assert torch.equal(original, images)

    shifts, factors = [], []
    for image, light, contrast in zip(images.numpy(), lit.numpy(), contrasted.numpy(), strict=True):
        low, high = oracles.shift_range(image, light)
        assert low <= high, "no shift explains this brightness"
        assert low <= 63
        assert high >= -63
        shifts.append((low + high) / 2)
        low, high = oracles.contrast_range(image, contrast)
        assert low <= high, "no factor explains this contrast"
        assert low <= 1.8
        assert high >= 0.2
        factors.append((low + high) / 2)
    assert_fills(shifts, -63, 63)
    assert_fills(factors, 0.2, 1.8)

    corners = []
    for whole, cropped in zip(blocks[:3], blocks[3:6], strict=True):
        found = [windows_of(a, b, padding=4) for a, b in zip(whole.numpy(), cropped.numpy(), strict=True)]
        assert all(len(places) == 1 for places in found), "no window of the zero-padded image explains this crop"
        corners.append([places[0] for places in found])
    for axis in (0, 1):
        assert {corner[axis] for part in corners for corner in part} == set(range(9))
    assert len({corner for part in corners for corner in part}) > 60, "of 81 windows"
    for first, second in ((0, 1), (0, 2), (1, 2)):
        same = sum(a == b for a, b in zip(corners[first], corners[second], strict=True))
        assert same < 15, "each of the three has a crop of its own"

    for plain, mirrored in zip(blocks[:6], blocks[6:], strict=True):
        assert_pixels(mirrored, [oracles.mirror(image) for image in plain.numpy()])


def assert_fills(values: list[float], low: float, high: float) -> None:
    """Each image has its own value, and together they are spread over the range as a uniform distribution is."""
    places = (np.array(values) - low) / (high - low)
    assert len(np.unique(places.round(3))) > 0.4 * len(places)  # seen only to a whole intensity
    assert abs(places.mean() - 0.5) < 5 / math.sqrt(12 * len(places))
    assert places.min() < 0.1
    assert places.max() > 0.9


def test_twelvefold_crops_pad_with_zeros():
    images = torch.full((60, 1, 6, 6), 200, dtype=torch.uint8)
    crops = augment.twelvefold(images, replace(TWELVEFOLD, padding=2), seeded(5))[3]
    assert set(crops.unique().tolist()) == {0, 200}
    least = (crops == 200).flatten(1).sum(1).min().item()
    assert least == 4 * 4  # a corner window of the 10 x 10 image has 4 x 4 of its pixels


def test_settings_change_what_twelvefold_draws():
    images = random_images(6, 40, 3, 8, 8)
    quiet = replace(TWELVEFOLD, brightness=0.0, contrast=(1.0, 1.0), padding=0)
    for block in augment.twelvefold(images, quiet, seeded())[:6]:
        assert torch.equal(block, images)


def test_twofold_is_a_window_or_the_resized_image_and_the_same_of_its_mirror():
    images = random_images(7, 300, 3, 12, 12)
    quiet = replace(TWOFOLD, brightness=0.0, contrast=(1.0, 1.0))
    blocks = augment.twofold(images, quiet, seeded(8))
    assert len(blocks) == 2
    cropped, seen_corners = [], set()
    for block, sources in zip(blocks, (images, images.flip(3)), strict=True):
        assert block.shape == (300, 3, 8, 8)
        assert block.dtype == torch.uint8
        corners = [windows_of(image, seen) for image, seen in zip(sources.numpy(), block.numpy(), strict=True)]
        for places, image, seen in zip(corners, sources.numpy(), block.numpy(), strict=True):
            if not places:
                assert np.abs(oracles.resize(image, 8) - seen).max() < 0.501
        seen_corners |= {place for places in corners for place in places}
        cropped.append([bool(places) for places in corners])
    assert seen_corners == {(i, j) for i in range(5) for j in range(5)}
    assert_coins(*cropped)


def assert_coins(*tosses: list[bool]) -> None:
    """Fair, and independent of each other pair by pair."""
    count = len(tosses[0])
    bound = 5 * math.sqrt(count) / 2
    for index, toss in enumerate(tosses):
        assert abs(sum(toss) - count / 2) < bound
        for other in tosses[:index]:
            assert abs(sum(a == b for a, b in zip(toss, other, strict=True)) - count / 2) < bound


def test_twofold_brightness_stays_in_its_range():
    images = random_images(9, 200, 3, 8, 8)
    blocks = augment.twofold(images, replace(TWOFOLD, contrast=(1.0, 1.0)), seeded(10))
    shifts = []
    for block, sources in zip(blocks, (images, images.flip(3)), strict=True):
        for image, seen in zip(sources.numpy(), block.numpy(), strict=True):
            low, high = oracles.shift_range(image, seen)
            assert low <= high
            assert high >= -63
            assert low <= 63
            if (image != seen).any():
                shifts.append((low + high) / 2)
    assert_fills(shifts, -63, 63)


def test_twofold_contrast_stays_in_its_range():
    images = random_images(11, 200, 3, 8, 8)
    blocks = augment.twofold(images, replace(TWOFOLD, brightness=0.0), seeded(12))
    factors = []
    for block, sources in zip(blocks, (images, images.flip(3)), strict=True):
        for image, seen in zip(sources.numpy(), block.numpy(), strict=True):
            low, high = oracles.contrast_range(image, seen)
            assert low <= high
            assert high >= 0.2
            assert low <= 1.8
            if (image != seen).any():
                factors.append((low + high) / 2)
    assert_fills(factors, 0.2, 1.8)


def test_twofold_gives_the_image_and_its_mirror_brightness_contrast_and_crop_each_by_its_own_coin():
    # Channel 0 rises to the right by 4 a pixel: a crop keeps the slope, resizing from 12 to 8 makes it 6, and contrast
    # halves it. Channel 1 is constant: only brightness changes it.
    images = torch.full((500, 2, 12, 12), 128, dtype=torch.uint8)
    images[:, 0] = 100 + 4 * torch.arange(12, dtype=torch.uint8)
    blocks = augment.twofold(images, replace(TWOFOLD, contrast=(0.5, 0.5)), seeded(13))
    tosses = []
    for block, direction in zip(blocks, (1, -1), strict=True):
        rows = block[:, 0, 4].double()
        slope = direction * (rows[:, 6] - rows[:, 1]) / 5
        kinds = torch.stack([(slope - kind).abs() for kind in (4.0, 2.0, 6.0, 3.0)], 1).argmin(1)
        tosses += [(kinds % 2 == 1).tolist(), (kinds < 2).tolist(), (block[:, 1, 0, 0] != 128).tolist()]
    assert_coins(*tosses)


@pytest.mark.parametrize("shape", [(5, 5), (6, 12), (12, 6)])
def test_twofold_enlarges_images_smaller_than_its_crop(shape: tuple[int, int]):
    images = random_images(14, 20, 1, *shape)
    first, second = augment.twofold(images, replace(TWOFOLD, brightness=0.0, contrast=(1.0, 1.0)), seeded(15))
    expected = np.stack([oracles.resize(image, 8) for image in images.numpy()])
    assert np.abs(first.numpy() - expected).max() < 0.501
    assert np.abs(second.numpy() - expected[:, :, :, ::-1]).max() < 0.501


@pytest.mark.parametrize(("chosen", "copies"), [(TWELVEFOLD, 12), (TWOFOLD, 2), (replace(TWOFOLD, kind="none"), 1)])
def test_augmented_multiplies_the_images(chosen: Augmentation, copies: int):
    images = random_images(16, 9, 3, 8, 8)
    assert augment.copies(chosen) == copies
    assert len(augment.augmented(images, chosen, seeded())) == copies * len(images)


def test_no_augmentation_leaves_the_images_as_they_are():
    images = random_images(17, 9, 3, 8, 8)
    assert torch.equal(augment.augmented(images, Augmentation(kind="none"), seeded()), images)


@pytest.mark.parametrize("chosen", [TWELVEFOLD, replace(TWOFOLD, crop_size=4)], ids=["twelvefold", "twofold"])
def test_blocks_keep_the_order_of_the_images_when_they_come_in_chunks(chosen: Augmentation):
    count = augment.CHUNK + 7
    # Each image is constant and holds its own number in two channels; nothing that is switched on changes it.
    images = torch.zeros(count, 2, 4, 4, dtype=torch.uint8)
    images[:, 0] = (torch.arange(count) % 256)[:, None, None]
    images[:, 1] = (torch.arange(count) // 256)[:, None, None]
    quiet = replace(chosen, brightness=0.0, contrast=(1.0, 1.0), padding=0)
    seen = augment.augmented(images, quiet, seeded())
    assert torch.equal(seen, images.repeat(augment.copies(chosen), 1, 1, 1))


def test_labels_repeated_once_per_copy_fit_the_blocks():
    images = random_images(18, augment.CHUNK + 3, 3, 4, 4)
    blocks = augment.augmented(images, TWELVEFOLD, seeded(19)).split(len(images))
    assert torch.equal(blocks[0], images)
    for plain, mirrored in zip(blocks[:6], blocks[6:], strict=True):
        assert torch.equal(mirrored, plain.flip(3))
    for index in (0, augment.CHUNK - 1, augment.CHUNK, len(images) - 1):
        low, high = oracles.shift_range(images[index].numpy(), blocks[1][index].numpy())
        assert low <= high
        low, high = oracles.contrast_range(images[index].numpy(), blocks[2][index].numpy())
        assert low <= high


@pytest.mark.parametrize("chosen", [TWELVEFOLD, TWOFOLD], ids=["twelvefold", "twofold"])
def test_the_same_seed_augments_alike_and_another_does_not(chosen: Augmentation):
    images = random_images(20, 12, 3, 12, 12)
    first, again, other = (augment.augmented(images, chosen, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("chosen", [TWELVEFOLD, TWOFOLD], ids=["twelvefold", "twofold"])
def test_augmenting_leaves_the_given_images_and_the_global_random_state_alone(chosen: Augmentation):
    images = random_images(21, 12, 3, 12, 12)
    before, state = images.clone(), torch.get_rng_state()
    augment.augmented(images, chosen, seeded())
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("chosen", [TWELVEFOLD, replace(TWOFOLD, kind="none"), replace(TWOFOLD, crop_size=12)])
def test_plain_images_stay_as_they_are(chosen: Augmentation):
    images = random_images(22, 5, 3, 12, 12)
    assert torch.equal(augment.plain(images, chosen), images)


def test_plain_images_of_twofold_are_resized_to_the_networks_input():
    images = random_images(23, 5, 3, 12, 12)
    seen = augment.plain(images, TWOFOLD)
    assert seen.dtype == torch.uint8
    expected = np.stack([oracles.resize(image, 8) for image in images.numpy()])
    assert np.abs(seen.numpy() - expected).max() < 0.501
