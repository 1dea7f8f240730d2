"""Reading image files: every kind people have becomes the pixels they see, anything else a reason."""

from __future__ import annotations

import io
import os
import struct
import tempfile
import threading
import time
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from photo_helper import BAD_FILES, encoded, png_of_size, unreadable, write_bad, write_photos
from PIL import Image

from treering import TreeringError
from treering.images import files, folders, formats
from treering.runtime.pixels import PixelFile
from treering.words import shown

COLOURS = np.array([[[200, 30, 30], [30, 180, 40]], [[40, 50, 190], [220, 210, 60]]], np.uint8)


def quadrants(height: int = 32, width: int = 48) -> np.ndarray:
    """Four colours, so that every turn and mirror image differs."""
    return COLOURS.repeat(height // 2, 0).repeat(width // 2, 1)


def corners(pixels: np.ndarray) -> np.ndarray:
    """The colours in the middles of the quadrants, 2 x 2 x 3."""
    quarter = len(pixels) // 4
    return pixels[quarter :: 2 * quarter, quarter :: 2 * quarter][:2, :2].astype(int)


def written(folder: Path, image: Image.Image, kind: str, **options: Any) -> Path:
    file = folder / f"image.{kind.lower()}"
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").from_pillow(image).save(file, **options)
    else:
        image.save(file, kind, **options)
    return file


def pixels_in(file: Path, size: int) -> np.ndarray:
    """What a file that can be read shows."""
    found = files.read(file, size)
    assert isinstance(found, np.ndarray), found
    return found


def close_to(pixels: np.ndarray, expected: np.ndarray, within: int) -> None:
    assert np.abs(corners(pixels) - expected.astype(int)).max() <= within


KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "JPEG": ("JPEG", {"quality": 95}, 6),
    "progressive JPEG": ("JPEG", {"quality": 95, "progressive": True}, 6),
    "phone's JPEG": ("MPO", {"quality": 95, "save_all": True, "append_images": [Image.new("RGB", (48, 32))]}, 6),
    "PNG": ("PNG", {}, 0),
    "WebP": ("WEBP", {"quality": 95}, 8),
    "lossless WebP": ("WEBP", {"lossless": True}, 0),
    "BMP": ("BMP", {}, 0),
    "GIF": ("GIF", {}, 0),
    "AVIF": ("AVIF", {"quality": 95}, 6),
    "HEIC": ("HEIF", {"quality": 95}, 6),
    "TIFF": ("TIFF", {}, 0),
    "TIFF by LZW": ("TIFF", {"compression": "tiff_lzw"}, 0),
    "TIFF by ZIP": ("TIFF", {"compression": "tiff_adobe_deflate"}, 0),
    "TIFF by PackBits": ("TIFF", {"compression": "packbits"}, 0),
    "TIFF by JPEG": ("TIFF", {"compression": "jpeg", "quality": 95}, 8),
}


@pytest.mark.parametrize(("kind", "options", "within"), KINDS.values(), ids=KINDS)
def test_each_kind_of_file_is_read(tmp_path: Path, kind: str, options: dict[str, Any], within: int) -> None:
    file = written(tmp_path, Image.fromarray(quadrants()), kind, **options)
    pixels = pixels_in(file, 40)
    assert (pixels.shape, pixels.dtype) == ((40, 40, 3), np.uint8)
    close_to(pixels, COLOURS, within)


@pytest.mark.parametrize(("kind", "options", "within"), KINDS.values(), ids=KINDS)
def test_the_name_of_a_file_says_nothing_about_its_kind(
    tmp_path: Path, kind: str, options: dict[str, Any], within: int
) -> None:
    file = written(tmp_path, Image.fromarray(quadrants()), kind, **options)
    for name in ("no suffix", "wrong.txt", "IMAGE.JPG"):
        close_to(pixels_in(file.rename(tmp_path / name), 40), COLOURS, within)
        file = tmp_path / name


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(tmp_path: Path, kind: str) -> None:
    later = [Image.new("RGB", (48, 32), colour) for colour in ("black", "white")]
    options = {"lossless": True} if kind == "WEBP" else {}
    first = Image.fromarray(quadrants())
    file = written(tmp_path, first, kind, save_all=True, append_images=later, duration=100, **options)
    with Image.open(file) as saved:
        assert saved.n_frames == 3
    close_to(pixels_in(file, 40), COLOURS, 0)


