"""A random key of the user on this computer, by which treering knows files that it has written itself.

It lies outside of all model folders, so that nobody who sends one can make a file that looks like the user's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from treering.runtime import files

BYTES = 32


def place() -> Path:
    """Return the file of the key; raise OSError if the user has no folder for it."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        around = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"  # noqa: PTH117  # "" is not
    except RuntimeError as error:
        raise OSError(str(error)) from None
    return around / "treering" / "key"


def sealed(content: bytes) -> str:
    """Return a checksum of the content that only this user on this computer can make; raise OSError without a key."""
    return hmac.new(_key(make=True), content, hashlib.sha256).hexdigest()


def is_sealed(content: bytes, seal: str) -> bool:
    """Return whether `sealed` gave the seal for this content; raise OSError if there is no key to tell by."""
    own = hmac.new(_key(make=False), content, hashlib.sha256).hexdigest()
    return hmac.compare_digest(own.encode(), seal.encode("utf-8", "surrogatepass"))


def _key(make: bool) -> bytes:
    file = place()
    try:
        return _read(file)
    except FileNotFoundError:
        if not make:
            raise
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(file)
    return _read(file)


def _read(file: Path) -> bytes:
    key = files.read(file, BYTES)
    if len(key) != BYTES:
        raise OSError(f"{file} holds no key: remove it")
    return key


def _write(file: Path) -> None:
    """Write a new key, unless another program does so first."""
    temporary = file.with_name(f"{files.TEMPORARY}{secrets.token_hex(16)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(secrets.token_bytes(BYTES))
            stream.flush()
            os.fsync(handle)
        with contextlib.suppress(FileExistsError):
            try:
                os.link(temporary, file)
            except PermissionError:  # the file system has no second names
                temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)
