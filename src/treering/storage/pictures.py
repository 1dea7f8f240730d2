"""Exemplars and held-out images as PNG files, which are decoded only if they are what the model says of them."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from torch import Tensor

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Pillow's name of 8-bit images by their number of channels."""

CHUNKS = (b"IHDR", b"IDAT", b"IEND")
"""The kinds of chunks that `encode` writes: the frame, the pixels and the end."""
BYTES_PER_CHUNK = 2**12
"""The fewest bytes that a file of many chunks has for each: `encode` gives all but the last one 2**16 or more."""


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
    """Return the image C x H x W in a PNG file; raise ValueError if it is no PNG file of just this shape."""
    channels, height, width = shape
    try:
        _require_few_chunks(content)
        image = PngImageFile(io.BytesIO(content))
        if (image.mode, image.size) != (MODES[channels], (width, height)):
            raise ValueError(f"it is {image.width} x {image.height} pixels of the kind {image.mode}")
        pixels = np.array(image)
    except MemoryError:
        raise
    except Exception as error:  # whatever the decoder makes of damaged bytes
        said = str(error) if type(error) is ValueError else "it cannot be decoded"
        raise ValueError(said) from None
    loaded = torch.from_numpy(pixels.reshape(height, width, channels)).movedim(-1, 0)
    return loaded.clone(memory_format=torch.contiguous_format)


def _require_few_chunks(content: bytes) -> None:
    """Raise ValueError if a PNG file has chunks that treering never writes, each of which takes time and memory."""
    place, left = 8, 8 + len(content) // BYTES_PER_CHUNK  # the file begins with 8 bytes that say that it is PNG
    while place < len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        left -= 1
        if kind not in CHUNKS or left < 0:
            raise ValueError("it has parts that treering never writes")
        place += 12 + length  # with its length, its kind and its checksum