# What a camera stores so that, turned as its orientation says, the picture is upright.
STORED: dict[int, Any] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright, 1),  # to be turned clockwise
    7: lambda upright: upright[::-1, ::-1].transpose(1, 0, 2),
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("scale", [1, 8], ids=["as it is", "decoded at a fraction"])
def test_images_are_turned_upright(tmp_path: Path, kind: str, orientation: int, scale: int) -> None:
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](quadrants(32 * scale, 48 * scale))))
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = written(tmp_path, stored, kind, exif=exif, quality=95)
    close_to(pixels_in(file, 24), COLOURS, 8)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_none(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    close_to(pixels_in(written(tmp_path, Image.fromarray(quadrants()), "PNG", exif=exif), 40), COLOURS, 0)


DAMAGED = {
    "nothing": b"Exif\0\0",
    "no entries": b"Exif\0\0MM\0*\0\0\xff\xff",
    "entries that end too early": b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 9,
    "upright, then a text that lies beyond the end": b"Exif\0\0II*\0\x08\0\0\0"
    + struct.pack("<HHHIHHHHIII", 2, 0x0112, 3, 1, 1, 0, 0x9003, 2, 20, 9999, 0),
}


@pytest.mark.parametrize("filtered", ["error", "ignore"])
@pytest.mark.parametrize("exif", DAMAGED.values(), ids=DAMAGED)
def test_damaged_camera_data_does_not_spoil_the_picture_however_strict_the_warnings_are(
    tmp_path: Path, exif: bytes, filtered: Any
) -> None:
    file = written(tmp_path, Image.fromarray(quadrants()), "JPEG", exif=exif, quality=95)
    with warnings.catch_warnings():
        warnings.simplefilter(filtered)
        close_to(pixels_in(file, 40), COLOURS, 6)


@pytest.mark.parametrize("filtered", ["error", "ignore"])
def test_a_photo_is_turned_although_its_camera_data_are_damaged_further_on(tmp_path: Path, filtered: Any) -> None:
    stored = Image.fromarray(np.ascontiguousarray(STORED[6](quadrants())))
    exif = list(DAMAGED.values())[-1].replace(struct.pack("<HIHH", 3, 1, 1, 0), struct.pack("<HIHH", 3, 1, 6, 0))
    file = written(tmp_path, stored, "JPEG", exif=exif, quality=95)
    with warnings.catch_warnings():
        warnings.simplefilter(filtered)
        close_to(pixels_in(file, 24), COLOURS, 8)


def test_reading_leaves_the_filters_of_warnings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_photos(tmp_path, {"cat": 3, "dog": 3})
    before, seen = list(warnings.filters), []
    read = files.read
    monkeypatch.setattr(files, "read", lambda *of: (seen.append(list(warnings.filters)), read(*of))[1])
    folders.load(folders.scan(folder), 8)
    assert seen == [before] * 6
    assert list(warnings.filters) == before


def grey(pixels: np.ndarray) -> np.ndarray:
    """ITU-R 601-2, as three equal channels."""
    return (pixels @ [0.299, 0.587, 0.114]).round()[..., None].repeat(3, -1)


MODES: dict[str, tuple[str, str, Any, int]] = {
    "grey": ("PNG", "L", grey, 1),
    "grey JPEG": ("JPEG", "L", grey, 4),
    "grey with alpha": ("PNG", "LA", grey, 1),
    "palette": ("PNG", "P", lambda pixels: pixels, 26),
    "palette BMP": ("BMP", "P", lambda pixels: pixels, 26),
    "alpha": ("PNG", "RGBA", lambda pixels: pixels, 0),
    "alpha WebP": ("WEBP", "RGBA", lambda pixels: pixels, 8),
    "print colours": ("JPEG", "CMYK", lambda pixels: pixels, 8),
    "black and white": ("PNG", "1", None, 0),
}


@pytest.mark.parametrize(("kind", "mode", "seen", "within"), MODES.values(), ids=MODES)
def test_each_mode_becomes_rgb(tmp_path: Path, kind: str, mode: str, seen: Any, within: int) -> None:
    options = {"quality": 95} if kind in ("JPEG", "WEBP") else {}
    pixels = pixels_in(written(tmp_path, Image.fromarray(quadrants()).convert(mode), kind, **options), 32)
    assert (pixels.shape, pixels.dtype) == ((32, 32, 3), np.uint8)
    if seen:
        close_to(pixels, seen(COLOURS), within)
    else:
        assert np.array_equal(pixels[..., 0], pixels[..., 1])


def test_every_grey_level_of_16_bits_becomes_its_upper_8(tmp_path: Path) -> None:
    levels = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    pixels = pixels_in(written(tmp_path, Image.fromarray(levels), "PNG"), 256)
    assert np.array_equal(pixels, (levels >> 8).astype(np.uint8)[..., None].repeat(3, -1))


def test_colours_of_16_bits_become_8(tmp_path: Path) -> None:
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    values = np.arange(2 * 2 * 3, dtype=np.uint16).reshape(2, 2, 3) * 5000
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    content = chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows))
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content + chunk(b"IEND", b""))
    assert np.abs(pixels_in(tmp_path / "deep.png", 2).astype(int) - (values >> 8)).max() <= 1


