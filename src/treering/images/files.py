"""One image file becomes a square of uint8 pixels, or a reason why it cannot."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

WORKERS = min(8, os.cpu_count() or 1)
"""How many files are decoded at the same time: each may be a large photo."""
BACKGROUND = (255, 255, 255)
"""The colour that shows through where an image is transparent."""
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
TURN_OF_ORIENTATION = dict(enumerate(TURNS, start=2))
"""EXIF's number of an orientation -> what turns the picture upright; with 1 it is upright already."""


class _Jpeg(JpegImageFile):
    """A JPEG that is opened without a look for its resolution in the EXIF block, where Pillow warns of damage."""

    def _read_dpi_from_exif(self) -> None:
        pass


READERS: dict[bytes, type[ImageFile]] = {
    rb"\xff\xd8\xff": _Jpeg,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF....WEBPVP8[ LX]": WebPImageFile,
    rb"BM": BmpImageFile,
    rb"GIF8[79]a": GifImageFile,
}
"""How a file begins -> the class that reads it."""


def read_in_parts(paths: Sequence[Path], size: int, channels: int, at_once: int) -> Iterator[list[np.ndarray | str]]:
    """Yield what `read` gives for each path, `at_once` of them in a list; threads read at the same time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for start in range(0, len(paths), at_once):
            yield list(pool.map(lambda path: read(path, size, channels), paths[start : start + at_once]))


def read(path: Path, size: int, channels: int = 3) -> np.ndarray | str:
    """Return the image as `size` x `size` x `channels` pixels, uint8, or a text that says why it cannot be read.

    The image is upright, squeezed rather than cut to a square, and on white where it is transparent. Of an animation,
    the first frame is read.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return "a folder that cannot be looked into"
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size == 0:
            return "empty file"
        with open(path, "rb") as stream, _opened(stream) as image:  # noqa: PTH123  # tests replace the built-in one
            image.draft("RGB", (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
            square = opaque(upright(image))
            if square.size != (size, size):
                square = square.resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(square) if channels == 3 else np.asarray(square.convert("L"))[..., None]
    except MemoryError:
        raise
    except Image.DecompressionBombError:
        return "too large to decode"
    except OSError as error:
        return error.strerror or str(error)
    except Exception as error:  # whatever a decoder makes of damaged bytes
        return f"damaged image ({str(error) or type(error).__name__})"


def _opened(stream: BinaryIO) -> ImageFile:
    """Open an image like `Image.open`, but without the warnings that would be errors to whoever runs Python so.

    Pillow warns of photos of 90 to 180 megapixels, which are fine, and of damaged EXIF blocks, which do not matter.
    """
    start = stream.read(16)
    stream.seek(0)
    try:
        image = next(reader for magic, reader in READERS.items() if re.match(magic, start, re.DOTALL))(stream)
    except (StopIteration, SyntaxError, IndexError, TypeError, struct.error):
        raise UnidentifiedImageError("not a JPEG, PNG, WebP, BMP or GIF image") from None
    if Image.MAX_IMAGE_PIXELS and image.width * image.height > 2 * Image.MAX_IMAGE_PIXELS:
        raise Image.DecompressionBombError
    return image


def upright(image: Image.Image) -> Image.Image:
    """Turn an image as its camera says; one that is upright already is returned itself, not as a copy."""
    image.load()
    with contextlib.suppress(Exception):  # a damaged EXIF block does not spoil the picture: what was read of it counts
        image.getexif()
    try:
        turn = TURN_OF_ORIENTATION.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return image
    return image.transpose(Image.Transpose[turn]) if turn else image


def opaque(image: Image.Image) -> Image.Image:
    """Convert an image to RGB, on white where it is transparent."""
    if image.mode == "I" or image.mode.startswith("I;16"):  # grey, 16 bits
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        pixels = image.convert("RGBA")
        flat = Image.new("RGB", pixels.size, BACKGROUND)
        flat.paste(pixels, mask=pixels.getchannel("A"))
        return flat
    return image if image.mode == "RGB" else image.convert("RGB")
