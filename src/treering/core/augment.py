"""Data augmentation [5] as batched tensor operations on the training device.

Images are N x C x H x W with pixel values 0..255. The four operations are pure functions of images and the random
values drawn for them; `twelvefold` and `twofold` draw those values, combine the operations as the paper does for
CIFAR-100 [6] and for ImageNet [7], and return uint8. `crop_mirror` is iCaRL's way, and `photo` suits a few photos.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from treering.recipe import Augmentation

CHUNK = 2048
"""The most images that are augmented at once."""
PHOTOS = 64
"""The most photos that are transformed at once, which bounds the memory that their float copies take."""
CHUNK_VALUES = 2**25
"""The most pixel values that are augmented at once, which bounds the memory that float copies take."""


def brightness(images: Tensor, shift_N: Tensor) -> Tensor:
    """Add one intensity to all pixels of an image."""
    return (images + shift_N[:, None, None, None]).clamp(0, 255)


def contrast(images: Tensor, factor_N: Tensor) -> Tensor:
    """Return (image - mean) * factor + mean, with the mean of each channel of each image."""
    mean = images.mean((2, 3), keepdim=True)
    return ((images - mean) * factor_N[:, None, None, None] + mean).clamp(0, 255)


def crop(images: Tensor, top_N: Tensor, left_N: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window of `size` out of each image, whose upper left corner is the image's own (top, left)."""
    rows = top_N[:, None] + torch.arange(size[0], device=images.device)
    columns = left_N[:, None] + torch.arange(size[1], device=images.device)
    image = torch.arange(len(images), device=images.device)[:, None, None]
    return images.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def mirror(images: Tensor) -> Tensor:
    """Flip images left to right."""
    return images.flip(3)


def resize(images: Tensor, size: int) -> Tensor:
    """Resize images to `size` x `size`, smoothed; images of this size stay as they are."""
    if images.shape[2:] == (size, size):
        return images
    return F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True, align_corners=False)


def augmented(images: Tensor, settings: Augmentation, generator: torch.Generator) -> Tensor:
    """Return a stage's training images: `copies(settings)` blocks, each in the order of `images`, uint8."""
    multiply = KINDS[settings.kind].multiply
    if multiply is None:
        return images
    chunks = [multiply(chunk, settings, generator) for chunk in _chunks(images)]
    return torch.cat([copy for copies in zip(*chunks, strict=True) for copy in copies])


def copies(settings: Augmentation) -> int:
    """Return how many training images one image becomes."""
    return KINDS[settings.kind].copies


def drawn_each_epoch(settings: Augmentation) -> bool:
    """Return whether a stage draws its augmentation anew for each epoch rather than once."""
    return KINDS[settings.kind].each_epoch


def input_side(settings: Augmentation, side: int) -> int:
    """Return the side of the network's input for square images of this side."""
    return settings.crop_size if KINDS[settings.kind].resizes else side


def plain(images: Tensor, settings: Augmentation) -> Tensor:
    """Return images as selection and evaluation see them: never augmented, at the size of the network's input."""
    resizes = KINDS[settings.kind].resizes
    if not resizes or images.shape[2:] == (settings.crop_size, settings.crop_size):
        return images
    return torch.cat([_to_uint8(resize(chunk, settings.crop_size)) for chunk in _chunks(images)])


def twelvefold(images: Tensor, settings: Augmentation, generator: torch.Generator) -> list[Tensor]:
    """Return the original, other brightness, other contrast; a random crop of each; the mirror of all six [6]."""
    pixels = images.float()
    three = [
        pixels,
        brightness(pixels, _uniform(len(images), -settings.brightness, settings.brightness, generator)),
        contrast(pixels, _uniform(len(images), *settings.contrast, generator)),
    ]
    crops = [_random_crop(F.pad(part, [settings.padding] * 4), images.shape[2:], generator) for part in three]
    six = [_to_uint8(part) for part in three + crops]
    return six + [mirror(part) for part in six]