@given(st.lists(st.integers(0, 255), min_size=4, max_size=4))
@settings(max_examples=60)
def test_what_is_transparent_shows_white_below(rgba: list[int]) -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (5, 3), tuple(rgba)).save(buffer, "PNG")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "glass")
        file.write_bytes(buffer.getvalue())
        pixels = pixels_in(file, 4).astype(float)
    share = rgba[3] / 255
    assert np.abs(pixels - (np.array(rgba[:3]) * share + 255 * (1 - share))).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_colour_of_a_palette_is_white(tmp_path: Path, kind: str) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(0, (0, 0, 4, 8))
    pixels = pixels_in(written(tmp_path, image, kind, transparency=0), 8)
    assert pixels[4, 1].tolist() == [255, 255, 255]
    assert pixels[4, 6].tolist() == [200, 100, 50]


def test_a_transparent_colour_of_a_grey_or_rgb_png_is_white(tmp_path: Path) -> None:
    for mode, key, other in (("L", 7, 90), ("RGB", (1, 2, 3), (90, 90, 90))):
        image = Image.new(mode, (8, 8), other)
        image.paste(key, (0, 0, 4, 8))
        pixels = pixels_in(written(tmp_path, image, "PNG", transparency=key), 8)
        assert (pixels[4, 1].tolist(), pixels[4, 6].tolist()) == ([255] * 3, [90] * 3)


@given(
    st.integers(1, 70), st.integers(1, 70), st.integers(1, 40), st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"])
)
@settings(max_examples=60)
def test_any_shape_becomes_the_square_asked_for(width: int, height: int, size: int, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        image = Image.new("RGB", (width, height), (120, 130, 140))
        pixels = pixels_in(written(Path(folder), image, kind), size)
    assert (pixels.shape, pixels.dtype) == ((size, size, 3), np.uint8)
    assert np.abs(pixels.astype(int) - [120, 130, 140]).max() <= 8


@pytest.mark.parametrize("shape", [(200, 20), (20, 200), (64, 64)])
def test_nothing_of_the_picture_is_cut_off(tmp_path: Path, shape: tuple[int, int]) -> None:
    close_to(pixels_in(written(tmp_path, Image.fromarray(quadrants(*shape)), "PNG"), 32), COLOURS, 0)


def test_an_image_of_the_size_asked_for_keeps_every_pixel(tmp_path: Path) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (17, 17, 3)).astype(np.uint8)
    assert np.array_equal(pixels_in(written(tmp_path, Image.fromarray(pixels), "PNG"), 17), pixels)


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.filterwarnings("default")
def test_what_is_no_image_is_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    said = files.read(write_bad(tmp_path, name), 20)
    assert isinstance(said, str)
    assert said
    assert "\n" not in said
    assert BAD_FILES[name][1] in said


