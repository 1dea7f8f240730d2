"""The kinds of photos: each is recognised by its content, looked at before it is decoded, and opened by one reader.

No reader but these is ever used, since others of Pillow's start programs. What a file claims is checked first: how many
pixels it has, how much memory decoding takes, and that lists in it end.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import re
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from PIL import AvifImagePlugin, Image, _imaging
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import COMPRESSION_INFO, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from treering.images import jpeg, tiff

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else what it logs of damage comes to the terminal

MOST_PIXELS = 200_000_000
MOST_MEMORY = 1800 * 2**20
"""The most bytes that decoding one photo may take."""
MOST_UNPACKED = 600_000_000
"""The most bytes that a PNG is unpacked to, which takes some seconds: 200 megapixels, or 100 with 16 bits a colour."""
MOST_PASSES = 100
"""How often decoding may go through one JPEG: cameras and programs need about ten."""
MOST_IN_RUNS = 4_000_000
"""The most pixels of a BMP with run-length compression, whose decoder in Python takes a second for two million."""
LARGE = 25_000_000
"""A photo of more pixels is made smaller before its colours are converted, to save memory."""
NOT_A_PHOTO = "not a JPEG, PNG, WebP, AVIF, HEIC, TIFF, BMP or GIF image"
TOO_LARGE = "too large to decode"
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
AVIF_BRANDS = {b"avif", b"avis"}
COMPRESSIONS = (1, 5, 7, 8, 32773, 32946)
"""The compressions of TIFF that photos have: none, LZW, JPEG, ZIP and PackBits."""
MAKER_OF_RAW = {
    **dict.fromkeys((".cr2", ".cr3", ".crw"), "Canon"),
    **dict.fromkeys((".nef", ".nrw"), "Nikon"),
    **dict.fromkeys((".arw", ".sr2", ".srf"), "Sony"),
    **dict.fromkeys((".dcr", ".kdc"), "Kodak"),
    **{".raf": "Fujifilm", ".orf": "Olympus", ".rw2": "Panasonic", ".pef": "Pentax", ".srw": "Samsung"},
    **{".rwl": "Leica", ".3fr": "Hasselblad", ".iiq": "Phase One", ".x3f": "Sigma", ".mrw": "Minolta", ".dng": ""},
}
"""The ending of a RAW file's name -> who makes such cameras."""
RAW_BEGINNINGS = {
    rb"II\*\0....CR": "Canon",
    rb"....ftypcrx ": "Canon",
    rb"II\x1a\0....HEAPCCDR": "Canon",
    rb"FUJIFILMCCD-RAW": "Fujifilm",
    rb"IIR[OS]|MMOR": "Olympus",
    rb"IIU\0": "Panasonic",
    rb"FOVb": "Sigma",
    rb"\0MRM": "Minolta",
}
RAW_COMPRESSIONS = (262, 32767, 32770, 34713, 34892, 65000, 65535)
RAW_COLOURS = (32803, 34892)
"""The ways in which only RAW files store pixels: the filter before each sensor, and linear light."""


class UnreadableError(Exception):
    """A file that is not read; the text says why."""


class _Jpeg(JpegImageFile):
    """A JPEG that is opened without a look for its resolution in the EXIF block, where Pillow warns of damage."""

    def _read_dpi_from_exif(self) -> None:
        pass


class Tiff(TiffImageFile):
    """A TIFF that is stored as its camera held it, like all other kinds, and without warnings of many pixels."""

    def load_prepare(self) -> None:
        if getattr(self, "_im", None) is None:
            self.im = Image.new(self.mode, self._tile_size).im
        ImageFile.load_prepare(self)

    def load_end(self) -> None:
        self._size = self._tile_size


def opened(stream: BinaryIO, ending: str, size: int, most: int = MOST_MEMORY) -> tuple[ImageFile, int]:
    """Open an image without decoding it; return it, and the bytes of memory that decoding takes, `most` at most.

    A large JPEG is going to be decoded at a fraction of its size, but not smaller than twice `size`. The `ending` of
    the file's name serves only to tell what a file is that cannot be read.
    """
    start = stream.read(512)
    kind = _kind(start)
    _refuse_raw(stream, start, ending, kind)
    if kind not in OPENERS:
        raise UnreadableError(NOT_A_PHOTO)
    if kind == "WebP" and 16 * math.prod(_webp_size(start)) > most:  # the reader takes memory as soon as it is made
        raise UnreadableError(TOO_LARGE)
    stream.seek(0)
    image, extra = OPENERS[kind](stream, start)
    if image.width * image.height > MOST_PIXELS:
        raise UnreadableError(TOO_LARGE)
    if kind == "JPEG":
        image.draft("RGB", (2 * size, 2 * size))
    pixels = image.width * image.height
    copies = 1 if pixels > LARGE or image.mode in ("L", "RGB") else 3
    memory = 4 * copies * pixels + extra
    if memory > most:
        raise UnreadableError(TOO_LARGE)
    return image, memory


def _kind(start: bytes) -> str:
    """Return the kind of image that begins so."""
    if start[4:8] == b"ftyp":
        end = min(len(start), int.from_bytes(start[:4], "big"))
        brands = [start[8:12], *(start[at : at + 4] for at in range(16, end, 4))]
        first = brands[0] if brands[0] not in (b"mif1", b"msf1") else next(iter(AVIF_BRANDS & {*brands}), brands[0])
        return "AVIF" if first in AVIF_BRANDS else "HEIC" if first in HEIC_BRANDS else ""
    return next((kind for magic, kind in BEGINNINGS.items() if re.match(magic, start, re.DOTALL)), "")


