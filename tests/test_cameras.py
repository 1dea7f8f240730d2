"""Photos as cameras and telephones make them, and files that only look like photos."""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from treering.images import bounds, files, formats, jpeg

COLOURS = np.array([[[200, 30, 30], [30, 180, 40]], [[40, 50, 190], [220, 210, 60]]], np.uint8)


def quadrants(height: int = 32, width: int = 48) -> np.ndarray:
    """Four colours, so that every turn and mirror image differs."""
    return COLOURS.repeat(height // 2, 0).repeat(width // 2, 1)


def picture(height: int = 32, width: int = 48) -> Image.Image:
    return Image.fromarray(quadrants(height, width))


def saved(file: Path, image: Image.Image, kind: str, **options: Any) -> Path:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").from_pillow(image).save(file, **options)
    else:
        image.save(file, kind, **options)
    return file


def pixels_in(file: Path, size: int = 40) -> np.ndarray:
    found = files.read(file, size)
    assert isinstance(found, np.ndarray), found
    return found


def shows_the_picture(pixels: np.ndarray, within: int = 8) -> bool:
    quarter = len(pixels) // 4
    corners = pixels[quarter :: 2 * quarter, quarter :: 2 * quarter][:2, :2].astype(int)
    return bool(np.abs(corners - COLOURS.astype(int)).max() <= within)


def tiff_of(tags: dict[int, Any], content: bytes = b"", start: bytes = b"II*\0") -> bytes:
    """A TIFF file with these tags, whose first strip is `content`."""
    directory = ImageFileDirectory_v2(b"II*\0\x08\0\0\0")
    for tag, value in tags.items():
        directory[tag] = value
    directory[273] = 0  # where the strip is, counted from the end of the directory
    return start + struct.pack("<I", 8) + directory.tobytes(8) + content


# What is in a photo.


@pytest.mark.parametrize("kind", ["TIFF", "HEIF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_of_newer_kinds_are_turned_upright(tmp_path: Path, kind: str, orientation: int) -> None:
    turns = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_90"}
    turn = {**turns, 7: "TRANSVERSE", 8: "ROTATE_270"}.get(orientation)
    stored = picture().transpose(Image.Transpose[turn]) if turn else picture()
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert shows_the_picture(pixels_in(saved(tmp_path / "photo", stored, kind, exif=exif.tobytes())))


def test_orientation_is_found_in_xmp_where_exif_has_none(tmp_path: Path) -> None:
    stored = picture().transpose(Image.Transpose.ROTATE_90)
    packet = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert shows_the_picture(pixels_in(saved(tmp_path / "photo.webp", stored, "WEBP", xmp=packet, lossless=True)))


def test_each_grey_level_of_a_16_bit_tiff_becomes_its_upper_8(tmp_path: Path) -> None:
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    for name, compression in (("raw", "raw"), ("lzw", "tiff_lzw")):
        file = saved(tmp_path / name, Image.fromarray(levels), "TIFF", compression=compression)
        assert np.array_equal(pixels_in(file, 256)[..., 0], (levels >> 8).astype(np.uint8))


def test_colours_of_a_16_bit_tiff_become_8(tmp_path: Path) -> None:
    values = np.arange(2 * 2 * 3, dtype=np.uint16) * 5000
    tags = {256: 2, 257: 2, 258: (16, 16, 16), 259: 1, 262: 2, 277: 3, 278: 2, 279: values.nbytes}
    (tmp_path / "deep.tif").write_bytes(tiff_of(tags, values.tobytes()))
    expected = (values >> 8).reshape(2, 2, 3).astype(int)
    assert np.abs(pixels_in(tmp_path / "deep.tif", 2).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("mode", ["CMYK", "RGBA", "P", "L", "LA", "1", "YCbCr"])
def test_each_mode_of_tiff_becomes_rgb(tmp_path: Path, mode: str) -> None:
    pixels = pixels_in(saved(tmp_path / "photo.tif", picture().convert(mode), "TIFF"))
    assert (pixels.shape, pixels.dtype) == ((40, 40, 3), np.uint8)
    assert mode in ("L", "LA", "1", "P") or shows_the_picture(pixels)


@pytest.mark.parametrize("kind", ["TIFF", "MPO", "AVIF", "HEIF"])
def test_of_several_pictures_in_one_file_the_first_counts(tmp_path: Path, kind: str) -> None:
    other = Image.new("RGB", (48, 32), "black")
    if kind == "HEIF":
        container = pytest.importorskip("pillow_heif").from_pillow(picture())
        container.add_from_pillow(other)
        container.save(tmp_path / "photo")
    else:
        picture().save(tmp_path / "photo", kind, save_all=True, append_images=[other])
    assert shows_the_picture(pixels_in(tmp_path / "photo"))


def test_what_is_transparent_in_newer_kinds_shows_white_below(tmp_path: Path) -> None:
    for kind in ("TIFF", "AVIF", "HEIF"):
        file = saved(tmp_path / kind, Image.new("RGBA", (64, 64), (0, 0, 0, 0)), kind)
        assert pixels_in(file).min() >= 250, kind


MODES = ["RGB", "RGBA", "L", "LA", "P", "CMYK", "I;16", "1"]


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", MODES)
def test_a_large_photo_is_made_smaller_in_bands_and_looks_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = Image.fromarray(np.random.RandomState(0).randint(0, 256, (5, 7, 3)).astype(np.uint8)).resize((501, 307))
    image = Image.fromarray(np.asarray(smooth)[..., 0].astype(np.uint16) * 256) if mode == "I;16" else smooth
    image = image if mode == "I;16" else image.convert(mode)
    file = saved(tmp_path / "photo", image, "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    whole = pixels_in(file, 32)
    monkeypatch.setattr(formats, "LARGE", 100)
    monkeypatch.setattr(files, "BAND", 3000)
    reduced = pixels_in(file, 32)
    assert np.abs(reduced.astype(int) - whole).mean() < (6 if mode in ("1", "P") else 2)


def test_without_its_package_a_heic_photo_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved(tmp_path / "photo.heic", picture(), "HEIF")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    assert files.read(file, 8) == "a HEIC photo: pip install 'treering[photos]' to read it"


RAW = {
    "photo.nef": (tiff_of({254: 1, 271: "NIKON CORPORATION", 330: 100, 259: 1}), "Nikon "),
    "renamed.tif": (tiff_of({254: 1, 271: "NIKON CORPORATION", 330: 100, 259: 1}), "Nikon "),
    "photo.dng": (tiff_of({271: "Google", 50706: b"\1\4\0\0"}), "Google "),
    "photo.cr2": (b"II*\0\x10\0\0\0CR\2\0" + bytes(600), "Canon "),
    "photo.CR3": (b"\0\0\0\x18ftypcrx \0\0\0\1crx isom" + bytes(100), "Canon "),
    "photo.raf": (b"FUJIFILMCCD-RAW 0201" + bytes(100), "Fujifilm "),
    "photo.orf": (b"IIRO\x08\0\0\0" + bytes(100), "Olympus "),
    "photo.rw2": (b"IIU\0\x08\0\0\0" + bytes(100), "Panasonic "),
    "photo.arw": (tiff_of({271: "SONY", 259: 32767}), "Sony "),
    "other.tiff": (tiff_of({262: 32803, 259: 1}), ""),
    "unknown.3fr": (bytes(100), "Hasselblad "),
    "hostile.dng": (tiff_of({271: "\x1b[31mEvil", 50706: b"\1\4\0\0"}), ""),
}


@pytest.mark.parametrize("name", RAW)
def test_raw_files_are_named_as_such(tmp_path: Path, name: str) -> None:
    content, maker = RAW[name]
    (tmp_path / name).write_bytes(content)
    assert files.read(tmp_path / name, 8) == f"a RAW file of a {maker}camera: export it as JPEG first"


def test_a_jpeg_with_a_raw_files_name_is_a_jpeg(tmp_path: Path) -> None:
    assert shows_the_picture(pixels_in(saved(tmp_path / "photo.nef", picture(), "JPEG", quality=95)))


# What would take too long, too much memory, or never end.


def reason(tmp_path: Path, content: bytes, name: str = "photo") -> str:
    (tmp_path / name).write_bytes(content)
    started = time.process_time()  # other programs may have the processors meanwhile
    said = files.read(tmp_path / name, 16)
    assert time.process_time() - started < 8
    assert isinstance(said, str)
    return said


def progressive(scans: int, side: int = 64) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    buffer = io.BytesIO()
    picture(side, side).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:last] + content[last:-2] * scans + b"\xff\xd9"


def test_a_jpeg_in_endlessly_many_passes_is_refused(tmp_path: Path) -> None:
    content = progressive(1)
    assert jpeg.passes(io.BytesIO(content)) == (content.count(b"\xff\xda"), 3)
    assert "damaged image (a JPEG in 5,00" in reason(tmp_path, progressive(5000))
    (tmp_path / "good").write_bytes(content)
    assert shows_the_picture(pixels_in(tmp_path / "good"), 16)


def test_a_plain_jpeg_takes_one_pass_whatever_stands_behind_it() -> None:
    for options in ({}, {"subsampling": 0}, {"qtables": "web_high"}):
        buffer = io.BytesIO()
        picture().save(buffer, "JPEG", **options)
        assert jpeg.passes(io.BytesIO(buffer.getvalue() + progressive(9))) == (1, 3)


def test_lists_without_end_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    picture().save(buffer, "PNG")
    chunk = struct.pack(">I", 0) + b"prVt" + struct.pack(">I", zlib.crc32(b"prVt"))
    assert "does not come to an end" in reason(tmp_path, buffer.getvalue()[:33] + chunk * 1_000_000)
    junk = b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(2**25)
    assert "damaged image" in reason(tmp_path, junk)
    repeated = tiff_of({256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 278: 7, 279: 64})
    entry = struct.pack("<HHII", 273, 4, 60_000, 8)
    at = repeated.index(struct.pack("<HH", 273, 4))
    assert "lists that do not end" in reason(tmp_path, repeated[:at] + entry + repeated[at + 12 :] + bytes(240_000))
    every = b"".join(struct.pack("<HHII", tag, 7, 500_000, 8) for tag in range(1000, 3000))
    tags = b"II*\0\x08\0\0\0" + struct.pack("<H", 2000) + every + bytes(500_000)
    assert "lists that do not end" in reason(tmp_path, tags)


def test_a_tiff_of_numbers_that_are_no_grey_levels_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(buffer, "TIFF")
    assert reason(tmp_path, buffer.getvalue()) == "a TIFF with numbers of 32 bits: save it with 8 or 16 bits"


@pytest.mark.parametrize(
    "content",
    [
        b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\xff\x00" * 2,
        b"RIFF\0\0\0\0WEBPVP8L\x0a\0\0\0\x2f\xff\xff\xff\x0f" + bytes(20),
        b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\x08\0;",
        tiff_of({256: 60_000, 257: 60_000, 258: 8, 259: 5, 262: 1}),
    ],
    ids=["WebP", "lossless WebP", "GIF", "TIFF"],
)
def test_a_tiny_file_that_claims_many_pixels_is_refused(tmp_path: Path, content: bytes) -> None:
    assert reason(tmp_path, content) == "too large to decode"


def test_damage_is_a_reason_and_not_a_line_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], recwarn: Any
) -> None:
    buffer = io.BytesIO()
    noise = np.random.RandomState(0).randint(0, 256, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(noise).save(buffer, "TIFF", compression="tiff_adobe_deflate")
    content = bytearray(buffer.getvalue())
    content[4000:4100] = bytes(100)
    assert "damaged image" in reason(tmp_path, bytes(content))
    assert capfd.readouterr() == ("", "")


def test_pipes_devices_and_sockets_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    for name in ("pipe.jpg", "zero.jpg"):
        assert files.read(tmp_path / name, 8) == "not a regular file"
    saved(tmp_path / "photo.png", picture(), "PNG")
    (tmp_path / "link.png").symlink_to(tmp_path / "photo.png")
    assert shows_the_picture(pixels_in(tmp_path / "link.png"), 0)


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = saved(tmp_path / "photo.png", picture(), "PNG")
    status = file.stat()
    file.unlink()
    os.mkfifo(file)
    monkeypatch.setattr(Path, "stat", lambda path: status)
    assert files.read(file, 8) == "not a regular file"


def test_photos_that_need_much_memory_take_turns() -> None:
    memory, together, most = bounds.Memory(100), 0, 0
    lock = threading.Lock()

    def use(size: int) -> None:
        nonlocal together, most
        with memory.taken(size):
            with lock:
                together += min(size, 100)
                most = max(most, together)
            time.sleep(0.01)
            with lock:
                together -= min(size, 100)

    threads = [threading.Thread(target=use, args=(size,)) for size in (30, 60, 500, 40, 20, 100, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert 30 <= most <= 100


def test_a_progressive_jpeg_is_known_to_need_memory_for_all_of_it(tmp_path: Path) -> None:
    side = 512
    needed = {}
    for kind in (False, True):
        buffer = io.BytesIO()
        picture(side, side).save(buffer, "JPEG", progressive=kind)
        _, needed[kind] = formats.opened(io.BytesIO(buffer.getvalue()), ".jpg", 16)
    assert needed[True] - needed[False] == 6 * side * side
    assert needed[False] < 4 * side * side, "it is decoded at a fraction of its size"
