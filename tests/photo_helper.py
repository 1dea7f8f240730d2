"""Folders of tiny photos, good and bad, and the `treering` command run within this process."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from treering import cli

TINY = [
    *("--backbone", "small", "--memory", "6", "--device", "cpu"),
    *("--set", "training.epochs=1", "--set", "training.drop_at=[]"),
    *("--set", "balanced.epochs=1", "--set", "balanced.drop_at=[]"),
    *("--set", "augmentation.crop_size=16", "--set", "run.image_size=20", "--set", "optimizer.batch_size=8"),
]
"""Arguments of `treering learn` for a new model: a step takes a fraction of a second."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def refused(self, *fragments: str) -> None:
        """Bad input is exit code 2 and one line that names what is wrong."""
        assert self.code == 2, self
        assert self.err.startswith("treering: "), self
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        for fragment in fragments:
            assert fragment in self.err, (fragment, self)


def command(*arguments: object) -> Finished:
    """Run `treering ARGUMENTS`, with stdout, stderr and warnings as a program has them."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", write_through=True)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["treering", *map(str, arguments)]),
        warnings.catch_warnings(),
    ):
        warnings.showwarning = lambda *details: err.write(warnings.formatwarning(*details[:4]))  # pytest's keeps them
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # as treering.images.folders has it
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Finished(code, *printed)


def pixels_of(name: str, seed: int, side: int = 24) -> np.ndarray:
    """A photo of the class: noise around the class's own colour, H x W x 3."""
    key = sum((index + 1) * ord(letter) for index, letter in enumerate(name))
    colour = np.random.RandomState(key).randint(40, 216, 3)
    return (colour + np.random.RandomState(seed).randint(-30, 31, (side, side, 3))).clip(0, 255).astype(np.uint8)


def write_photos(folder: Path, counts: Mapping[str, int], seed: int = 0, suffix: str = "png") -> Path:
    """FOLDER/<class>/<number>.png for each class; returns the folder."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            pixels = pixels_of(name, 1000 * seed + number)
            Image.fromarray(pixels).save(folder / name / f"{number:03d}.{suffix}")
    return folder


def encoded(kind: str, seed: int = 0, **settings: object) -> bytes:
    """A photo as a file of this kind."""
    buffer = io.BytesIO()
    Image.fromarray(pixels_of("x", seed)).save(buffer, kind, **settings)
    return buffer.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """A tiny PNG file that claims to be of any size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


NOT_AN_IMAGE = "not a JPEG, PNG, WebP, AVIF, HEIC, TIFF, BMP or GIF image"
BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.jpg": (lambda: b"", "empty file"),
    "text.png": (lambda: b"these are words, not an image\n" * 9, NOT_AN_IMAGE),
    "notes.txt": (lambda: "Grüße".encode(), NOT_AN_IMAGE),
    "zeros.jpg": (lambda: bytes(5000), NOT_AN_IMAGE),
    "one byte.gif": (lambda: b"G", NOT_AN_IMAGE),
    "page.pdf": (lambda: b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", NOT_AN_IMAGE),
    "drawing.svg": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", NOT_AN_IMAGE),
    "renamed.jpg": (lambda: b"PK\x03\x04" + bytes(range(200)), NOT_AN_IMAGE),
    "cut.tiff": (lambda: encoded("TIFF", compression="tiff_lzw")[:700], ""),
    "fax.tiff": (lambda: encoded("TIFF", compression="lzma"), "a TIFF with the compression lzma"),
    "start only.jpg": (lambda: encoded("JPEG")[:2], NOT_AN_IMAGE),
    "cut.jpg": (lambda: encoded("JPEG")[:300], ""),
    "cut.png": (lambda: encoded("PNG")[:200], ""),
    "cut.webp": (lambda: encoded("WEBP")[:60], ""),
    "cut.gif": (lambda: encoded("GIF")[:700], ""),
    "cut.bmp": (lambda: encoded("BMP")[:200], ""),
    "damaged.png": (lambda: encoded("PNG")[:100] + b"?" * 50 + encoded("PNG")[150:], ""),
    "header only.png": (lambda: encoded("PNG")[:33], ""),
    "huge.png": (lambda: png_of_size(60_000, 60_000), "too large to decode"),
    "claims more.png": (lambda: png_of_size(900, 900), ""),
    "no pixels.png": (lambda: png_of_size(0, 0), ""),
}
"""Name of a file -> its content, and why it cannot be read (where the decoder does not say it in its own words)."""


def write_bad(folder: Path, name: str) -> Path:
    """One of BAD_FILES in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(BAD_FILES[name][0]())
    return folder / name


def unreadable(*names: str) -> mock._patch:
    """Within it, files of these names cannot be opened: root may read everything, users may not."""
    opened = open

    def guarded(file: object, *arguments: object, **settings: object) -> object:
        if isinstance(file, str | bytes | os.PathLike) and os.path.basename(os.fsdecode(file)) in names:  # noqa: PTH119
            raise PermissionError(13, "Permission denied", file)
        return opened(file, *arguments, **settings)  # type: ignore[call-overload]

    return mock.patch("builtins.open", guarded)
