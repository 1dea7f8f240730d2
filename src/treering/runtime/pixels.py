"""Images that need not fit into memory: used like a tensor N x C x H x W, read from a temporary file when needed."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from treering.runtime import files


class PixelFile:
    """A temporary file of uint8 images of one shape; it has no name and is gone when nobody uses it any more."""

    def __init__(self, shape: Sequence[int], folder: Path | None = None) -> None:
        self.shape = torch.Size(shape)
        self.folder = folder
        self.rows = 0
        self._file = tempfile.TemporaryFile(dir=folder, prefix=f"{files.TEMPORARY}{uuid.uuid4().hex}")  # noqa: SIM115  # it is kept
        weakref.finalize(self, self._file.close)
        self._row_bytes = self.shape.numel()

    def append(self, images: Tensor) -> None:
        """Store images N x C x H x W after those that are there."""
        self._file.seek(self.rows * self._row_bytes)
        self._file.write(images.contiguous().cpu().numpy().tobytes())
        self._file.flush()
        self.rows += len(images)

    def images(self) -> StoredImages:
        """Return all images that have been stored so far."""
        return _Rows(self, torch.arange(self.rows))

    def read(self, rows: Tensor) -> Tensor:
        """Read the images in these rows; they are not mapped, since mapped pages would count as memory in use."""
        pixels = np.empty((len(rows), self._row_bytes), np.uint8)
        for target, row in zip(pixels, rows.tolist(), strict=True):
            self._file.seek(row * self._row_bytes)
            if self._file.readinto(target.data) != self._row_bytes:
                raise OSError("a temporary file was cut short")
        return torch.from_numpy(pixels).view(len(rows), *self.shape)


class _Joined:
    """The images of several parts, one part after the other; each part stays where it is."""

    def __init__(self, parts: Sequence[Images]) -> None:
        self.parts, self.shape = parts, parts[0].shape[1:]
        folders = (part.folder for part in parts if isinstance(part, StoredImages))
        self.folder = next((folder for folder in folders if folder), None)

    def read(self, rows: Tensor) -> Tensor:
        """Read the images in these rows, which are numbered through all parts."""
        pixels = torch.empty(len(rows), *self.shape, dtype=torch.uint8)
        start = 0
        for part in self.parts:
            own = (rows >= start) & (rows < start + len(part))
            if own.any():
                pixels[own] = tensor(part[rows[own] - start]).cpu()
            start += len(part)
        return pixels


class StoredImages(ABC):
    """Images N x C x H x W whose pixels are not in memory: indexing gives fewer of them, `split` gives their pixels."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """N, C, H, W."""

    @property
    def folder(self) -> Path | None:
        """The folder of the file that holds the pixels, if there is one."""
        return None

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def __getitem__(self, index: Tensor | slice) -> Self: ...

    @abstractmethod
    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the pixels, `size` images at a time; of no image, a tensor of none."""

    def tensor(self) -> Tensor:
        """Return all pixels."""
        return next(self.split(max(1, len(self))))

    def joined(self, others: Sequence[Images]) -> StoredImages:
        """Return these images, and the others behind them."""
        return _joined([self, *others])


class _Rows(StoredImages):
    """Images in some rows of a file, or of several parts."""

    def __init__(self, source: PixelFile | _Joined, rows: Tensor) -> None:
        self._source, self._rows = source, rows

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self._rows), *self._source.shape))

    @property
    def folder(self) -> Path | None:
        return self._source.folder

    def __getitem__(self, index: Tensor | slice) -> Self:
        return type(self)(self._source, self._rows[index.cpu() if isinstance(index, Tensor) else index])

    def split(self, size: int) -> Iterator[Tensor]:
        return (self._source.read(rows) for rows in self._rows.split(size))


Images = Tensor | StoredImages


def tensor(images: Images) -> Tensor:
    """Return the pixels of `images` in memory."""
    return images if isinstance(images, Tensor) else images.tensor()


def digests(images: Images) -> list[bytes]:
    """Return a digest of each image's pixels, which is the same for copies."""
    return [
        hashlib.sha1(image.numpy().tobytes(), usedforsecurity=False).digest()
        for part in images.split(256)
        for image in part.cpu()
    ]


def join(parts: Sequence[Images]) -> Images:
    """Return the images of all parts together, read when they are needed; a tensor on one device if all are tensors."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) == len(parts):
        return torch.cat([part.to(tensors[0].device) for part in tensors])
    first, *others = parts
    return first.joined(others) if isinstance(first, StoredImages) else _joined(parts)


def _joined(parts: Sequence[Images]) -> StoredImages:
    return _Rows(_Joined(parts), torch.arange(sum(map(len, parts))))
