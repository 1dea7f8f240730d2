"""The manifest of a model folder: what the model is, and every file of it with its checksum."""

from __future__ import annotations

import hashlib
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import safetensors
import torch

from treering.errors import TreeringError
from treering.runtime import files
from treering.version import __version__

NAME = "manifest.json"
FORMAT = "treering model"
FORMAT_VERSION = 1


def made(facts: dict[str, Any], entries: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of these facts and files, with the time and the versions of the packages."""
    versions = {
        "treering": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "safetensors": safetensors.__version__,
    }
    head = {"format": FORMAT, "format_version": FORMAT_VERSION}
    return head | facts | {"files": entries, "saved": datetime.now(UTC).isoformat(), "versions": versions}


def sealed(manifest: dict[str, Any]) -> bytes:
    """Return the manifest as JSON with a checksum of itself."""
    return utf8(json.dumps({"checksum": _seal(manifest), **manifest}, indent=1, ensure_ascii=False))


def read(path: Path) -> dict[str, Any]:
    """Return the manifest of the model folder `path`, after checking it."""
    file = path / NAME
    try:
        content = file.read_bytes()
    except NotADirectoryError:
        raise TreeringError(f"{path} is a file: give the folder that a learner was saved to") from None
    except FileNotFoundError:
        if files.exists(path / ".learning") or files.exists(path / ".writer"):
            raise TreeringError(f"{path} has no model yet: its first step is under way, or was interrupted") from None
        what = f"has no {NAME}: it is not a treering model folder" if path.is_dir() else "does not exist"
        raise TreeringError(f"{path} {what}; give the folder that a learner was saved to") from None
    except OSError as error:
        raise TreeringError(f"cannot read {file}: {error.strerror}") from None
    return parsed(content, file)


def parsed(content: bytes, file: Path) -> dict[str, Any]:
    """Return the manifest in a file's `content`."""
    try:
        manifest = json.loads(content)
    except ValueError:
        raise TreeringError(f"{file} is damaged (not JSON): restore it from a copy of the model folder") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TreeringError(f"{file} was not written by treering: give the folder that a learner was saved to")
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise TreeringError(
            f"{file.parent} was written by a newer treering (format {version}; this one reads up to {FORMAT_VERSION}): "
            "upgrade treering"
        )
    if manifest.pop("checksum", None) != _seal(manifest):
        raise TreeringError(f"{file} was changed after treering wrote it: restore it from a copy of the model folder")
    return manifest


def entries(manifest: dict[str, Any]) -> list[dict[str, str]]:
    """Return name and checksum of every file that the manifest names."""
    named = manifest["files"]
    images = [entry for kind in ("memory", "held_out") for ranked in named[kind] for entry in ranked]
    return [named["weights"], named["history"], *images]


def earlier(path: Path) -> list[Path]:
    """Return the files that hold the manifests of earlier versions, oldest first."""
    return sorted(path.glob("previous/[0-9][0-9][0-9][0-9]*.json"), key=lambda file: int(file.stem))


def earlier_than(path: Path, current: dict[str, Any]) -> list[Path]:
    """Return those of `earlier` without the current version, which a killed writer may have put there already."""

    def is_current(file: Path) -> bool:
        try:
            return parsed(file.read_bytes(), file) == current
        except TreeringError:
            return False

    return [file for file in earlier(path) if not is_current(file)]


def utf8(text: str) -> bytes:
    """Encode a text as UTF-8; lone surrogates pass, by which Python represents file names in other encodings."""
    return text.encode("utf-8", "surrogatepass")


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
