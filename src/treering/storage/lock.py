"""The lock of a model folder: writers exclude each other by it, and readers need none."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import filelock

from treering.errors import TreeringError
from treering.runtime import files
from treering.storage import manifest as manifests
from treering.storage import names


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Be the folder's only writer; it is created if it does not exist, and removed again if it stays empty."""
    made = not files.exists(path)
    try:
        _make_folder(path)
        with filelock.FileLock(path / ".lock", timeout=0):
            try:
                since = datetime.now(UTC).isoformat(timespec="seconds")
                (path / ".writer").write_text(json.dumps({"process": os.getpid(), "since": since}))
                yield
            finally:
                (path / ".writer").unlink(missing_ok=True)
                if not any(names.is_ours(file.name) for file in path.iterdir() if file.name != ".lock"):
                    with contextlib.suppress(PermissionError):  # Windows removes the lock when it is released
                        (path / ".lock").unlink()
    except filelock.Timeout:
        raise TreeringError(f"{_writer(path)} is writing {path}: wait until it has ended, then try again") from None
    except OSError as error:
        raise TreeringError(
            f"cannot save to {path}: {error.strerror or error}; what it held before is intact"
        ) from error
    finally:
        if made:
            with contextlib.suppress(OSError):  # the folder holds something
                path.rmdir()


def _writer(path: Path) -> str:
    """Return who holds the lock, for a message."""
    try:
        writer = json.loads((path / ".writer").read_bytes())
        return f"another treering (process {int(writer['process'])}, since {writer['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def _make_folder(path: Path) -> None:
    """Create the folder, or make sure that an existing one is ours to write to."""
    if path.exists() and not path.is_dir():
        raise TreeringError(f"{path} is a file: give the name of a folder")
    path.mkdir(parents=True, exist_ok=True)
    items = [item for item in path.iterdir() if not names.is_ours(item.name)]
    foreign = [item.name for item in items if not (item.is_file() and files.is_clutter(item.name))]
    if foreign and not (path / manifests.NAME).exists():
        raise TreeringError(f"{path} is not a treering model folder and holds {foreign[0]}: give a new or empty folder")
