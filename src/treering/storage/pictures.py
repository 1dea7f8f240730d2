"""Exemplars and held-out images as PNG files, which stay files in memory until their pixels are needed.

A step may need few of them, and to decode or encode a photo takes many times longer than to read or write its file.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from torch import Tensor

from treering.images.files import WORKERS
from treering.runtime import pixels, threads
from treering.runtime.pixels import Images, StoredImages

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's name of 8-bit images by their number of channels."""

COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's number of each of them."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"
BYTES_PER_CHUNK = 2**12
"""The fewest bytes that a file of many chunks has for each: `encode` gives all but the last one 2**16 or more."""
FILTERS = 5
"""How many ways there are to write a row of pixels; each row begins with the number of its own."""


class Pictures(StoredImages):
    """Images of one shape that stay PNG files in memory; each is decoded when its pixels are asked for."""

    def __init__(self, files: Sequence[bytes], shape: Sequence[int]) -> None:
        self.files, self._shape = list(files), torch.Size(shape)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.files), *self._shape))

    def __getitem__(self, index: Tensor | slice) -> Self:
        rows = torch.arange(len(self.files))[index.cpu() if isinstance(index, Tensor) else index]
        return type(self)([self.files[row] for row in rows.tolist()], self._shape)

    def split(self, size: int) -> Iterator[Tensor]:
        if not self.files:
            yield torch.empty(self.shape, dtype=torch.uint8)
        with ThreadPoolExecutor(threads.at_most(WORKERS)) as pool:
            for start in range(0, len(self.files), size):
                decoded = pool.map(lambda file: decode(file, self._shape), self.files[start : start + size])
                yield torch.stack(list(decoded))

    def joined(self, others: Sequence[Images]) -> StoredImages:
        alike = [part for part in others if isinstance(part, Pictures) and part._shape == self._shape]
        if len(alike) < len(others):
            return super().joined(others)
        return Pictures([file for part in (self, *alike) for file in part.files], self._shape)


def encoded(images: Images, pool: ThreadPoolExecutor) -> Iterable[bytes]:
    """Return images as PNG files: as they are, if they are such."""
    return images.files if isinstance(images, Pictures) else pool.map(encode, pixels.tensor(images))


def encode(image: Tensor) -> bytes:
    """Return C x H x W as a PNG file."""
    pixels = image.movedim(0, -1).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def most_bytes(shape: Sequence[int]) -> int:
    """Return the most bytes that the file of an image C x H x W may have: noise is stored as it is, with some frame."""
    channels, height, width = shape
    return 2 * height * (channels * width + 1) + 2**16


def decode(content: bytes, shape: Sequence[int]) -> Tensor:
    """Return the image C x H x W in a PNG file that `require_decodable` lets pass."""
    channels, height, width = shape
    held = np.array(PngImageFile(io.BytesIO(content)))
    loaded = torch.from_numpy(held.reshape(height, width, channels)).movedim(-1, 0)
    return loaded.clone(memory_format=torch.contiguous_format)


def decoded(content: bytes, shape: Sequence[int]) -> Tensor:
    """Return the image C x H x W in a PNG file that nothing has looked at yet; raise ValueError if there is none.

    Its pixels are unpacked only once: Pillow gets them as they are, to undo the filters of their rows.
    """
    rows = zlib.compress(_rows(content, shape), 0)
    parts = ((b"IHDR", _head(shape)), (b"IDAT", rows), (b"IEND", b""))
    return decode(SIGNATURE + b"".join(_chunk(kind, part) for kind, part in parts), shape)


def require_decodable(content: bytes, shape: Sequence[int]) -> None:
    """Raise ValueError unless this is a PNG file of an image C x H x W, as `encode` writes it.

    It takes a tenth of the time that decoding takes. What it lets pass, any decoder can decode.
    """
    _rows(content, shape)


def _rows(content: bytes, shape: Sequence[int]) -> bytes:
    """Return the filtered rows of pixels in a PNG file; raise ValueError if it is not as `encode` writes it."""
    channels, height, width = shape
    if not content.startswith(SIGNATURE):
        raise ValueError("it is no PNG file")
    chunks = list(_chunks(content))
    if len(chunks) < 3:
        raise ValueError("it has fewer parts than an image has")
    (head_kind, head), *data, (end_kind, end) = chunks
    if head_kind != b"IHDR" or end_kind != b"IEND" or end or any(kind != b"IDAT" for kind, _ in data):
        raise ValueError("it has parts that treering never writes")
    if head != _head(shape):
        raise ValueError(f"it is no image of {width} x {height} pixels of the kind {MODES[channels]}")
    bytes_of_row = 1 + width * channels
    inflater = zlib.decompressobj()
    try:
        rows = inflater.decompress(b"".join(part for _, part in data), height * bytes_of_row + 1)
    except zlib.error:
        raise ValueError("it cannot be decoded") from None
    if len(rows) != height * bytes_of_row or not inflater.eof or inflater.unused_data:
        raise ValueError("it has more or fewer pixels than it says")
    if max(rows[::bytes_of_row]) >= FILTERS:
        raise ValueError("it cannot be decoded")
    return rows


def _head(shape: Sequence[int]) -> bytes:
    channels, height, width = shape
    return struct.pack(">IIBBBBB", width, height, 8, COLOURS[channels], 0, 0, 0)


def _chunk(kind: bytes, part: bytes) -> bytes:
    return len(part).to_bytes(4) + kind + part + zlib.crc32(kind + part).to_bytes(4)


def _chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of each chunk of a PNG file; raise ValueError if it is damaged or has many small ones."""
    place, left = len(SIGNATURE), 8 + len(content) // BYTES_PER_CHUNK
    while place < len(content):
        left -= 1
        if left < 0:
            raise ValueError("it has parts that treering never writes")
        length = int.from_bytes(content[place : place + 4])
        kind, part = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        place += 12 + length
        if content[place - 4 : place] != zlib.crc32(kind + part).to_bytes(4):
            raise ValueError("it cannot be decoded")
        yield kind, part
