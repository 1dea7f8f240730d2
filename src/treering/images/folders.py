"""Image files to pixels: whatever people have in their folders, as uint8 squares of one size, or a reason why not.

A folder of images has one folder per class: FOLDER/<class>/<image>, with more folders within a class if you like.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from treering.errors import TreeringError
from treering.runtime import files
from treering.runtime.pixels import PixelFile, StoredImages

logger = logging.getLogger(__name__)

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF")
WORKERS = min(8, os.cpu_count() or 1)
"""Files decoded at the same time: each may be a large photo."""
_FILTER, _decoders, _silence = threading.Lock(), 0, contextlib.ExitStack()
"""Of the warnings filter: who may change it, how many rely on it, what puts it back."""
BACK = "a link back to a folder already read"
MODEL = "a model, not a class"
TEST_FOLDERS = ("val", "test", "validation")
"""What people call the folder of test images beside the one called train."""
CLUTTER = ("Thumbs.db", "desktop.ini")
"""Files that systems leave in folders; they and hidden files go without saying."""
AT_ONCE = 256
"""Images decoded before they are put away: bounds the memory."""
BACKGROUND = (255, 255, 255)
"""What shows through where an image is transparent."""


@contextlib.contextmanager
def decoding() -> Iterator[ThreadPoolExecutor]:
    """Threads to read images in: decoding does not hold the interpreter's lock.

    Pillow's warnings are of no use to anyone: photos of 90 to 180 megapixels are fine, damaged camera data is too. All
    threads share the filter of warnings, so the first that decodes sets it and the last puts it back.
    """
    global _decoders
    with _FILTER:
        if not _decoders:
            _silence.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _decoders += 1
    try:
        with ThreadPoolExecutor(WORKERS) as pool:
            yield pool
    finally:
        with _FILTER:
            _decoders -= 1
            if not _decoders:
                _silence.close()


class UnreadableError(Exception):
    """An image file that cannot be used; the message says why."""


def read(path: Path, size: int, channels: int = 3) -> np.ndarray:
    """The image as `size` x `size` x `channels`, uint8: upright, on white if transparent, of a GIF the first frame."""
    try:
        if path.is_dir():
            raise UnreadableError("a folder that cannot be looked into")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("not a regular file")
        if status.st_size == 0:
            raise UnreadableError("empty file")
        with Image.open(path, formats=FORMATS) as image:
            image.draft("RGB", (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
            square = _square(opaque(upright(image)), size)
            return np.asarray(square) if channels == 3 else np.asarray(square.convert("L"))[..., None]
    except (UnreadableError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UnreadableError("not a JPEG, PNG, WebP, BMP or GIF image") from None
    except Image.DecompressionBombError:
        raise UnreadableError("too large to decode") from None
    except OSError as error:
        raise UnreadableError(error.strerror or str(error)) from None
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise UnreadableError(f"damaged image ({str(error) or type(error).__name__})") from None


def upright(image: Image.Image) -> Image.Image:
    """Turned as the camera says; itself, not a copy, if it is upright already."""
    image.load()
    try:
        return image if image.getexif().get(ExifTags.Base.Orientation, 1) == 1 else ImageOps.exif_transpose(image)
    except Exception:  # a damaged EXIF block does not spoil the picture
        return image


def opaque(image: Image.Image) -> Image.Image:
    """In RGB, on white where it is transparent."""
    if image.mode == "I" or image.mode.startswith("I;16"):  # grey, 16 bits
        return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        pixels = image.convert("RGBA")
        flat = Image.new("RGB", pixels.size, BACKGROUND)
        flat.paste(pixels, mask=pixels.getchannel("A"))
        return flat
    return image if image.mode == "RGB" else image.convert("RGB")


def _square(image: Image.Image, size: int) -> Image.Image:
    """Squeezed to a square rather than cut, so that nothing of the subject is lost."""
    return image if image.size == (size, size) else image.resize((size, size), Image.Resampling.BILINEAR)


@dataclass
class ImageFolder:
    """What is in a folder of images, before any is decoded."""

    classes: dict[str, list[Path]] = field(default_factory=dict)
    """Class -> its files, both sorted by name."""
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """What was left out and why."""


def scan(folder: Path) -> ImageFolder:
    """Every class of the folder and the files that may be its images."""
    found = ImageFolder()
    try:
        places = sorted(map(Path, os.scandir(folder)))
    except FileNotFoundError:
        raise TreeringError(f"{folder} does not exist: give a folder with one folder of images per class") from None
    except NotADirectoryError:
        raise TreeringError(f"{folder} is a file: give a folder with one folder of images per class") from None
    except OSError as error:
        raise TreeringError(f"cannot read {folder}: {error.strerror}") from None
    if is_model(folder):
        raise TreeringError(f"{folder} is a model: give a folder with one folder of images per class")
    loose = []
    for path in places:
        if not files.is_folder(path):
            loose += [] if is_clutter(path.name) else [path]
        elif path.name.startswith("."):
            found.skipped.append((path, "hidden folder"))
        elif is_model(path):
            found.skipped.append((path, MODEL))
        else:
            skipped_before = len(found.skipped)
            own = sorted(_files(path, found.skipped, folder))
            if own:
                name = unicodedata.normalize("NFC", path.name)  # one name however a file system spells its accents
                found.classes[name] = found.classes.get(name, []) + own
            elif path not in {place for place, _ in found.skipped[skipped_before:]}:
                found.skipped.append((path, "no files in this class folder"))
    if not found.classes:
        what = f"holds {len(loose)} files but no class folders" if loose else "has no class folders with images"
        raise TreeringError(f"{folder} {what}: put the images of each class into a folder of their own")
    _require_classes(folder, found.classes)
    found.skipped += [(path, "not in a class folder") for path in loose]
    return found


def _require_classes(folder: Path, classes: dict[str, list[Path]]) -> None:
    """Raise for a folder of training and test images, which holds classes only below."""
    parts = {name.lower() for name in classes}
    if "train" not in parts or not parts <= {"train", *TEST_FOLDERS}:
        return
    if len(classes) > 1:
        raise TreeringError(f"{folder} has the folders {' and '.join(classes)}, not classes: give one of them")
    ((name, paths),) = classes.items()
    if not any(path.parent.name == name for path in paths):  # else it may be a class, of locomotives
        raise TreeringError(f"{folder} has one folder, {name}, with folders in it, not classes: give {folder / name}")


def is_model(folder: Path) -> bool:
    """Whether it is a model folder rather than one of images."""
    return files.exists(folder / "manifest.json") and any(folder.glob("weights-*.safetensors"))


def files_below(folder: Path) -> list[Path]:
    """Every file in a folder and the folders below it, and folders that cannot be looked into."""
    skipped: list[tuple[Path, str]] = []
    found = sorted(_files(folder, skipped))
    return found + [place for place, reason in skipped if reason not in (BACK, MODEL)]


def shown(name: str | Path) -> str:
    """A name as it can be printed in one line, whatever bytes it has."""
    text = str(name).encode("utf-8", "replace").decode()
    return "".join(letter if letter >= " " and letter != "\x7f" else " " for letter in text)


def _files(folder: Path, skipped: list[tuple[Path, str]], inside: Path | None = None) -> Iterator[Path]:
    """The files below a folder that may lie in another one, its classes'; what is not looked into is noted as skipped.

    Those are folders that cannot be read, models, and links that lead back.
    """

    def note(error: OSError) -> None:
        skipped.append((Path(error.filename), error.strerror or "cannot be read"))

    above = [*folder.resolve().parents]
    if inside:
        above += [inside.resolve(), *inside.resolve().parents]
    seen = {(status.st_dev, status.st_ino) for status in (parent.stat() for parent in above)}
    for place, folders, names in os.walk(folder, onerror=note, followlinks=True):
        status = Path(place).stat()
        back = (status.st_dev, status.st_ino) in seen
        if back or (place != str(folder) and is_model(Path(place))):
            skipped.append((Path(place), BACK if back else MODEL))
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in names if not is_clutter(name))


def is_clutter(name: str) -> bool:
    """Whether a file is put there by the system and no business of the user's."""
    return name.startswith(".") or name in CLUTTER


