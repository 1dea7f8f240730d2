"""One image file becomes a square of uint8 pixels, or a reason why it cannot."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from PIL import ExifTags, Image
from PIL.ImageFile import ImageFile

from treering.images import bounds, formats, tiff
from treering.images.formats import TOO_LARGE, UnreadableError
from treering.runtime import threads

IS_LINK = "a link to a folder: put the folder itself there"
EMPTY = "empty file"
WORKERS = min(8, os.cpu_count() or 1)
"""How many files are decoded at the same time, if they are not large."""
MEMORY_AT_ONCE = 2**30
"""The bytes of memory that the photos being decoded at the same time take together, unless a single one takes more."""
MOST_BYTES = 2**30
"""The largest file that is read."""
BAND = 2**22
"""The pixels of a large photo that are converted at a time."""
BACKGROUND = (255, 255, 255)
"""The colour that shows through where an image is transparent."""
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
TURN_OF_ORIENTATION = dict(enumerate(TURNS, start=2))
"""EXIF's number of an orientation -> what turns the picture upright; with 1 it is upright already."""


def read_in_parts(paths: Sequence[Path], size: int, channels: int, at_once: int) -> Iterator[list[np.ndarray | str]]:
    """Yield what `read` gives for each path, `at_once` of them in a list; threads read at the same time."""
    memory = bounds.Memory(MEMORY_AT_ONCE)
    with ThreadPoolExecutor(threads.at_most(WORKERS)) as pool:
        for start in range(0, len(paths), at_once):
            yield list(pool.map(lambda path: read(path, size, channels, memory), paths[start : start + at_once]))


def read(path: Path, size: int, channels: int = 3, memory: bounds.Memory | None = None) -> np.ndarray | str:
    """Return the image as `size` x `size` x `channels` pixels, uint8, or a text that says why it cannot be read.

    The image is upright, squeezed rather than cut to a square, and on white where it is transparent. Of an animation,
    the first frame is read. Threads that read at the same time share the `memory`.
    """
    return _or_reason(lambda: _of_file(path, size, channels, memory))


def read_bytes(
    content: bytes, size: int, memory: bounds.Memory | None = None, most: int = formats.MOST_MEMORY
) -> np.ndarray | str:
    """Do what `read` does for the content of a file, in three channels; decoding may take `most` bytes of memory."""
    if not content:
        return EMPTY
    stream = cast("BinaryIO", bounds.Stream(io.BytesIO(content), len(content)))
    return _or_reason(lambda: _decoded(stream, "", size, 3, memory, most))


def _or_reason(decoded: Callable[[], np.ndarray | str]) -> np.ndarray | str:
    """Return what a function decodes, or why it cannot."""
    try:
        return decoded()
    except MemoryError:
        raise
    except UnreadableError as error:
        return str(error)
    except Image.DecompressionBombError:
        return TOO_LARGE
    except OSError as error:
        return error.strerror or _damaged(error)
    except Exception as error:  # whatever a decoder makes of damaged bytes
        return _damaged(error)


def _of_file(path: Path, size: int, channels: int, memory: bounds.Memory | None) -> np.ndarray | str:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return IS_LINK if path.is_symlink() else "a folder that cannot be looked into"
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    with open(path, "rb", opener=bounds.open_at_once) as file:  # tests replace the built-in one
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):  # it was replaced just now
            return "not a regular file"
        if status.st_size == 0:
            return EMPTY
        if status.st_size > MOST_BYTES:
            return f"larger than {MOST_BYTES // 2**20:,} MB"
        stream = cast("BinaryIO", bounds.Stream(file, status.st_size))
        return _decoded(stream, path.suffix, size, channels, memory, formats.MOST_MEMORY)


def _decoded(
    stream: BinaryIO, ending: str, size: int, channels: int, memory: bounds.Memory | None, most: int
) -> np.ndarray:
    image, needed = formats.opened(stream, ending, size, most)
    with image, memory.taken(needed) if memory else contextlib.nullcontext():
        square = _square(image, size)
        return np.asarray(square) if channels == 3 else np.asarray(square.convert("L"))[..., None]


def _damaged(error: Exception) -> str:
    said = " ".join(str(error).split())[:200]
    return f"damaged image ({said or type(error).__name__})"


def _square(image: ImageFile, size: int) -> Image.Image:
    """Decode an image to a square of RGB."""
    orientation = _orientation(image)
    image.load()
    pixels = _reduced(image, size) if image.width * image.height > formats.LARGE else image
    square = opaque(_turned(pixels, orientation))
    return square if square.size == (size, size) else square.resize((size, size), Image.Resampling.BILINEAR)


def _reduced(image: Image.Image, size: int) -> Image.Image:
    """Return a large image as RGB, twice as wide and high as asked for or more, converted in bands to save memory."""
    across, down = (max(1, side // (2 * size)) for side in image.size)
    small = Image.new("RGB", (-(-image.width // across), -(-image.height // down)))
    rows = down * max(1, BAND // (image.width * down))
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(image.height, top + rows)))
        small.paste(opaque(band).reduce((across, down)), (0, top // down))
    return small


def _orientation(image: ImageFile) -> int:
    """Return EXIF's number of the orientation, found without a look at anything else in the camera's data."""
    exif, xmp = image.info.get("exif"), image.info.get("XML:com.adobe.xmp") or image.info.get("xmp")
    with contextlib.suppress(ValueError, TypeError, AttributeError):  # damaged data do not spoil the picture
        if isinstance(image, formats.Tiff):
            return int(image.tag_v2.get(tiff.ORIENTATION, 1))
        if exif is None and "Raw profile type exif" in image.info:
            exif = bytes.fromhex("".join(image.info["Raw profile type exif"].split("\n")[3:]))
        found = tiff.Directory(io.BytesIO((exif or b"").removeprefix(b"Exif\0\0"))).number(tiff.ORIENTATION)
        if found:
            return found
    text = xmp.decode("latin-1") if isinstance(xmp, bytes) else str(xmp or "")
    match = re.search(r'tiff:Orientation(?:="|>)([0-9])', text)
    return int(match[1]) if match else 1


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    turn = TURN_OF_ORIENTATION.get(orientation)
    return image.transpose(Image.Transpose[turn]) if turn else image


def upright(image: Image.Image) -> Image.Image:
    """Turn an image of Pillow as its camera says; one that is upright already is returned itself, not as a copy."""
    image.load()
    with contextlib.suppress(Exception):  # a damaged EXIF block does not spoil the picture: what was read of it counts
        image.getexif()
    try:
        return _turned(image, image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return image


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