def _refuse_raw(stream: BinaryIO, start: bytes, ending: str, kind: str) -> None:
    """Raise if the file is what a camera's sensor saw, which takes a program made for it to become a picture."""
    makers = (maker for magic, maker in RAW_BEGINNINGS.items() if re.match(magic, start, re.DOTALL))
    maker = next(makers, None)
    if maker is None and kind in ("", "TIFF"):
        maker = MAKER_OF_RAW.get(ending.lower())
    if kind == "TIFF":
        found = _directory(stream)
        hidden = found.number(tiff.SUBFILE) & 1 and tiff.SUBDIRECTORIES in found.entries  # a preview, then the picture
        odd = found.number(tiff.COMPRESSION) in RAW_COMPRESSIONS or found.number(tiff.PHOTOMETRIC) in RAW_COLOURS
        if maker is not None or hidden or odd or tiff.DNG_VERSION in found.entries:
            named = re.match(r"[A-Za-z]{1,20}", found.text(tiff.MAKE))
            maker = (named[0].capitalize() if named else "") or maker or ""
    if maker is not None:
        raise UnreadableError(f"a RAW file of a {maker + ' ' if maker else ''}camera: export it as JPEG first")


def _directory(stream: BinaryIO) -> tiff.Directory:
    stream.seek(0)
    return tiff.Directory(stream)


def _plain(reader: type[ImageFile]) -> Callable[[BinaryIO, bytes], tuple[ImageFile, int]]:
    """Return an opener of a kind that needs no more memory than its pixels, and no check but that of their number."""
    return lambda stream, start: (reader(stream), 0)


def _open_png(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    image = PngImageFile(stream)
    bits = start[24] * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(start[25], 1)
    if image.width * image.height * bits > 8 * MOST_UNPACKED:
        raise UnreadableError(TOO_LARGE)
    return image, 0


def _open_jpeg(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    passes, colours = jpeg.passes(stream)
    if passes > MOST_PASSES:
        raise UnreadableError(f"damaged image (a JPEG in {passes:,} passes)")
    stream.seek(0)
    image = _Jpeg(stream)
    return image, 2 * colours * image.width * image.height if passes > 1 else 0


def _open_webp(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    width, height = _webp_size(start)
    return WebPImageFile(stream), 12 * width * height


def _webp_size(start: bytes) -> tuple[int, int]:
    """Return width and height as the file's first block tells them."""
    if start[12:16] == b"VP8X":
        return int.from_bytes(start[24:27], "little") + 1, int.from_bytes(start[27:30], "little") + 1
    if start[12:16] == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", start, 26)
    return width & 0x3FFF, height & 0x3FFF


def _open_tiff(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    found = _directory(stream)
    if found.is_absurd() or found.has_too_many_pieces():
        raise UnreadableError("damaged image (a TIFF with lists that do not end)")
    compression = found.number(tiff.COMPRESSION, 1)
    if compression not in COMPRESSIONS:
        name = COMPRESSION_INFO.get(compression, compression)
        raise UnreadableError(f"a TIFF with the compression {name}: save it with LZW or none")
    pixels = found.number(tiff.WIDTH) * found.number(tiff.HEIGHT)
    if pixels > MOST_PIXELS:
        raise UnreadableError(TOO_LARGE)
    _silence_libtiff()
    stream.seek(0)
    image = Tiff(stream)
    if image.mode in ("F", "I"):
        raise UnreadableError("a TIFF with numbers of 32 bits: save it with 8 or 16 bits")
    return image, pixels * found.number(tiff.SAMPLES, 1) * max(1, found.number(tiff.BITS, 1) // 8)


@functools.cache
def _silence_libtiff() -> None:
    """Keep the library that decodes TIFF from writing of damage to the terminal: the caller gets the reason."""
    with contextlib.suppress(OSError, AttributeError):  # where it cannot be reached, it writes
        library = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            library[name].argtypes, library[name].restype = [ctypes.c_void_p], ctypes.c_void_p
            library[name](None)


def _open_bmp(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    image = BmpImageFile(stream)
    in_runs = image.info["compression"] in (BmpImageFile.COMPRESSIONS["RLE8"], BmpImageFile.COMPRESSIONS["RLE4"])
    if in_runs and image.width * image.height > MOST_IN_RUNS:
        raise UnreadableError("a large BMP with run-length compression: save it without")
    return image, 0


def _open_avif(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    if not AvifImagePlugin.SUPPORTED:
        raise UnreadableError(
            "an AVIF photo, which this Pillow was built without: pip install --force-reinstall pillow"
        )
    image = AvifImagePlugin.AvifImageFile(stream)
    return image, 8 * image.width * image.height


def _open_heic(stream: BinaryIO, start: bytes) -> tuple[ImageFile, int]:
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        raise UnreadableError("a HEIC photo: pip install 'treering[photos]' to read it") from None
    image: ImageFile = HeifImageFile(stream)  # type: ignore[no-untyped-call]
    return image, 6 * image.width * image.height


BEGINNINGS = {
    rb"\xff\xd8\xff": "JPEG",
    rb"\x89PNG\r\n\x1a\n": "PNG",
    rb"RIFF....WEBPVP8[ LX]": "WebP",
    rb"II\*\0|MM\0\*": "TIFF",
    rb"BM": "BMP",
    rb"GIF8[79]a": "GIF",
}
"""How a file begins -> its kind; those of AVIF and HEIC are in a list of brands."""
OPENERS: dict[str, Callable[[BinaryIO, bytes], tuple[Any, int]]] = {
    "JPEG": _open_jpeg,
    "PNG": _open_png,
    "WebP": _open_webp,
    "AVIF": _open_avif,
    "HEIC": _open_heic,
    "TIFF": _open_tiff,
    "BMP": _open_bmp,
    "GIF": _plain(GifImageFile),
}
"""A kind -> what opens it, and tells the bytes of memory that decoding takes beside the pixels."""
