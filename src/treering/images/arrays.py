"""Validation at the edge: whatever a user hands in becomes uint8 images N x C x H x W and a list of plain labels.

Images: a NumPy array N x H x W or N x H x W x C, a torch tensor N x H x W or N x C x H x W, a sequence of images of
one size, a torch Dataset of (image, label), or an iterator of batches (images, labels). C is 1 or 3; values are uint8
0..255 or floating-point 0..1.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from treering.errors import TreeringError
from treering.images.files import opaque, upright
from treering.runtime.pixels import Images, PixelFile, StoredImages

GREY = ("L", "F")
"""Pillow's modes that stay grey where nothing asks for colour: bytes, and floating-point numbers 0..1."""
NO_IMAGES = "no images were given: give at least one"


def as_examples(images: Any, labels: Any, channels: int | None = None) -> tuple[Images, list[Hashable]]:
    """Return images and their labels, which a Dataset or an iterator of batches brings itself.

    Pillow's images are converted to so many `channels`, as in `as_images`.
    """
    is_batches = isinstance(images, Iterable) and not isinstance(
        images, Dataset | Tensor | np.ndarray | Sequence | StoredImages
    )
    if labels is not None and (is_batches or isinstance(images, Dataset)):
        what = "an iterator of batches" if is_batches else "a torch Dataset"
        raise TreeringError(f"{what} brings its own labels: leave the labels out")
    if is_batches:
        return _from_batches(iter(images), channels)
    if isinstance(images, Dataset):
        pairs = list(_items(images))
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
            raise TreeringError("every item of the Dataset must be a pair (image, label)")
        images, labels = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if labels is None:
        raise TreeringError("labels are missing: give one label per image")
    return _labelled(images, labels, channels)


def _labelled(images: Any, labels: Any, channels: int | None) -> tuple[Tensor, list[Hashable]]:
    pixels, names = as_images(images, channels), as_labels(labels)
    if len(pixels) != len(names):
        raise TreeringError(f"{len(pixels)} images but {len(names)} labels: give one label per image")
    return pixels, names


def _from_batches(batches: Iterator[Any], channels: int | None) -> tuple[Images, list[Hashable]]:
    """Store batches (images, labels) one after another, so that together they need not fit into memory."""
    file: PixelFile | None = None
    names: list[Hashable] = []
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TreeringError("every item of the iterator must be a batch, a pair (images, labels)")
        pixels, some = _labelled(batch[0], batch[1], channels)
        one_type(some, names)
        file = file or PixelFile(pixels.shape[1:])
        channels = 3 if file.shape[0] == 3 else channels  # what is grey then becomes colour, but not the reverse
        if pixels.shape[1:] != file.shape:
            given, first = (" x ".join(map(str, shape)) for shape in (pixels.shape[1:], file.shape))
            raise TreeringError(f"all images must have one size: {first} and {given} were given")
        file.append(pixels)
        names += some
    if file is None:
        raise TreeringError(NO_IMAGES)
    return file.images(), names


def as_images(images: Any, channels: int | None = None) -> Tensor:
    """Return images as uint8 N x C x H x W; labels that a Dataset or an iterator of batches brings are left out.

    Pillow's images are converted to so many `channels`; without it they stay grey only if each has a mode of `GREY`.
    """
    if isinstance(images, StoredImages):
        return images.tensor()
    if isinstance(images, Dataset):
        images = [item[0] if isinstance(item, tuple | list) else item for item in _items(images)]
    if isinstance(images, Tensor):
        pixels = images.detach().cpu()
        return _checked(pixels[:, None] if pixels.ndim == 3 else pixels)
    if isinstance(images, np.ndarray) and images.dtype != object:
        pixels = _from_numpy(images)
        return _checked(pixels[:, None] if pixels.ndim == 3 else pixels.movedim(-1, 1) if pixels.ndim == 4 else pixels)
    if isinstance(images, Sequence | np.ndarray):
        if any(isinstance(image, PIL.Image.Image) and image.mode not in GREY for image in images):
            channels = channels or 3
        return _stacked([_one_image(image, channels) for image in images])
    if isinstance(images, Iterable) and not isinstance(images, Set | Mapping):
        return _stacked([image for batch in images for image in as_images(_without_labels(batch), channels)])
    raise TreeringError(
        f"images must be an array, a tensor, a sequence or a torch Dataset, not {type(images).__name__}"
    )


def _without_labels(batch: Any) -> Any:
    """Return the images of a batch (images, labels, …), or a batch that is images itself."""
    if not isinstance(batch, tuple | list) or not batch:
        return batch
    is_stack = getattr(batch[0], "ndim", 0) == 4
    return batch[0] if is_stack or (len(batch) > 1 and np.ndim(batch[1]) == 1) else batch


def as_labels(labels: Any) -> list[Hashable]:
    """Return labels as plain Python values, all of one type."""
    is_array = hasattr(labels, "tolist")
    if isinstance(labels, str | bytes | Set | Mapping) or not (is_array or isinstance(labels, Iterable)):
        raise TreeringError(f"labels must be a sequence with one label per image, not {labels!r}")
    if getattr(getattr(labels, "dtype", None), "kind", None) in ("m", "M"):
        raise TreeringError("labels are NumPy's dates or times, which may come back as numbers: give them as texts")
    if hasattr(labels, "ndim") and labels.ndim != 1:
        raise TreeringError(f"labels must have one dimension, not shape {tuple(labels.shape)}")
    names = labels.tolist() if is_array else list(labels)
    names = [name.item() if isinstance(name, np.generic | Tensor) and np.ndim(name) == 0 else name for name in names]
    for name in names:
        is_number = not isinstance(name, float) or math.isfinite(name)
        if name is None or isinstance(name, Tensor) or not is_number or not _is_hashable(name):
            raise TreeringError(f"{name!r} cannot be a label: labels are texts, numbers or other hashable values")
    one_type(names, [])
    return names