def twofold(images: Tensor, settings: Augmentation, generator: torch.Generator) -> list[Tensor]:
    """Return each image and its mirror, both with brightness, contrast and crop applied at probability 1/2 each [7]."""
    size = (settings.crop_size, settings.crop_size)
    if min(images.shape[2:]) < settings.crop_size:
        images = resize(images, settings.crop_size)
    both = []
    for part in (images.float(), mirror(images.float())):
        lit = brightness(part, _uniform(len(part), -settings.brightness, settings.brightness, generator))
        part = torch.where(_coin(len(part), generator), lit, part)
        contrasted = contrast(part, _uniform(len(part), *settings.contrast, generator))
        part = torch.where(_coin(len(part), generator), contrasted, part)
        cropped = _random_crop(part, size, generator)
        part = torch.where(_coin(len(part), generator), cropped, resize(part, settings.crop_size))
        both.append(_to_uint8(part))
    return both


def crop_mirror(images: Tensor, settings: Augmentation, generator: torch.Generator) -> list[Tensor]:
    """Return a random crop of each image, mirrored with probability 1/2: iCaRL's augmentation."""
    cropped = _random_crop(F.pad(images, [settings.padding] * 4), images.shape[2:], generator)
    return [torch.where(_coin(len(images), generator), mirror(cropped), cropped)]


def photo(images: Tensor, settings: Augmentation, generator: torch.Generator) -> list[Tensor]:
    """Resize a random part of each photo to the input's size, mirror it at 1/2 probability, change light and contrast.

    The part has 55 to 100 % of the photo's area and is up to a quarter wider or taller in shape.
    """
    count = len(images)
    area, stretch = _uniform(count, 0.55, 1, generator), _uniform(count, -0.22, 0.22, generator).exp()
    width, height = (area * stretch).sqrt().clamp_max(1), (area / stretch).sqrt().clamp_max(1)
    left, top = ((2 * _uniform(count, 0, 1, generator) - 1) * (1 - side) for side in (width, height))
    sign = 1 - 2 * _coin(count, generator).flatten().float()
    factor = _uniform(count, *settings.contrast, generator)
    shift = _uniform(count, -settings.brightness, settings.brightness, generator)
    zeros = torch.zeros_like(left)
    placed = torch.stack([torch.stack([width * sign, zeros, left], 1), torch.stack([zeros, height, top], 1)], 1)
    filled = []
    for rows in torch.arange(count, device=images.device).split(PHOTOS):
        shape = [len(rows), images.shape[1], settings.crop_size, settings.crop_size]
        grid = F.affine_grid(placed[rows], shape, align_corners=False)
        pixels = images[rows].float()
        part = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        filled.append(_to_uint8(brightness(contrast(part, factor[rows]), shift[rows])))
    return [torch.cat(filled)]


class Kind(NamedTuple):
    """What a kind of augmentation does, and what else depends on it."""

    multiply: Callable[[Tensor, Augmentation, torch.Generator], list[Tensor]] | None
    copies: int = 1
    """The number of training images that one image becomes."""
    each_epoch: bool = False
    """Whether it is drawn anew for each epoch rather than once for a stage."""
    resizes: bool = False
    """Whether the network's input has the size `crop_size` rather than that of the images."""


KINDS: dict[str, Kind] = {
    "twelvefold": Kind(twelvefold, copies=12),
    "twofold": Kind(twofold, copies=2, resizes=True),
    "crop-mirror": Kind(crop_mirror, each_epoch=True),
    "photo": Kind(photo, each_epoch=True, resizes=True),
    "none": Kind(None),
}


def _chunks(images: Tensor) -> tuple[Tensor, ...]:
    return images.split(min(CHUNK, max(1, CHUNK_VALUES // images[0].numel())))


def _random_crop(images: Tensor, size: tuple[int, int] | torch.Size, generator: torch.Generator) -> Tensor:
    height, width = size
    top = _integers(len(images), images.shape[2] - height + 1, generator)
    left = _integers(len(images), images.shape[3] - width + 1, generator)
    return crop(images, top, left, (height, width))


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(count, generator=generator, device=generator.device) * (high - low) + low


def _integers(count: int, end: int, generator: torch.Generator) -> Tensor:
    return torch.randint(end, (count,), generator=generator, device=generator.device)


def _coin(count: int, generator: torch.Generator) -> Tensor:
    return _uniform(count, 0, 1, generator)[:, None, None, None] < 0.5


def _to_uint8(pixels: Tensor) -> Tensor:
    return pixels.round().clamp(0, 255).to(torch.uint8)
