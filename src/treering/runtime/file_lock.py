"""A lock that only one program holds at a time, on file systems that have locks and on those that have none."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from treering import words
from treering.checked import Checked, parse_json
from treering.runtime import files
from treering.words import shown

logger = words.logger(__name__)

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""What Linux names the time since it was started, so that a process of an earlier time is known to be gone."""
LARGEST_NOTE = 4096
HALF_WRITTEN = 60.0
"""Seconds after which a note that cannot be read is one that a killed program did not finish."""


class HeldError(Exception):
    """Somebody else holds the lock; the message says who."""


@dataclass(frozen=True)
class Note(Checked):
    """What a program writes about itself while it holds a lock."""

    tolerant: ClassVar[bool] = True

    process: int
    since: str
    host: str = ""
    boot: str = ""
    """Empty where the system does not tell."""

    @classmethod
    def own(cls) -> Note:
        """Return the note of this program."""
        return cls(os.getpid(), datetime.now(UTC).isoformat(timespec="seconds"), platform.node(), _boot())

    @classmethod
    def read(cls, file: Path) -> Note | None:
        """Return the note in a file; None if there is none, or it is not one."""
        try:
            return cls.of(parse_json(files.read(file, LARGEST_NOTE, through_links=False)))
        except (OSError, ValueError):  # a TreeringError is one
            return None

    @property
    def is_of_this_computer(self) -> bool:
        """Whether its program runs here, or ran here before the computer was started anew."""
        return self.host in ("", platform.node())

    @property
    def has_ended(self) -> bool:
        """Whether its program is known to have ended."""
        if not self.is_of_this_computer:
            return False
        return bool(self.boot and _boot() and self.boot != _boot()) or not _is_running(self.process)

    def __str__(self) -> str:
        where = "" if self.is_of_this_computer else f" on {shown(self.host)}"
        return f"another treering (process {self.process}{where}, since {shown(self.since)})"


@contextlib.contextmanager
def held(lock: Path, note: Path) -> Iterator[int | None]:
    """Hold a lock, say so in the file `note`, and yield the open lock; raise `HeldError` if another program holds it.

    Where the file system has no locks, the note is the lock, and None is yielded: it is made only if it does not exist,
    and one whose program has ended is taken over.
    """
    if note.is_dir() and not note.is_symlink():
        raise OSError(errno.EISDIR, f"{note.name} is a folder: remove it", str(note))
    handle = _open(lock, note)
    try:
        if handle is None:
            logger.warning("the file system of %s has no locks: write to it from one computer only", note.parent)
            _claim(note)
        else:
            note.unlink(missing_ok=True)  # a killed program's, or a link that somebody put there
            try:
                _write(note)
            except OSError:  # a full disk; the lock is not needed any more, and nobody can hold it
                note.unlink(missing_ok=True)
                lock.unlink(missing_ok=True)
                raise
        try:
            yield handle
        finally:
            note.unlink(missing_ok=True)
    finally:
        if handle is not None:
            os.close(handle)
        if os.name == "nt":
            with contextlib.suppress(OSError):  # Windows lets nobody remove it who shares it
                lock.unlink()


def _open(lock: Path, note: Path) -> int | None:
    """Return the locked file; None if the file system has no locks."""
    while True:
        with contextlib.ExitStack() as otherwise:
            handle = files.opened(lock, os.O_RDWR | os.O_CREAT, through_links=False)
            otherwise.callback(os.close, handle)
            try:
                if not files.try_lock(handle):
                    raise HeldError(str(Note.read(note) or "another process"))
            except OSError as error:
                if error.errno not in files.NO_LOCKS:
                    raise
                return None
            if files.is_at(handle, lock):  # if not, its holder removed it together with an empty folder
                otherwise.pop_all()
                return handle


def _claim(note: Path) -> None:
    """Make the note that is the lock itself."""
    try:
        _write(note)
    except FileExistsError:
        holder = Note.read(note)
        if holder is None and time.time() - note.lstat().st_mtime < HALF_WRITTEN:
            raise HeldError("another process") from None
        if holder is not None and not holder.has_ended:
            raise HeldError(f"{holder} (or it was killed: remove {note} then)") from None
        _move_away(note, holder)
        _write(note)


def _write(note: Path) -> None:
    handle = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    with os.fdopen(handle, "wb") as stream:
        stream.write(json.dumps(asdict(Note.own())).encode())


def _move_away(note: Path, holder: Note | None) -> None:
    """Remove the note of a program that has ended; if another program has replaced it just now, that one keeps it."""
    moved = note.with_name(f"{files.TEMPORARY}{uuid.uuid4().hex}")
    note.rename(moved)
    if Note.read(moved) != holder:
        moved.rename(note)
        raise HeldError("another process")
    moved.unlink()


def _boot() -> str:
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def _is_running(process: int) -> bool:
    if os.name == "nt":  # there, asking would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to somebody else
        return True
    return process > 0
