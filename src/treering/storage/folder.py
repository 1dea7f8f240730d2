"""A model folder that is opened once, whose files are reached by plain names and through no link.

The folder may come from a stranger. So each part of a name is opened below the part before it and must not be a link;
only regular files are read, up to a bound; and what is written takes its place in one rename. The folder itself may be
reached through links. Systems that cannot open files below an open folder look at each part before they use its path.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import stat
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from treering.errors import TreeringError
from treering.runtime import files
from treering.storage import names

BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
"""Whether the system can reach files below an open folder; else paths are looked at before they are used."""
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
LARGE = 2**26
"""The bytes above which it matters whether the disk holds all of a file."""
_PRIVATE = ("memory", "held-out")
"""The folders that hold a user's photos, which only their owner may read where they are new."""


class Item(NamedTuple):
    """What a folder lists."""

    name: str
    """Its name, relative to the model folder."""
    kind: Literal["file", "folder", "other"]
    """A link is something other, whatever it leads to."""
    size: int


class Folder:
    """An open model folder. Use it in a `with` statement."""

    def __init__(self, path: Path) -> None:
        """Open the folder; raise OSError if it cannot be opened."""
        self.path = path
        if not BY_DESCRIPTOR and not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        self._handle = os.open(path, _FOLDER | getattr(os, "O_CLOEXEC", 0)) if BY_DESCRIPTOR else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    # Reading

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a regular file of at most so many bytes; raise FileNotFoundError if there is none."""
        with self._regular(name, most) as (stream, size):
            content = stream.read(size + 1)
            while len(content) <= most and (more := stream.read(most + 1 - len(content))):
                content += more
        if len(content) > most:
            raise self._too_large(name, most)
        return content

    def buffer(self, name: str, most: int) -> bytearray:
        """Return what `read` would return as a buffer that can be changed, without holding it twice."""
        with self._regular(name, most) as (stream, size):
            content, filled = bytearray(size), 0
            with memoryview(content) as view:
                while filled < size and (count := stream.readinto(view[filled:])):
                    filled += count
            del content[filled:]
        return content

    def is_hollow(self, name: str) -> bool:
        """Return whether the disk holds less than half of a large file, as if the rest had never been written.

        File systems that compress store numbers nearly as they are; some do not tell, or give 0.
        """
        with self._holder(name) as (holder, last):
            status = os.stat(last, dir_fd=holder, follow_symlinks=False)
        held = 512 * getattr(status, "st_blocks", 0)
        return status.st_size > LARGE and 0 < held < status.st_size / 2

    def held(self, name: str) -> int:
        """Return the size of a regular file without its holes, where the system tells of holes."""
        with self._regular(name, sys.maxsize) as (stream, size):
            blocks = getattr(os.fstat(stream.fileno()), "st_blocks", 0)
            if not (hasattr(os, "SEEK_HOLE") and 0 < 512 * blocks < size / 2):
                return size
            held, place = 0, 0
            while place < size:
                try:
                    begin = stream.seek(place, os.SEEK_DATA)
                except OSError as error:
                    if error.errno == errno.ENXIO:  # there is none any more
                        break
                    raise
                place = stream.seek(begin, os.SEEK_HOLE)
                held += place - begin
        return held

    def start(self, name: str, count: int) -> bytes:
        """Return the first bytes of a regular file, which may be of any size."""
        with self._regular(name, sys.maxsize) as (stream, size):
            content = b""
            while len(content) < count and (more := stream.read(min(size, count) - len(content))):
                content += more
        return content

    def digest(self, name: str, most: int) -> tuple[int, str]:
        """Return size and SHA-256 of what `read` would return, without holding it in memory."""
        digest, read = hashlib.sha256(), 0
        with self._regular(name, most) as (stream, _):
            while part := stream.read(2**20):
                digest.update(part)
                read += len(part)
                if read > most:
                    raise self._too_large(name, most)
        return read, digest.hexdigest()

    def exists(self, name: str) -> bool:
        """Return whether there is anything of this name."""
        try:
            with self._holder(name) as (holder, last):
                os.stat(last, dir_fd=holder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def holds(self, name: str, handle: int) -> bool:
        """Return whether the file of this name is the one that is open as `handle`."""
        try:
            with self._holder(name) as (holder, last):
                return os.path.samestat(os.stat(last, dir_fd=holder, follow_symlinks=False), os.fstat(handle))
        except FileNotFoundError:
            return False

    def size(self, name: str) -> int:
        """Return the size of a file, 0 if there is none."""
        try:
            with self._holder(name) as (holder, last):
                return os.stat(last, dir_fd=holder, follow_symlinks=False).st_size
        except FileNotFoundError:
            return 0

    def items(self, folder: str = "") -> list[Item]:
        """List the folder of this name, or the model folder itself, in the order of names."""
        try:
            with self._opened(folder) as handle, os.scandir(handle) as found:
                return sorted(_item(f"{folder}/{one.name}" if folder else one.name, one) for one in found)
        except FileNotFoundError:
            return []

    def walk(self) -> Iterator[Item]:
        """List the model folder and those below it that treering makes, each before what it holds."""
        waiting = [""]
        while waiting:
            for item in self.items(waiting.pop()):
                yield item
                if item.kind == "folder" and names.fits(names.FOLDER, item.name):
                    waiting.append(item.name)

    # Writing

    def write(self, name: str, content: bytes, flushed: bool = True) -> None:
        """Replace a file in one rename, once the content has reached the disk unless `flush` is called later.

        Missing folders are made. Others may do with the file what they may do with the folder that it is in, but
        execute it.
        """
        self._make_folders(name)
        with self._holder(name) as (holder, last):
            temporary, handle = self._new_temporary(name, last, holder)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    if flushed:
                        os.fsync(handle)
                    if os.name == "nt":
                        stream.close()
                    _replace(temporary, last, holder)  # it is locked until it has its name
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=holder)
                raise
        if flushed:
            self._flush_folders([name])

    def _new_temporary(self, name: str, last: str, holder: int | None) -> tuple[str, int]:
        """Create an unfinished file, locked where possible, so that no other program takes it for abandoned."""
        mode = self._mode(holder, name) & 0o666
        while True:
            temporary = os.path.join(os.path.dirname(last), f"{files.TEMPORARY}{uuid.uuid4().hex}")  # noqa: PTH118, PTH120
            handle = self._open(name, temporary, _CREATE, holder, mode)
            if os.name == "nt" or _lock(handle, temporary, holder):
                return temporary, handle
            os.close(handle)  # somebody took it for an abandoned one before it was locked

    def remove_unfinished(self, name: str) -> None:
        """Remove an unfinished file, unless another program holds it."""
        try:
            if os.name != "nt":  # where files that are open cannot be removed
                with self._holder(name) as (holder, last):
                    handle = self._open(name, last, _READ | os.O_RDWR, holder)
                    try:
                        if _lock(handle, last, holder):
                            os.unlink(last, dir_fd=holder)
                    finally:
                        os.close(handle)
                return
        except FileNotFoundError:
            return
        except PermissionError:  # it is none that this user writes
            pass
        self.remove(name)

    def flush(self, written: Iterable[str]) -> None:
        """Wait until all these files have reached the disk: together, which is faster than one by one."""
        written = list(written)
        for name in written:
            with self._holder(name) as (holder, last):
                handle = self._open(name, last, _READ if os.name == "posix" else os.O_RDWR, holder)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self._flush_folders(written)
        if written and BY_DESCRIPTOR:
            _flush("..", self._handle)  # names the model folder, which may be new

    def remove(self, name: str) -> None:
        """Remove a file, or the link that is in its place; it may be gone already, and a folder stays."""
        with contextlib.suppress(FileNotFoundError), self._holder(name) as (holder, last):
            if not stat.S_ISDIR(os.stat(last, dir_fd=holder, follow_symlinks=False).st_mode):
                os.unlink(last, dir_fd=holder)

    def remove_folder(self, name: str) -> None:
        """Remove a folder if it is empty."""
        with contextlib.suppress(FileNotFoundError), self._holder(name) as (holder, last):
            try:
                os.rmdir(last, dir_fd=holder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise

    # Below

    @contextlib.contextmanager
    def _holder(self, name: str) -> Iterator[tuple[int | None, str]]:
        """Yield the open folder that holds `name`, and the last part of the name; or None and a whole path."""
        *folders, last = names.parts(name)
        if self._handle is None:
            yield None, os.fspath(self._looked_at(folders) / last)
            return
        handle = self._handle
        try:
            for number, part in enumerate(folders, 1):
                inner = self._open("/".join(folders[:number]), part, _FOLDER, handle)
                if handle != self._handle:
                    os.close(handle)
                handle = inner
            yield handle, last
        finally:
            if handle != self._handle:
                os.close(handle)

    @contextlib.contextmanager
    def _opened(self, folder: str) -> Iterator[int | str]:
        """Yield the folder of this name, or the model folder itself, in a form that can be listed."""
        if self._handle is None:
            yield os.fspath(self._looked_at(names.parts(folder) if folder else []))
        elif not folder:
            yield self._handle
        else:
            with self._holder(folder) as (holder, last):
                handle = self._open(folder, last, _FOLDER, holder)
            try:
                yield handle
            finally:
                os.close(handle)

    def _open(self, name: str, last: str, flags: int, holder: int | None, mode: int = 0o666) -> int:
        try:
            if holder is None and os.path.islink(last):  # noqa: PTH114
                raise self._not_regular(name)
            return os.open(last, flags | _NO_LINK, mode, dir_fd=holder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.ENXIO):
                raise self._not_regular(name) from None
            raise

    @contextlib.contextmanager
    def _regular(self, name: str, most: int) -> Iterator[tuple[io.RawIOBase, int]]:
        """Open a regular file of at most so many bytes for reading; yield it and its size."""
        with self._holder(name) as (holder, last):
            handle = self._open(name, last, _READ, holder)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise self._not_regular(name)
        with os.fdopen(handle, "rb", buffering=0) as stream:
            if status.st_size > most:
                raise self._too_large(name, most)
            yield stream, status.st_size

    def _too_large(self, name: str, most: int) -> TreeringError:
        return TreeringError(
            f"{self.path / name} has more than {most:,} bytes, which it cannot need: "
            "restore that file from a copy of the model folder"
        )

    def _not_regular(self, name: str) -> TreeringError:
        return TreeringError(
            f"cannot read {self.path / name}: a model folder holds plain files and folders, and this is a link, a pipe "
            "or another thing instead; put what it stands for in its place"
        )

    def _looked_at(self, folders: list[str]) -> Path:
        """Return the path of these folders, each within the one before, after a look at each."""
        path = self.path
        for part in folders:
            path /= part
            if not stat.S_ISDIR(path.lstat().st_mode) or os.path.realpath(path) != os.path.join(  # noqa: PTH118
                os.path.realpath(path.parent), part
            ):
                raise self._not_regular(path.relative_to(self.path).as_posix())
        return path

    def _make_folders(self, name: str) -> None:
        """Make the folders that the file `name` lies in; new ones are as open as the folder around them."""
        folders = names.parts(name)[:-1]
        for number in range(1, len(folders) + 1):
            made = "/".join(folders[:number])
            with self._holder(made) as (holder, last):
                mode = 0o700 if made in _PRIVATE else self._mode(holder, made) & 0o777
                with contextlib.suppress(FileExistsError):
                    os.mkdir(last, mode, dir_fd=holder)

    def _mode(self, holder: int | None, name: str) -> int:
        """Return what the owner and others may do with the folder that holds `name`."""
        return ((self.path / name).parent.stat() if holder is None else os.fstat(holder)).st_mode

    def _flush_folders(self, written: Iterable[str]) -> None:
        """Wait until the names of these files, and of the folders around them, have reached the disk too."""
        if os.name != "posix":
            return
        around = {""} | {name[:place] for name in written for place in range(len(name)) if name[place] == "/"}
        for folder in sorted(around):
            with self._opened(folder) as handle:
                _flush(handle, None)


def _lock(handle: int, last: str, holder: int | None) -> bool:
    """Lock an open file; return False if another program holds or has removed it. File systems may have no locks."""
    try:
        found = files.try_lock(handle)
        return found and os.path.samestat(os.fstat(handle), os.stat(last, dir_fd=holder, follow_symlinks=False))
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _item(name: str, found: os.DirEntry[str]) -> Item:
    try:
        status = found.stat(follow_symlinks=False)
    except OSError:  # it is gone since
        return Item(name, "other", 0)
    if stat.S_ISREG(status.st_mode):
        return Item(name, "file", status.st_size)
    return Item(name, "folder" if stat.S_ISDIR(status.st_mode) else "other", 0)


def _flush(folder: int | str, holder: int | None) -> None:
    """Wait until a folder has reached the disk, where the system can."""
    try:
        if isinstance(folder, int):
            os.fsync(folder)
            return
        handle = os.open(folder, _FOLDER, dir_fd=holder)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in files.CANNOT_FLUSH:
            raise


def _replace(temporary: str, last: str, holder: int | None) -> None:
    """Have a file take the place of another, which on Windows a reader or a virus scanner may hold for a moment."""
    for pause in (0.01, 0.1, 1.0):
        try:
            os.replace(temporary, last, src_dir_fd=holder, dst_dir_fd=holder)
            return
        except PermissionError:
            if os.name != "nt":
                raise
            time.sleep(pause)
    os.replace(temporary, last, src_dir_fd=holder, dst_dir_fd=holder)