def test_what_cannot_be_opened_is_refused_with_the_systems_reason(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "secret.jpg").write_bytes(encoded("JPEG"))
    for name, reason in {
        "folder.jpg": "a folder that cannot be looked into",
        "loop.jpg": "Too many levels of symbolic links",
        "gone.jpg": "No such file",
        "missing.jpg": "No such file",
        "secret.jpg": "Permission denied",
        "n" * 300: "File name too long",
    }.items():
        with unreadable("secret.jpg"):
            assert reason in files.read(tmp_path / name, 20)


def test_large_photos_are_read_and_bombs_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, Image.new("RGB", (30, 30)), "PNG")
    monkeypatch.setattr(formats, "MOST_PIXELS", 900)
    assert pixels_in(file, 10).shape == (10, 10, 3)
    monkeypatch.setattr(formats, "MOST_PIXELS", 899)
    assert files.read(file, 10) == "too large to decode"


GOOD = {kind: encoded(kind) for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF")}


@given(
    st.sampled_from(sorted(GOOD)),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=6)), max_size=5),
    st.floats(0, 1),
    st.sampled_from(["keep", "cut", "double"]),
)
@settings(max_examples=200)
@pytest.mark.filterwarnings("default")
def test_damaged_bytes_are_pixels_or_a_reason(
    kind: str, changes: list[tuple[float, bytes]], end: float, what: str
) -> None:
    content = bytearray(GOOD[kind])
    for place, new in changes:
        start = int(place * (len(content) - 1))
        content[start : start + len(new)] = new
    if what == "cut":
        content = content[: int(end * len(content))]
    elif what == "double":
        content += content[int(end * len(content)) :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "damaged")
        file.write_bytes(content)
        found = files.read(file, 12)
        assert found if isinstance(found, str) else (found.shape, found.dtype) == ((12, 12, 3), np.uint8)


@given(
    st.binary(max_size=400), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF"])
)
@settings(max_examples=100)
@pytest.mark.filterwarnings("default")
def test_any_bytes_are_pixels_or_a_reason(content: bytes, start: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "bytes")
        file.write_bytes(start + content)
        found = files.read(file, 8)
        assert found if isinstance(found, str) else found.shape == (8, 8, 3)


# What is in a folder.


def names_of(found: folders.ImageFolder) -> dict[str, list[str]]:
    return {name: [file.name for file in paths] for name, paths in found.classes.items()}


def test_classes_and_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/2.png", "b/10.png", "a/z.jpg", "a/sub/deep/y.jpg", "c c/ü.gif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = folders.scan(tmp_path)
    assert names_of(found) == {"a": ["y.jpg", "z.jpg"], "b": ["10.png", "2.png"], "c c": ["ü.gif"]}
    assert list(found.classes) == ["a", "b", "c c"]
    assert found.skipped == []


def test_what_is_left_out_is_named_and_clutter_goes_without_saying(tmp_path: Path) -> None:
    write_photos(tmp_path, {"cat": 1, ".cache": 1, "cat/.git": 1})
    (tmp_path / "empty").mkdir()
    (tmp_path / "only clutter").mkdir()
    for name in ("loose.jpg", "Thumbs.db", ".DS_Store", "cat/desktop.ini", "cat/.hidden.jpg", "only clutter/Thumbs.db"):
        (tmp_path / name).write_bytes(b"x")
    found = folders.scan(tmp_path)
    assert names_of(found) == {"cat": ["000.png"]}
    assert sorted((path.name, reason) for path, reason in found.skipped) == [
        (".cache", "hidden folder"),
        ("empty", "no files in this class folder"),
        ("loose.jpg", "not in a class folder"),
        ("only clutter", "no files in this class folder"),
    ]


