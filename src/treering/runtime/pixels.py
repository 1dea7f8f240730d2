"""Images that need not fit into memory: rows of a temporary file, used like a tensor N x C x H x W."""

from __future__ import annotations

import hashlib
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from treering.runtime import files


class PixelFile:
    """uint8 images of one shape in a file without a name: it is gone when nobody uses it any more."""

    def __init__(self, shape: Sequence[int], folder: Path | None = None) -> None:
        self.shape = torch.Size(shape)
        self.rows = 0
        self._file = tempfile.TemporaryFile(dir=folder, prefix=files.TEMPORARY)  # noqa: SIM115  # lives as long as this object
        weakref.finalize(self, self._file.close)
        self._row_bytes = self.shape.numel()

    def append(self, images: Tensor) -> Tensor:
        """Store images N x C x H x W; returns their rows."""
        self._file.seek(self.rows * self._row_bytes)
        self._file.write(images.contiguous().cpu().numpy().tobytes())
        self._file.flush()
        self.rows += len(images)
        return torch.arange(self.rows - len(images), self.rows)

    def read(self, rows: Tensor) -> Tensor:
        """The images in these rows. Read, not mapped: mapped pages would count as memory in use."""
        pixels = np.empty((len(rows), self._row_bytes), np.uint8)
        for target, row in zip(pixels, rows.tolist(), strict=True):
            self._file.seek(row * self._row_bytes)
            if self._file.readinto(target.data) != self._row_bytes:
                raise OSError("a temporary file was cut short")
        return torch.from_numpy(pixels).view(len(rows), *self.shape)


class StoredImages:
    """Some images of a `PixelFile`, N x C x H x W. Indexing gives fewer of them, `split` and `tensor` their pixels."""

    def __init__(self, file: PixelFile, rows: Tensor) -> None:
        self.file, self.rows = file, rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.rows), *self.file.shape))

    def __getitem__(self, index: Tensor | slice) -> StoredImages:
        return StoredImages(self.file, self.rows[index.cpu() if isinstance(index, Tensor) else index])

    def split(self, size: int) -> Iterator[Tensor]:
        """The pixels, `size` images at a time."""
        return (self.file.read(rows) for rows in self.rows.split(size))

    def tensor(self) -> Tensor:
        """All pixels."""
        return self.file.read(self.rows)


Images = Tensor | StoredImages


def tensor(images: Images) -> Tensor:
    """The pixels of `images`, in memory."""
    return images if isinstance(images, Tensor) else images.tensor()


def digests(images: Images) -> list[bytes]:
    """A digest of each image's pixels: the same for copies."""
    return [
        hashlib.sha1(image.numpy().tobytes(), usedforsecurity=False).digest()
        for part in images.split(256)
        for image in part.cpu()
    ]


def join(parts: Sequence[Images]) -> Images:
    """All images of the parts in one; if one is stored in a file, the others go there too."""
    stored = next((part for part in parts if isinstance(part, StoredImages)), None)
    if stored is None:
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    file = stored.file
    rows = [
        part.rows if isinstance(part, StoredImages) and part.file is file else file.append(tensor(part))
        for part in parts
    ]
    return StoredImages(file, torch.cat(rows))
