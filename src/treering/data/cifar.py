"""CIFAR-100 (Krizhevsky 2009) from its standard `cifar-100-python` folder, and its vehicles [appendix C]."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import os
import re
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from treering.data import plain_pickle
from treering.data.stream import Dataset
from treering.errors import TreeringError
from treering.runtime import files

FOLDER = "cifar-100-python"
URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
"""The archive's checksum, which is published beside it."""
ATTEMPTS = 3
LARGEST_ARCHIVE = LARGEST_FILE = 256 * 2**20
"""The most bytes that are downloaded and read; the published archive has 169 million, its largest file 155 million."""
MEMBERS = (FOLDER, *(f"{FOLDER}/{name}" for name in ("train", "test", "meta", "file.txt~")))
"""What the published archive holds."""
UNPACKING = ".unpacking-"
ABANDONED = re.compile(rf"{re.escape(UNPACKING)}[a-z0-9_]{{8}}")
"""The names of the folders that archives are unpacked to."""
VEHICLES = ("vehicles_1", "vehicles_2")


def load(folder: Path, download: bool = False) -> Dataset:
    """Return all hundred classes; `folder` holds cifar-100-python, or is that folder itself."""
    source = _find(folder, download)
    names = _names(source, b"fine_label_names")
    return Dataset("cifar100", *_arrays(source / "train", names), *_arrays(source / "test", names), names)


def load_vehicles(folder: Path, download: bool = False) -> Dataset:
    """Return the ten classes of the superclasses vehicles 1 and 2, numbered 0..9 in the order of their labels."""
    full = load(folder, download)
    superclass = superclasses(folder)
    chosen = [label for label, name in enumerate(full.class_names) if superclass.get(name) in VEHICLES]
    return replace(full.only(chosen), name="cifar100-vehicles")


def superclasses(folder: Path) -> dict[str, str]:
    """Return the name of each class's superclass by the name of the class."""
    source = _find(folder, download=False)
    fine_names, coarse_names = _names(source, b"fine_label_names"), _names(source, b"coarse_label_names")
    train = _read(source / "train", b"fine_labels", b"coarse_labels")
    fine, coarse = train[b"fine_labels"], train[b"coarse_labels"]
    whole = _are_labels(fine, len(fine_names)) and _are_labels(coarse, len(coarse_names))
    if not whole or len(fine) != len(coarse):
        raise _foreign(source / "train", "its labels are not those of CIFAR-100")
    return {fine_names[one]: coarse_names[other] for one, other in zip(fine, coarse, strict=True)}


def _find(folder: Path, download: bool) -> Path:
    for candidate in (folder / FOLDER, folder):
        if all((candidate / name).is_file() for name in ("train", "test", "meta")):
            return candidate
    if (folder / FOLDER).exists():
        raise TreeringError(f"{folder / FOLDER} lacks train, test or meta: delete it and try again")
    if not download:
        raise TreeringError(f"no {FOLDER} folder in {folder}: unpack CIFAR-100 there, or let --download fetch it")
    fetch(folder)
    return folder / FOLDER


def _names(source: Path, key: bytes) -> tuple[str, ...]:
    names = _read(source / "meta", key)[key]
    if not isinstance(names, list) or not all(isinstance(name, bytes) and name.isascii() for name in names):
        raise _foreign(source / "meta", "its class names are not texts")
    return tuple(name.decode() for name in names)


def _arrays(path: Path, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    content = _read(path, b"data", b"fine_labels")
    pixels, labels = content[b"data"], content[b"fine_labels"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (3 * 32 * 32,):
        raise _foreign(path, "its images are not 32 x 32 pixels in three colours")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise _foreign(path, "it does not have one label per image")
    if not _are_labels(labels, len(names)) or len(set(labels)) != len(names):
        raise _foreign(path, f"its labels are not those of the {len(names)} classes, 0 to {len(names) - 1}")
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(labels, dtype=np.int64)


def _are_labels(labels: Any, classes: int) -> bool:
    """Return whether this is a list of labels; a set of other numbers may be slow, and one of tuples endless."""
    return isinstance(labels, list) and all(type(label) is int and 0 <= label < classes for label in labels)


def _foreign(path: Path, reason: object) -> TreeringError:
    """Return the error to raise for a file that is damaged or not one of CIFAR-100."""
    one_line = " ".join(str(reason).split())
    return TreeringError(f"{path} is not a file of CIFAR-100 ({one_line}): delete the folder and unpack it again")


def _read(path: Path, *keys: bytes) -> dict[bytes, Any]:
    """Read the dictionary in a file, which must have these keys."""
    try:
        content = plain_pickle.load(files.read(path, LARGEST_FILE, through_links=False))
    except OSError as error:
        raise TreeringError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:  # damaged bytes may raise anything
        raise _foreign(path, error or type(error).__name__) from None
    if not isinstance(content, dict) or not all(key in content for key in keys):
        raise _foreign(path, f"it lacks {', '.join(key.decode() for key in keys)}")
    return content


def fetch(folder: Path, url: str = URL, md5: str = MD5, pause: float = 2.0) -> None:
    """Download and verify the published archive and unpack it; the folder appears complete or not at all."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TreeringError(f"cannot make the folder {folder}: {error.strerror}") from None
    _remove_abandoned(folder)
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause * attempt)
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                archive = response.read(LARGEST_ARCHIVE)
        except (OSError, http.client.HTTPException) as error:  # network errors of all kinds
            trouble = getattr(error, "reason", error)
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            continue
        if hashlib.md5(archive, usedforsecurity=False).hexdigest() == md5:
            break
        trouble = "what came is not the published archive: its MD5 differs"
    else:
        raise TreeringError(f"cannot download {url} ({trouble}): fetch it elsewhere and unpack it in {folder}")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed, _unpacking(folder) as unpacked:
            packed.extractall(unpacked, [_plain(member) for member in packed], filter="data")
            (unpacked / FOLDER).replace(folder / FOLDER)
    except OSError as error:
        raise TreeringError(f"cannot unpack to {folder / FOLDER}: {error.strerror}") from None


@contextlib.contextmanager
def _unpacking(folder: Path) -> Iterator[Path]:
    """Make a folder for as long as the context lasts; a lock tells others that it is not abandoned."""
    unpacked = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=folder))
    try:
        with _locked(unpacked):
            yield unpacked
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed programs have unpacked: the folders that nobody holds."""
    for place in folder.glob(f"{UNPACKING}*"):
        if ABANDONED.fullmatch(place.name) and not place.is_symlink():
            with contextlib.suppress(OSError):
                with _locked(place) as free:
                    pass
                if free:
                    shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _locked(unpacked: Path) -> Iterator[bool]:
    """Lock a folder that is unpacked to; give False if somebody else holds it, or if there are no locks."""
    handle = files.opened(unpacked / "lock", os.O_RDWR | os.O_CREAT, through_links=False)
    try:
        is_locked = False
        with contextlib.suppress(OSError):
            is_locked = files.try_lock(handle)
        yield is_locked
    finally:
        os.close(handle)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of the archive, if it is one that the published archive has."""
    if member.name not in MEMBERS or not (member.isreg() or member.isdir()) or member.size > LARGEST_FILE:
        raise TreeringError(f"the archive holds {member.name!r:.200}, which is none of CIFAR-100's files")
    return member