def test_a_name_is_one_class_however_its_accents_are_spelt(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Löwe") for form in ("NFC", "NFD"))
    write_photos(tmp_path, {composed: 2, decomposed: 3})
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("this file system has one spelling")
    found = folders.scan(tmp_path)
    assert {name: len(paths) for name, paths in found.classes.items()} == {composed: 5}


def test_links_are_followed_once(tmp_path: Path) -> None:
    write_photos(tmp_path / "elsewhere", {"owls": 2})
    folder = write_photos(tmp_path / "photos", {"cat": 2})
    (folder / "owl").symlink_to(tmp_path / "elsewhere" / "owls")
    (folder / "cat" / "again").symlink_to(folder / "cat")
    (folder / "cat" / "up").symlink_to(folder)
    found = folders.scan(folder)
    assert {name: len(paths) for name, paths in found.classes.items()} == {"cat": 2, "owl": 2}
    assert {reason for _, reason in found.skipped} == {"a link back to a folder already read"}


def test_links_lead_to_class_folders_and_photos_and_to_no_other_folders(tmp_path: Path) -> None:
    private = write_photos(tmp_path / "private", {"deep": 2, "other": 1})
    folder = write_photos(tmp_path / "photos", {"cat": 2, "dog": 1})
    (folder / "owl").symlink_to(private / "deep")
    (folder / "cat" / "photo.png").symlink_to(private / "deep" / "000.png")
    (folder / "cat" / "away").symlink_to(private)
    (folder / "cat" / "beside").symlink_to(folder / "dog")
    (private / "deep" / "away").symlink_to(private / "other")
    found = folders.scan(folder)
    assert names_of(found) == {
        "cat": ["000.png", "001.png", "photo.png"],
        "dog": ["000.png"],
        "owl": ["000.png", "001.png"],
    }
    links = [folder / "cat" / "away", folder / "cat" / "beside", folder / "owl" / "away"]
    assert [path for path, reason in found.skipped if reason == files.IS_LINK] == links
    assert (
        folders.files_below(folder / "cat")
        == [folder / "cat" / name for name in ("000.png", "001.png", "photo.png")] + links[:2]
    )
    assert files.read(links[0], 8) == files.IS_LINK


def test_a_link_to_itself_is_left_out(tmp_path: Path) -> None:
    folder = write_photos(tmp_path, {"cat": 1})
    (folder / "loop").symlink_to(folder / "loop")
    found = folders.scan(folder)
    assert names_of(found) == {"cat": ["000.png"]}
    assert [path.name for path, _ in found.skipped] == ["loop"]


def test_a_class_folder_that_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path, {"cat": 1, "secret": 1})
    scandir = os.scandir

    def guarded(place: Any) -> Any:
        if Path(place).name == "secret":
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", guarded)
    found = folders.scan(tmp_path)
    assert names_of(found) == {"cat": ["000.png"]}
    assert (tmp_path / "secret", "Permission denied") in found.skipped
    with pytest.raises(TreeringError, match=r"cannot read .*secret: Permission denied"):
        folders.scan(tmp_path / "secret")


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda folder: None, "does not exist"),
        (lambda folder: folder.write_bytes(b"x"), "is a file"),
        (lambda folder: folder.mkdir(), "has no class folders with images"),
        (lambda folder: (folder / "cat").mkdir(parents=True), "has no class folders with images"),
        (lambda folder: write_photos(folder, {".": 3}), "holds 3 files but no class folders"),
    ],
    ids=["missing", "a file", "empty", "an empty class only", "files only"],
)
def test_a_folder_without_classes_is_refused(tmp_path: Path, make: Any, fragment: str) -> None:
    make(tmp_path / "photos")
    with pytest.raises(TreeringError, match=fragment) as refused:
        folders.scan(tmp_path / "photos")
    assert str(tmp_path / "photos") in str(refused.value)