@dataclass
class LoadedFolder:
    """The images of a folder, decoded."""

    images: StoredImages
    labels: list[str]
    skipped: list[tuple[Path, str]]
    """What was left out and why."""


def load(
    found: ImageFolder,
    size: int,
    channels: int = 3,
    place: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LoadedFolder:
    """Decode every image into a temporary file in `place`, a few at a time; what cannot be read is skipped."""
    file = PixelFile((channels, size, size), place)
    skipped = list(found.skipped)
    labels: list[str] = []
    rows: list[Tensor] = []
    todo = [(name, path) for name, paths in found.classes.items() for path in paths]
    with decoding() as pool:
        for start in range(0, len(todo), AT_ONCE):
            part = todo[start : start + AT_ONCE]
            decoded = pool.map(lambda one: read_or_reason(one[1], size, channels), part)
            good = []
            for (name, path), result in zip(part, decoded, strict=True):
                if isinstance(result, str):
                    skipped.append((path, result))
                else:
                    good.append(result)
                    labels.append(name)
            if good:
                rows.append(file.append(torch.from_numpy(np.stack(good)).movedim(-1, 1)))
            progress(start + len(part), len(todo))
    read_classes = set(labels)
    unread = [name for name in found.classes if name not in read_classes]
    skipped += [(found.classes[name][0].parent, "no image of this class can be read") for name in unread]
    stored = StoredImages(file, torch.cat(rows) if rows else torch.empty(0, dtype=torch.long))
    return LoadedFolder(stored, labels, skipped)


def load_with_warnings(found: ImageFolder, size: int, channels: int = 3, place: Path | None = None) -> LoadedFolder:
    """`load`, for who does not list what was left out."""
    loaded = load(found, size, channels, place)
    warn_of(loaded.skipped)
    return loaded


def warn_of(skipped: Iterable[tuple[Path, str]]) -> None:
    """A line for each thing that was left out."""
    for path, reason in skipped:
        logger.warning("%s is left out: %s", path, reason)


def read_or_reason(path: Path, size: int, channels: int = 3) -> np.ndarray | str:
    """What `read` gives, or why it does not."""
    try:
        return read(path, size, channels)
    except UnreadableError as error:
        return str(error)
