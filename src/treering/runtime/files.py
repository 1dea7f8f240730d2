"""Files that are written completely or not at all, and tests of paths that never raise."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from treering.errors import TreeringError

TEMPORARY = ".tmp-"
"""The beginning of the names of unfinished files."""
CLUTTER = ("Thumbs.db", "desktop.ini")
"""Files that systems leave in folders; they and hidden files are ignored without a message."""
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)
"""The errors of file systems that cannot flush a folder, or do not let this user; its files are still written."""


def write(file: Path, content: bytes, flushed: bool = True) -> None:
    """Replace `file` in one rename, once the content has reached the disk unless the caller calls `flush` later."""
    temporary = file.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            if flushed:
                stream.flush()
                os.fsync(stream.fileno())
        _rename(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if flushed:
        _flush_folder(file.parent)


def flush(written: Sequence[Path]) -> None:
    """Wait until all these files have reached the disk: together, which is faster than one by one."""
    for file in written:
        with file.open("rb" if os.name == "posix" else "rb+") as stream:
            os.fsync(stream.fileno())
    for folder in {folder for file in written for folder in file.parents[:2]}:  # the parent names a new folder
        _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    """Wait until the names in the folder have reached the disk too."""
    if os.name == "posix":
        try:
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno not in CANNOT_FLUSH:
                raise


def _rename(file: Path, target: Path) -> None:
    """Have the file take the place of `target`, which on Windows a reader or a virus scanner may hold for a moment."""
    for pause in (0.01, 0.1, 1.0):
        try:
            file.replace(target)
            return
        except PermissionError:
            if os.name != "nt":
                raise
            time.sleep(pause)
    file.replace(target)


def remove_abandoned(folder: Path) -> None:
    """Remove unfinished files of programs that were killed: those that nobody has written to for an hour."""
    for file in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > 3600:
                file.unlink()


def write_picture(file: Path, draw: Callable[[io.BytesIO], object]) -> None:
    """Write the PNG that `draw` puts into a stream."""
    require_png(file)
    stream = io.BytesIO()
    draw(stream)
    try:
        write(file, stream.getvalue())
    except OSError as error:
        raise TreeringError(f"cannot write {file}: {error.strerror or error}") from None


def require_png(file: Path) -> None:
    """Raise unless a picture of this name can be written."""
    if file.suffix.lower() != ".png":
        raise TreeringError(f"cannot write {file}: the name of a picture must end in .png")
    require_folder(file)


def require_folder(file: Path) -> None:
    """Raise unless the file's folder is there."""
    if not is_folder(file.parent):
        raise TreeringError(f"cannot write {file}: {file.parent} is not a folder")


def is_clutter(name: str) -> bool:
    """Return whether a file of this name is hidden or put there by the system, and no concern of the user."""
    return name.startswith(".") or name in CLUTTER


def exists(path: Path) -> bool:
    """Return whether the path exists; False if its name is impossible or its folder must not be read."""
    return os.path.exists(path)  # noqa: PTH110  # unlike Path.exists it never raises


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder; like `exists` it never raises."""
    return os.path.isdir(path)  # noqa: PTH112
