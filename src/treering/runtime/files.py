"""Files that are written completely or not at all, or read if they are plain files; tests of paths that never raise."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

from treering.errors import TreeringError

TEMPORARY = ".tmp-"
"""The beginning of the names of unfinished files."""
CLUTTER = ("Thumbs.db", "desktop.ini")
"""Files that systems leave in folders; they and hidden files are ignored without a message."""
CANNOT_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES, errno.EPERM)
"""The errors of file systems that cannot flush a folder, or do not let this user; its files are still written."""


NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""The errors of file systems that have no locks."""
ABANDONED = re.compile(rf"{re.escape(TEMPORARY)}[0-9a-f]{{32}}")
"""The names of the unfinished files that `write` makes."""
LONG_AGO = 3600.0
"""Seconds without a change after which nobody writes to a file, where no lock can tell."""


CHUNK = 2**20
"""The bytes to read at once of what a file has grown by."""


class UnflushedError(OSError):
    """The new content is in the file's place, but the system does not say that it has reached the disk."""


def nameable(given: str | os.PathLike[str]) -> Path:
    """Return a path that the user gives; raise if the system lets no file or folder be called so."""
    path = Path(given)
    with contextlib.suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(path):
            return path
    raise TreeringError(f"{path} cannot be the name of a file or folder: give another name")


def why(file: Path, error: OSError) -> str:
    """Return what an error of `write` means, as a message."""
    reason = error.strerror or error
    if isinstance(error, UnflushedError):
        return f"{error.filename} was written, but may not survive a power failure: {reason}"
    return f"cannot write {file}: {reason}"


def write(file: Path, content: bytes | Iterable[bytes], flushed: bool = True, replace: bool = True) -> None:
    """Replace `file` in one rename, once the content has reached the disk unless the caller calls `flush` later.

    The content may come in pieces.
    Without `replace`, raise FileExistsError if there is a file of this name.
    What killed programs left of earlier attempts in the same folder is removed.
    """
    if flushed:
        remove_abandoned(file.parent)
    temporary, stream = _new_temporary(file)
    with stream:  # it stays locked while it is open
        try:
            stream.writelines([content] if isinstance(content, bytes) else content)
            stream.flush()
            if flushed:
                os.fsync(stream.fileno())
            if os.name == "nt":
                stream.close()
            (_rename if replace else _rename_to_new)(temporary, file)
        except BaseException:
            stream.close()
            temporary.unlink(missing_ok=True)
            raise
    if flushed:
        try:
            _flush_folder(file.parent)
        except OSError as error:
            raise UnflushedError(error.errno, error.strerror, str(file)) from None


def _rename_to_new(file: Path, target: Path) -> None:
    """Give the file a name that no other file has; raise FileExistsError if one has it."""
    try:
        target.hardlink_to(file)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        target.touch(exist_ok=False)  # from here on the name is taken
        _rename(file, target)
    else:
        file.unlink()


def _new_temporary(file: Path) -> tuple[Path, BinaryIO]:
    """Create an unfinished file beside `file`, locked where possible, so that nobody takes it for abandoned."""
    while True:
        temporary = file.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
        stream = temporary.open("xb")
        with contextlib.suppress(OSError):
            if os.name != "nt" and not (try_lock(stream.fileno()) and is_at(stream.fileno(), temporary)):
                stream.close()  # somebody took it for an abandoned one before it was locked
                continue
        return temporary, stream


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
    """Remove the unfinished files of killed programs: those that nobody holds or, without locks, that are old."""
    with contextlib.suppress(OSError):
        for name in [name for name in os.listdir(folder) if ABANDONED.fullmatch(name)]:  # noqa: PTH208  # no Path for each
            with contextlib.suppress(OSError):
                _remove_if_abandoned(folder / name)


def _remove_if_abandoned(file: Path) -> None:
    handle = opened(file, os.O_RDWR, through_links=False)
    try:
        if os.name != "nt":
            if try_lock(handle) and is_at(handle, file):
                file.unlink()
            return
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    finally:
        os.close(handle)
    if time.time() - file.lstat().st_mtime > LONG_AGO:
        file.unlink()


def opened(file: Path, flags: int = os.O_RDONLY, through_links: bool = True) -> int:
    """Open a regular file without waiting; the caller closes it. Anything else under its name raises an OSError."""
    no_links = 0 if through_links else getattr(os, "O_NOFOLLOW", 0)
    others = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(file, flags | no_links | others, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and no_links:
            raise OSError(errno.ELOOP, f"{file.name} is a link: remove it", str(file)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"{file.name} is not a regular file", str(file))
    return handle


def read(file: Path, most: int, through_links: bool = True) -> bytes:
    """Return the content of a regular file of `most` bytes or fewer; anything else raises an OSError."""
    with os.fdopen(opened(file, through_links=through_links), "rb") as stream:
        content = stream.read(min(most, os.fstat(stream.fileno()).st_size) + 1)
        while len(content) <= most and (more := stream.read(CHUNK)):  # it grew meanwhile
            content += more
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(file))
    return content


def try_lock(handle: int) -> bool:
    """Lock an open file until it is closed; return False if it is locked already, also by this program."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True


def is_at(handle: int, file: Path) -> bool:
    """Return whether `file` is still the name of the file that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), file.lstat())
    except FileNotFoundError:
        return False


def write_picture(file: Path, draw: Callable[[io.BytesIO], object]) -> None:
    """Write the PNG that `draw` puts into a stream."""
    require_png(file)
    stream = io.BytesIO()
    draw(stream)
    try:
        write(file, stream.getvalue())
    except OSError as error:
        raise TreeringError(why(file, error)) from None


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
