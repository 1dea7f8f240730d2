"""Hostile photos: good ones of all kinds that are damaged, and files that are made to do harm."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pillow_heif
from PIL import Image

ENDINGS = (".jpg", ".png", ".webp", ".gif", ".bmp", ".tif", ".heic", ".avif", ".nef", ".dng", "", ".txt")
STARTS = [b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"RIFF\0\0\0\0WEBPVP8X"]
STARTS += [b"\0\0\0\x1cftypheic", b"\0\0\0\x1cftypavif", b"\0\0\0\x1cftypmif1"]
DOCUMENTS = {
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(id) (r) file\nshowpage\n",
    "DOS EPS": b"\xc5\xd0\xd3\xc6\x1e\0\0\0\x99\0\0\0"
    + bytes(18)
    + b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "PDF": b"%PDF-1.7\n1 0 obj<</Type/Catalog/OpenAction<</S/Launch/F(sh)>>>>endobj\ntrailer<</Root 1 0 R>>",
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "script": b"#!/bin/sh\ntouch /tmp/hostile-photo\n",
    "ImageMagick": b"push graphic-context\nfill 'url(https://example.com/\"|touch /tmp/hostile-photo\")'\n",
    "ZIP": b"PK\x03\x04" + bytes(200),
    "WMF": b"\xd7\xcd\xc6\x9a\0\0" + bytes(60),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(90),
    "XPM": b'/* XPM */\nstatic char *x[] = {"99999 99999 2 1"};',
    "IM": b"Image type: L 32S image\r\nImage size (x*y): 99999*99999\r\n",
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(90),
    "film": b"\0\0\0\x18ftypmp42" + bytes(90),
    "pickle": b"cposix\nsystem\n(S'touch /tmp/hostile-photo'\ntR.",
}


class Photo(NamedTuple):
    """A hostile photo."""

    kind: str
    """How it was made."""
    name: str
    content: bytes


def _saved(image: Image.Image, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    if kind == "HEIF":
        pillow_heif.from_pillow(image).save(buffer, **settings)
    else:
        fresh = {"append_images": [frame.copy() for frame in settings.pop("append_images", [])]}
        image.copy().save(buffer, kind, **settings, **fresh)  # saving as JPEG leaves settings in an image
    return buffer.getvalue()


@functools.cache
def good_photos() -> dict[str, bytes]:
    """Return a small photo of each kind."""
    coarse = np.random.RandomState(0).randint(0, 256, (6, 8, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif.update({0x0112: 6, 0x010F: "maker", 0x9003: "2020:01:01 00:00:00"})
    frames: dict[str, Any] = {"save_all": True, "append_images": [image.rotate(90), image.rotate(180)]}
    deep = Image.fromarray(np.asarray(image)[..., 0].astype(np.uint16) * 257)
    glass = image.copy()
    glass.putalpha(Image.fromarray(np.asarray(image)[..., 1]))
    several = pillow_heif.from_pillow(image)
    several.add_from_pillow(image.rotate(180))
    heifs = io.BytesIO()
    several.save(heifs)
    found = {
        "JPEG": _saved(image, "JPEG", exif=exif.tobytes()),
        "progressive JPEG": _saved(image, "JPEG", progressive=True, exif=exif.tobytes()),
        "CMYK JPEG": _saved(image.convert("CMYK"), "JPEG"),
        "MPO": _saved(image, "MPO", **frames),
        "PNG": _saved(image, "PNG", exif=exif.tobytes()),
        "deep PNG": _saved(deep, "PNG"),
        "palette PNG": _saved(image.quantize(16), "PNG", transparency=3),
        "animated PNG": _saved(glass, "PNG", **frames),
        "WebP": _saved(image, "WEBP", exif=exif.tobytes()),
        "lossless WebP": _saved(glass, "WEBP", lossless=True),
        "animated WebP": _saved(image, "WEBP", **frames),
        "AVIF": _saved(image, "AVIF", exif=exif.tobytes(), speed=10),
        "animated AVIF": _saved(image, "AVIF", speed=10, **frames),
        "HEIC": _saved(image, "HEIF", exif=exif.tobytes()),
        "glass HEIC": _saved(glass, "HEIF"),
        "several HEIC": heifs.getvalue(),
        "TIFF": _saved(image, "TIFF", exif=exif.tobytes()),
        "deep TIFF": _saved(deep, "TIFF"),
        "several TIFF": _saved(image, "TIFF", compression="tiff_lzw", **frames),
        "BMP": _saved(image, "BMP"),
        "palette BMP": _saved(image.quantize(16), "BMP"),
        "GIF": _saved(image, "GIF"),
        "animated GIF": _saved(image, "GIF", **frames),
    }
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        found[f"{compression} TIFF"] = _saved(image, "TIFF", compression=compression)
    return found


def cut(random: np.random.RandomState, content: bytes) -> bytes:
    """Let the file end early."""
    return content[: random.randint(len(content))]


def flip(random: np.random.RandomState, content: bytes) -> bytes:
    """Change a few bits, mostly near the beginning."""
    found = bytearray(content)
    for _ in range(random.randint(1, 30)):
        end = len(found) if random.rand() < 0.5 else min(len(found), 400)
        found[random.randint(end)] ^= 1 << random.randint(8)
    return bytes(found)


def number(random: np.random.RandomState, content: bytes) -> bytes:
    """Put numbers at the edge of what is possible in the place of others."""
    found = bytearray(content)
    edges = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, len(content))
    for _ in range(random.randint(1, 8)):
        size = int(random.choice([1, 2, 4]))
        value = int(edges[random.randint(len(edges))]) & (256**size - 1)
        at = random.randint(min(len(found), 600) if random.rand() < 0.8 else len(found))
        found[at : at + size] = value.to_bytes(size, "little" if random.rand() < 0.5 else "big")
    return bytes(found)


def noise(random: np.random.RandomState, content: bytes) -> bytes:
    """Put random bytes in the place of a part."""
    start = random.randint(len(content))
    return content[:start] + random.bytes(random.randint(1, 200)) + content[start + random.randint(200) :]


def repeat(random: np.random.RandomState, content: bytes) -> bytes:
    """Repeat a part many times."""
    start = random.randint(len(content))
    part = content[start : start + random.randint(1, 300)]
    return content[:start] + part * random.randint(2, 3000) + content[start:]


def splice(random: np.random.RandomState, content: bytes) -> bytes:
    """Go on with another photo in the middle."""
    others = list(good_photos().values())
    other = others[random.randint(len(others))]
    return content[: random.randint(len(content))] + other[random.randint(len(other)) :]


def polyglot(random: np.random.RandomState, content: bytes) -> bytes:
    """Stand a document before, behind or within the photo."""
    document = list(DOCUMENTS.values())[random.randint(len(DOCUMENTS))]
    start = STARTS[random.randint(len(STARTS))]
    at = random.randint(len(content))
    return [document + content, content + document, start + document, content[:at] + document + content[at:]][
        random.randint(4)
    ]


def parts(random: np.random.RandomState, content: bytes) -> bytes:
    """Drop, repeat, exchange or change the parts of which a PNG, RIFF or ISO file consists, with right checksums."""
    found = _png_parts(content) if content.startswith(b"\x89PNG") else _other_parts(content)
    if len(found) < 2:
        return flip(random, content)
    for _ in range(random.randint(1, 5)):
        one, other = random.randint(len(found), size=2)
        what = random.randint(4)
        if what == 0:
            found.insert(one, found[other])
        elif what == 1:
            found[one], found[other] = found[other], found[one]
        elif what == 2 and len(found) > 2:
            del found[one]
        else:
            name, body = found[one]
            found[one] = name, flip(random, body) if body else random.bytes(9)
    if content.startswith(b"\x89PNG"):
        return content[:8] + b"".join(_chunk(name, body) for name, body in found)
    big = content[4:8] == b"ftyp"
    joined = b"".join(
        struct.pack(">I", len(body) + 8) + name + body if big else name + struct.pack("<I", len(body)) + body
        for name, body in found
    )
    return joined if big else b"RIFF" + struct.pack("<I", len(joined) + 4) + b"WEBP" + joined


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _png_parts(content: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at + 12 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        found.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    return found


def _other_parts(content: bytes) -> list[tuple[bytes, bytes]]:
    big = content[4:8] == b"ftyp"
    if not big and content[:4] != b"RIFF":
        return []
    found, at = [], 0 if big else 12
    while at + 8 <= len(content):
        name, size = content[at : at + 4], content[at + 4 : at + 8]
        name, length = (size, int.from_bytes(name, "big") - 8) if big else (name, int.from_bytes(size, "little"))
        found.append((name, content[at + 8 : at + 8 + max(0, length)]))
        at += 8 + max(0, length) + (0 if big else length % 2)
    return found


DAMAGES: list[Callable[[np.random.RandomState, bytes], bytes]] = [
    cut,
    flip,
    flip,
    number,
    number,
    noise,
    repeat,
    splice,
    polyglot,
    parts,
]


def _png(width: int, height: int, body: bytes, before: bytes = b"", depth: int = 8, colours: int = 0) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _tiff(entries: list[tuple[int, int, int, int]], content: bytes = b"") -> bytes:
    rows = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + rows + bytes(4) + content


def _zeros(size: int) -> bytes:
    packer = zlib.compressobj(9)
    block = bytes(2**20)
    found = [packer.compress(block) for _ in range(size // len(block))]
    return b"".join(found) + packer.compress(bytes(size % len(block))) + packer.flush()


def bombs() -> Iterator[tuple[str, bytes]]:
    """Yield files that are made to take time, memory or an end that never comes."""
    good = good_photos()
    side = 14_000
    yield "PNG of 196 megapixels", _png(side, side, _zeros(side * (side + 1)))
    yield "PNG of 196 deep megapixels", _png(side, side, _zeros(side * (8 * side + 1)), depth=16, colours=6)
    yield "PNG of a gigapixel", _png(40_000, 40_000, _zeros(2**24))
    yield "PNG with too much data", _png(9, 9, _zeros(2**28))
    text = _chunk(b"zTXt", b"a\0\0" + _zeros(2**28))
    yield "PNG of long texts", _png(9, 9, _zeros(90), text * 4)
    yield "PNG of a long profile", _png(9, 9, _zeros(90), _chunk(b"iCCP", b"a\0\0" + _zeros(2**28)))
    yield "PNG of many texts", _png(9, 9, _zeros(90), _chunk(b"tEXt", b"a\0b") * 1_000_000)
    yield "PNG of many frames", _png(9, 9, _zeros(90), _chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0)))
    tags = b"".join(struct.pack("<HHII", tag, 7, 800_000, 8) for tag in range(65_535))
    exif = b"II*\0\x08\0\0\0" + struct.pack("<H", 65_535) + tags
    yield "PNG of endless camera data", _png(9, 9, _zeros(90), _chunk(b"eXIf", exif))
    camera = b"\xff\xe1\xff\xffExif\0\0" + bytes(65_527)
    yield "JPEG of endless camera data", good["JPEG"][:2] + camera * 400 + good["JPEG"][2:]
    yield "JPEG of endless headers", good["JPEG"][:2] + b"\xff\xe5\0\2" * 2_000_000 + good["JPEG"][2:]
    yield "JPEG of rubbish", good["JPEG"][:2] + b"\xff\xd8" + bytes(30_000_000)
    wide = bytearray(_saved(Image.new("RGB", (4096, 4096)), "JPEG", progressive=True))
    last = bytes(wide).rindex(b"\xff\xda")
    for scans in (90, 20_000):
        yield f"JPEG of {scans} passes", bytes(wide[:last] + wide[last:-2] * scans + wide[-2:])
    frame = bytes(wide).index(b"\xff\xc2")
    wide[frame + 5 : frame + 9] = struct.pack(">HH", 14_000, 14_000)
    yield "JPEG of 196 megapixels", bytes(wide)
    first = good["animated GIF"].index(b"\x21\xf9")
    yield "GIF of many frames", good["animated GIF"][:-1] + good["GIF"][first:-1] * 500 + b";"
    yield "GIF of many comments", good["GIF"][:first] + b"\x21\xfe\1a\0" * 3_000_000 + good["GIF"][first:]
    yield "GIF of a large frame", b"GIF89a\1\0\1\0\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\2\x04\1\0;"
    yield "GIF of 196 megapixels", b"GIF89a\xb0\x36\xb0\x36\0\0\0,\0\0\0\0\xb0\x36\xb0\x36\0\x08\2\x04\1\0;"
    yield "WebP of a large canvas", b"RIFF\x20\0\0\0WEBPVP8X\x0a\0\0\0\2\0\0\0\xff\x7f\0\xff\x7f\0" + bytes(16)
    yield "WebP of 90 megapixels", _saved(Image.new("RGB", (10_000, 9_000)), "WEBP", lossless=True, method=0)
    plain = [(256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (278, 4, 1, side)]
    yield "TIFF of 196 megapixels", _tiff([*plain, (273, 4, 1, 106), (279, 4, 1, 2**18)], _zeros(side * side))
    small = [(256, 4, 1, 999), (257, 4, 1, 999), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    yield "TIFF of endless strips", _tiff([*small, (273, 4, 900_000, 9), (278, 4, 1, 998)], bytes(4_000_000))
    yield (
        "TIFF of endless tiles",
        _tiff([*small, (322, 3, 1, 998), (323, 3, 1, 998), (324, 4, 900_000, 9)], bytes(4_000_000)),
    )
    yield "TIFF of endless numbers", _tiff([*small, (273, 4, 2**28, 9), (258, 3, 2**29, 9)], bytes(4_000_000))
    yield "TIFF of itself", b"II*\0\x08\0\0\0\1\0" + struct.pack("<HHII", 330, 4, 1, 8) + struct.pack("<I", 8)
    yield "TIFF of many samples", _tiff([*small, (277, 4, 1, 2**31), (273, 4, 1, 8)], bytes(999))
    yield (
        "BMP of 196 megapixels",
        b"BM" + struct.pack("<IIIIiiHHIIiiII", 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0),
    )
    run_length = struct.pack("<IIIIiiHHIIiiII", 0, 0, 1078, 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    yield "BMP of run lengths", b"BM" + run_length + bytes(1024) + b"\xff\1" * 770_000
    yield "BMP of jumps", b"BM" + run_length + bytes(1024) + b"\0\2\xff\xff" * 770_000
    for kind, settings in (("AVIF", {"speed": 10}), ("HEIF", {})):
        yield f"{kind} of 100 megapixels", _saved(Image.new("RGB", (11_600, 8_700)), kind, quality=30, **settings)
    for name in ("HEIC", "AVIF"):
        content = good[name]
        at = content.index(b"ispe")
        large = struct.pack(">II", 30_000, 30_000)
        yield f"{name} that claims a gigapixel", content[: at + 8] + large + content[at + 16 :]
        yield f"{name} of many brands", struct.pack(">I", 4_000_016) + content[4:16] + content[8:12] * 1_000_000
        yield f"{name} of boxes", content[: int.from_bytes(content[:4], "big")] + b"\0\0\0\x08free" * 500_000 + content
    yield "zeros", bytes(2**26)


def photos(count: int, seed: int) -> Iterator[Photo]:
    """Yield so many hostile photos: bombs first, then documents, then good photos that are damaged."""
    random = np.random.RandomState(seed)
    done = 0
    for name, content in bombs() if count >= 1000 else ():
        done += 1
        yield Photo("bomb", name, content)
    for name, document in list(DOCUMENTS.items())[: count // 10]:
        for ending in ENDINGS if count >= 1000 else ENDINGS[:1]:
            done += 1
            yield Photo("document", name + ending, document)
    good = list(good_photos().items())
    for number_ in range(max(0, count - done)):
        name, content = good[number_ % len(good)]
        damage = DAMAGES[random.randint(len(DAMAGES))]
        changed = damage(random, content)
        if random.rand() < 0.2:
            changed = DAMAGES[random.randint(len(DAMAGES))](random, changed or content)
        yield Photo(damage.__name__, f"{number_} {name}{ENDINGS[random.randint(len(ENDINGS))]}", changed)