# What is in its files.


@pytest.mark.parametrize("at_once", [1, 3, 256])
def test_loaded_images_are_those_of_the_files_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(folders, "AT_ONCE", at_once)
    folder = write_photos(tmp_path, {"cat": 4, "dog": 3})
    write_bad(folder / "cat", "empty.jpg")
    write_bad(folder / "eel", "text.png")
    steps: list[tuple[int, int]] = []
    found = folders.scan(folder)
    loaded = folders.load(found, 20, progress=lambda done, total: steps.append((done, total)))
    good = [file for name in ("cat", "dog") for file in found.classes[name] if file.suffix == ".png"]
    expected = np.stack([pixels_in(file, 20) for file in good])
    assert torch.equal(loaded.images.tensor(), torch.from_numpy(expected).movedim(-1, 1))
    assert loaded.labels == ["cat"] * 4 + ["dog"] * 3
    assert [(path.name, reason) for path, reason in loaded.skipped] == [
        ("empty.jpg", "empty file"),
        ("text.png", BAD_FILES["text.png"][1]),
        ("eel", "no image of this class can be read"),
    ]
    assert steps == [(min(9, start + at_once), 9) for start in range(0, 9, at_once)]


def test_a_folder_without_a_readable_image_gives_none(tmp_path: Path) -> None:
    write_bad(tmp_path / "cat", "empty.jpg")
    loaded = folders.load(folders.scan(tmp_path), 20)
    assert (len(loaded.images), loaded.labels, loaded.images.shape) == (0, [], (0, 3, 20, 20))


def test_no_more_than_a_few_images_wait_to_be_put_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "AT_ONCE", 2)
    read, lock, most = files.read, threading.Lock(), 0
    waiting = 0

    def counted(path: Path, *size: int) -> np.ndarray | str:
        nonlocal waiting, most
        with lock:
            waiting += 1
            most = max(most, waiting)
        return read(path, *size)

    append = PixelFile.append

    def put_away(file: Any, part: Any) -> Any:
        nonlocal waiting
        waiting -= len(part)
        return append(file, part)

    monkeypatch.setattr(files, "read", counted)
    monkeypatch.setattr(PixelFile, "append", put_away)
    folders.load(folders.scan(write_photos(tmp_path, {"cat": 7, "dog": 4})), 8)
    assert (waiting, most) == (0, 2)


@given(st.text() | st.binary().map(os.fsdecode))
@settings(max_examples=60)
def test_any_name_can_be_printed(name: str) -> None:
    printed = shown(name)
    assert printed.encode().decode() == printed
    assert not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in printed)
    if name.isalnum() and len(name) < 100:
        assert printed == name


def in_runs(width: int, height: int, runs: bytes) -> bytes:
    """A BMP with run-length compression, in grey."""
    palette = b"".join(bytes([grey, grey, grey, 0]) for grey in range(256))
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return (
        struct.pack("<2sIHHI", b"BM", 14 + 40 + len(palette) + len(runs), 0, 0, 54 + len(palette))
        + header
        + palette
        + runs
    )


def test_a_bmp_in_runs_is_read_unless_it_is_large(tmp_path: Path) -> None:
    """Pillow takes 50 seconds for a line of 199 million pixels that ends after one."""
    file = tmp_path / "a.bmp"
    file.write_bytes(in_runs(8, 8, b"\x08\x50\0\0" * 8 + b"\0\1"))
    assert (pixels_in(file, 8) == 0x50).all()
    file.write_bytes(in_runs(199_000_000, 1, b"\1\0\0\0\0\1"))
    start = time.process_time()
    assert files.read(file, 8) == "a large BMP with run-length compression: save it without"
    assert time.process_time() - start < 5


def test_a_tiny_file_of_many_pixels_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_of_size(2**31 - 1, 2**31 - 1))
    assert files.read(tmp_path / "bomb.png", 20) == "too large to decode"