def label_array(labels: list[Hashable]) -> np.ndarray:
    """Return labels as a NumPy array of one dimension: texts or numbers where NumPy keeps them, else objects."""
    if type(labels[0]) in (str, int, float, bool):
        plain = np.array(labels)
        if [(type(label), label) for label in plain.tolist()] == [(type(label), label) for label in labels]:
            return plain
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def one_type(labels: Sequence[Hashable], known: Sequence[Hashable]) -> None:
    """Raise unless all labels have the type of the `known` ones or, if none is known, of each other."""
    expected = type(next(iter(known or labels), None))
    for label in labels:
        if type(label) is not expected:
            earlier = "the classes learnt before" if known else "the labels before it"
            raise TreeringError(
                f"label {label!r} is of type {type(label).__name__}, but {earlier} are of type {expected.__name__}: "
                "use one type for all labels"
            )


def _is_hashable(name: Any) -> bool:
    try:
        hash(name)
    except TypeError:
        return False
    return True


def _items(dataset: Dataset[Any]) -> Iterable[Any]:
    if isinstance(dataset, IterableDataset):
        return iter(dataset)
    if not isinstance(dataset, Sized):
        raise TreeringError(
            f"the Dataset {type(dataset).__name__} has no length: give it one, or use an IterableDataset"
        )
    return (dataset[index] for index in range(len(dataset)))


def _one_image(image: Any, channels: int | None) -> Tensor:
    """Return one image of a sequence as C x H x W; it is a tensor C x H x W, or what NumPy reads as H x W (x C)."""
    if isinstance(image, Tensor):
        pixels = image.detach().cpu()
        return pixels[None] if pixels.ndim == 2 else pixels
    try:
        array = _of_pil(image, channels) if isinstance(image, PIL.Image.Image) else np.asarray(image)
    except TreeringError:
        raise
    except (TypeError, ValueError, OSError) as error:
        raise TreeringError(f"an image cannot be read as an array: {error}") from None
    pixels = _from_numpy(array)
    return pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0) if pixels.ndim == 3 else pixels


def _of_pil(image: PIL.Image.Image, channels: int | None) -> np.ndarray:
    if image.mode == "I" and image.format != "PNG":  # in a PNG they have 16 bits
        raise TreeringError("an image of PIL's mode I may have any range: convert it to L or I;16, or give an array")
    image = upright(image)
    if image.mode == "F":
        return np.stack([np.asarray(image)] * 3, axis=-1) if channels == 3 else np.asarray(image)
    grey = channels == 1 or (channels is None and image.mode == "L")
    return np.asarray(opaque(image).convert("L") if grey else opaque(image))


def _stacked(images: list[Tensor]) -> Tensor:
    if not images:
        raise TreeringError(NO_IMAGES)
    first = images[0]
    other = next((image for image in images if (image.shape, image.dtype) != (first.shape, first.dtype)), None)
    if other is not None:
        raise TreeringError(
            "all images must have one size and type: "
            f"{tuple(first.shape)} {first.dtype} and {tuple(other.shape)} {other.dtype} were given"
        )
    return _checked(torch.stack(images))


def _from_numpy(array: np.ndarray) -> Tensor:
    if array.dtype == np.uint8 or np.issubdtype(array.dtype, np.floating):
        kind = np.uint8 if array.dtype == np.uint8 else np.float32
        # What float32 cannot hold becomes infinite, and is refused as such, or zero.
        with np.errstate(over="ignore", under="ignore"):
            return torch.from_numpy(np.array(array, dtype=kind, order="C"))
    raise TreeringError(f"images must be uint8 (0..255) or floating-point (0..1), not {array.dtype}")


def _checked(pixels: Tensor) -> Tensor:
    """Return `pixels` N x C x H x W as uint8, or raise an error that says what is wrong with them."""
    shape = tuple(pixels.shape)
    if shape[:1] == (0,):
        raise TreeringError(NO_IMAGES)
    if 0 in shape:
        raise TreeringError(f"images must have pixels, not the shape {shape}")
    if pixels.ndim != 4:
        raise TreeringError(
            f"images must be N x H x W (grey) or N x H x W x C, not an array of {pixels.ndim} dimensions"
        )
    if shape[1] not in (1, 3):
        raise TreeringError(
            f"images must have 1 or 3 channels, not {shape[1]}: "
            "NumPy arrays are N x H x W x C, torch tensors N x C x H x W"
        )
    if pixels.is_floating_point():
        bad = ~torch.isfinite(pixels).flatten(1).all(1)
        if bad.any():
            raise TreeringError(f"image {int(bad.nonzero()[0])} holds NaN or infinity ({int(bad.sum())} images do)")
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or high > 1:
            raise TreeringError(
                f"floating-point images must lie between 0 and 1, not between {low:g} and {high:g}: "
                "scale them, or give uint8 (0..255)"
            )
        pixels = (pixels * 255).round().to(torch.uint8)
    if pixels.dtype != torch.uint8:
        raise TreeringError(f"images must be uint8 (0..255) or floating-point (0..1), not {pixels.dtype}")
    # With one channel, `contiguous` keeps other strides, and those choose other kernels: not bit-identical.
    return pixels.clone(memory_format=torch.contiguous_format)
