"""Whatever a user hands in, names of files and folders too, as pixels and labels."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np

from treering.errors import TreeringError
from treering.images import arrays, files, folders
from treering.images.folders import AT_ONCE
from treering.runtime.pixels import Images


def examples(
    images: Any, labels: Any, size: int, file_channels: int, channels: int | None
) -> tuple[Images, list[Hashable]]:
    """Return images and their labels; a folder, a Dataset and an iterator of batches bring their own labels.

    Image files are read as squares of `size` pixels with `file_channels`; images of PIL become `channels`, if given.
    """
    if not isinstance(images, str | os.PathLike):
        return arrays.as_examples(opened(images, size, file_channels), labels, channels)
    if labels is not None:
        raise TreeringError("a folder brings its own labels: leave the labels out")
    loaded = folders.load(folders.scan(Path(images)), size, file_channels)
    folders.warn_of(loaded.skipped)
    if not loaded.labels:
        raise TreeringError(f"no image in {images} can be read")
    return loaded.images, list(loaded.labels)


def opened(images: Any, size: int, channels: int) -> Any:
    """Return the pixels if `images` are names of image files; anything else as it is."""
    if isinstance(images, str | os.PathLike):
        images = [images]
    if hasattr(images, "to_numpy"):  # a column of a table
        images = images.to_numpy()
    if isinstance(images, np.ndarray) and images.dtype.kind in "UO" and images.ndim == 1:
        images = images.tolist()
    if not isinstance(images, list | tuple) or not all(isinstance(one, str | os.PathLike) for one in images):
        return images
    paths = [Path(file) for file in images]
    read = [found for part in files.read_in_parts(paths, size, channels, AT_ONCE) for found in part]
    for file, found in zip(images, read, strict=True):
        if Path(file).is_dir():
            raise TreeringError(f"{os.fspath(file)} is a folder: give names of image files")
        if isinstance(found, str):
            raise TreeringError(f"{os.fspath(file)} cannot be read: {found}")
    return read
