"""Copies of photos in one folder for each class that they were told to show."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from treering.errors import TreeringError
from treering.runtime import files

LARGEST_PHOTO = 2**30
"""The most bytes of a photo that is copied."""
PIECE = 2**20
"""How many bytes of a file are copied, or of two files are compared, at once."""
LONGEST_NAME = 100
"""The most letters of a folder's name that come from the class."""
PRIVATE = 0o700
"""Who may look into a new folder: its owner. Folders and copies in it are as open as the folder around them."""
UNKNOWN = "unknown"
"""The folder of photos that resemble no class; a class of that name has another one."""
RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
"""The names that Windows keeps to itself."""


@dataclass(frozen=True)
class Copy:
    """Where a photo's copy is."""

    file: Path
    is_new: bool
    """Whether it was made now, rather than there already."""


class Sorter:
    """Copies photos to FOLDER/<class>/<name> or FOLDER/unknown/<name>, and never changes or replaces any other file."""

    def __init__(self, folder: Path, inputs: Sequence[Path]) -> None:
        real = folder.resolve()
        for place in inputs:
            if files.is_folder(place) and place.resolve() in (real, *real.parents):
                raise TreeringError(f"cannot sort into {folder}, which lies in {place}: choose a folder outside")
        try:
            folder.mkdir(PRIVATE, exist_ok=True)
        except OSError as error:
            raise TreeringError(f"cannot sort into {folder}: {error.strerror}") from None
        self.folder = folder

    def copy(self, photo: Path, class_name: str | None) -> Copy:
        """Copy a photo into the folder of its class, or of unknown ones if it has none.

        A different photo of the same name there stays, beside the copy; an equal one is not copied again. If the
        copying fails or is interrupted, nothing is left of it.
        """
        with os.fdopen(files.opened(photo), "rb") as source:
            return self._copied(source, photo, class_name)

    def _copied(self, source: BinaryIO, photo: Path, class_name: str | None) -> Copy:
        """Copy the content of an open photo."""
        times = os.fstat(source.fileno())
        if times.st_size > LARGEST_PHOTO:
            raise _too_large(photo)
        place = self.folder / (UNKNOWN if class_name is None else folder_name(class_name))
        place.mkdir(self.folder.stat().st_mode & 0o777 | PRIVATE, exist_ok=True)
        for number in itertools.count(1):
            target = place / (photo.name if number == 1 else f"{photo.stem}-{number}{photo.suffix}")
            if _is_equal(target, source):
                return Copy(target, is_new=False)
            with contextlib.suppress(FileExistsError):
                files.write(target, _pieces(source, photo), replace=False)
                with contextlib.suppress(OSError):
                    target.chmod(target.stat().st_mode & (place.stat().st_mode | PRIVATE))
                with contextlib.suppress(OSError):
                    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
                return Copy(target, is_new=True)
        raise AssertionError("unreachable")


def folder_name(class_name: str) -> str:
    """Return a name that any system takes for a folder; one that differs from the class's has a digest of it."""
    safe = "".join(letter if letter.isprintable() and letter not in '\\/:*?"<>|' else "_" for letter in class_name)
    safe = safe[:LONGEST_NAME].lstrip(" ").rstrip(" .")
    if not safe or safe.startswith((".", "-", "~")) or safe.split(".")[0].lower() in RESERVED:
        safe = f"_{safe}"
    while len(os.fsencode(safe)) > 2 * LONGEST_NAME:
        safe = safe[:-1]
    if safe == class_name and safe.lower() != UNKNOWN:
        return safe
    return f"{safe}-{hashlib.sha256(class_name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _pieces(source: BinaryIO, photo: Path) -> Iterator[bytes]:
    """Yield the content of a photo piece by piece; raise if it turns out to be too large, since it grows meanwhile."""
    source.seek(0)
    left = LARGEST_PHOTO
    while piece := source.read(PIECE):
        left -= len(piece)
        if left < 0:
            raise _too_large(photo)
        yield piece


def _too_large(photo: Path) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {LARGEST_PHOTO:,} bytes", str(photo))


def _is_equal(file: Path, source: BinaryIO) -> bool:
    """Return whether a regular file is there whose content is that of an open one."""
    try:
        handle = files.opened(file)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as stream:
        source.seek(0)
        if os.fstat(handle).st_size != os.fstat(source.fileno()).st_size:
            return False
        while piece := source.read(PIECE):
            try:
                other = stream.read(len(piece))
            except OSError:
                return False
            if other != piece:
                return False
        return True
