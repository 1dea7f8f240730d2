"""The lock of a model folder: writers exclude each other by it, and readers need none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from treering.errors import TreeringError
from treering.runtime import file_lock, files
from treering.storage import manifest as manifests
from treering.storage import names
from treering.storage.folder import Folder


class BusyError(TreeringError):
    """Another program writes to the folder just now."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Folder]:
    """Be the only writer of a folder, and yield it: it is created if it does not exist, and removed if it stays empty.

    All is written to this one, whatever takes its place at `path` meanwhile.
    """
    made = not files.exists(path)
    before = version(path)
    try:
        _make_folder(path)
        with file_lock.held(path / names.LOCK, path / names.NOTE) as locked, manifests.opened(path) as folder:
            if locked is not None and not folder.holds(names.LOCK, locked):
                raise TreeringError(f"another folder took the place of {path} just now: try again")
            before = version(path)
            try:
                yield folder
            finally:
                others = (file.name for file in path.iterdir() if file.name not in (names.LOCK, names.NOTE))
                if not any(map(names.is_ours, others)):
                    with contextlib.suppress(PermissionError):  # Windows removes the lock when it is released
                        (path / names.LOCK).unlink()
    except file_lock.HeldError as holder:
        raise BusyError(f"{holder} is writing {path}: wait until it has ended, then try again") from None
    except OSError as error:
        reason = error.strerror or error
        if version(path) == before:
            raise TreeringError(f"cannot save to {path}: {reason}; what it held before is intact") from error
        raise TreeringError(f"{path} was changed, but may not survive a power failure: {reason}") from error
    finally:
        if made:
            with contextlib.suppress(OSError):  # the folder holds something
                path.rmdir()


def version(path: Path) -> tuple[int, int, int] | None:
    """Return what tells one manifest of the folder from another: each is a file of its own."""
    try:
        found = (path / manifests.NAME).lstat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _make_folder(path: Path) -> None:
    """Create the folder, or make sure that an existing one is ours to write to."""
    if path.exists() and not path.is_dir():
        raise TreeringError(f"{path} is a file: give the name of a folder")
    path.mkdir(parents=True, exist_ok=True)
    items = [item for item in path.iterdir() if not names.is_ours(item.name)]
    foreign = [item.name for item in items if not (item.is_file() and files.is_clutter(item.name))]
    if foreign and not (path / manifests.NAME).exists():
        raise TreeringError(f"{path} is not a treering model folder and holds {foreign[0]}: give a new or empty folder")
