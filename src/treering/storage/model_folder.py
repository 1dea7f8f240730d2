"""Crash-safe model folders.

    manifest.json                    what the model is: classes, heads, recipe and every file's checksum
    weights-<hash>.safetensors       the network
    memory/<class>/<rank>-<hash>.png the exemplars, lossless; people may look at them
    held-out/<class>/…               images that only measure the accuracy
    history-<hash>.jsonl             one line a step
    previous/<number>.json           the manifests of the last few versions, for `undo`
    .learning                        how far an unfinished `treering learn` has come

Files carry a hash of their content in their name and are never changed, so saving writes the new ones beside the old
and then replaces manifest.json, in one rename: a crash at any moment leaves either the old model or the new one. Files
that no manifest names are removed afterwards. Writers exclude each other by a lock; readers need none. No pickle is
ever read.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor

from treering.errors import TreeringError
from treering.images.files import WORKERS
from treering.runtime import files
from treering.storage import lock
from treering.storage import manifest as manifests
from treering.storage.names import EXEMPLAR, VERSIONED

logger = logging.getLogger(__name__)

Read = TypeVar("Read")

KEEP = 3
"""The number of versions before the current one that `undo` can go back to."""
SAVEABLE = (str, int, float, bool)
"""The types of labels that JSON gives back as they were."""


@dataclass(frozen=True)
class Content:
    """What a model folder holds, as plain values and tensors."""

    facts: dict[str, Any]
    """What the manifest says of the model; see `model.py`."""
    classes: list[Any]
    """The label of each column."""
    tensors: dict[str, Tensor]
    """The network's weights and statistics."""
    memory: Mapping[int, Tensor]
    """The exemplars of each column, best first."""
    held_out: Mapping[int, Tensor]
    history: list[dict[str, Any]]


def save(content: Content, path: Path, keep: int = KEEP) -> None:
    """Write the folder's new content, as its only writer; the last `keep` versions stay for `undo`."""
    with lock.writing(path):
        replace(content, path, keep)


def replace(content: Content, path: Path, keep: int) -> None:
    """Do what `save` does, for a caller that is `writing` already."""
    unsaveable = next((label for label in content.classes if type(label) not in SAVEABLE), None)
    if unsaveable is not None:
        raise TreeringError(f"label {unsaveable!r} cannot be saved: use texts or numbers as labels")
    try:
        before = manifests.read(path)
    except TreeringError:  # it has no model yet, or a damaged one
        before = None
    entries = _write_files(path, content, before)
    if keep and before and before["files"] != entries:
        current, earlier = (path / manifests.NAME).read_bytes(), manifests.earlier(path)
        if not earlier or earlier[-1].read_bytes() != current:  # it is there already if a writer was killed just then
            (path / "previous").mkdir(exist_ok=True)
            number = int(earlier[-1].stem) + 1 if earlier else 1
            files.write(path / "previous" / f"{number:04d}.json", current)
    files.write(path / manifests.NAME, manifests.sealed(manifests.made(content.facts, entries)))
    _clean(path, keep)


def undo(path: str | os.PathLike[str]) -> None:
    """Go back to the version of a model folder before its last `save` or `treering learn`; raise if there is none."""
    path = Path(path)
    manifests.read(path)  # raises if there is no model
    with lock.writing(path):
        current = manifests.read(path)
        for file in reversed(manifests.earlier(path)):
            before = manifests.parsed(file.read_bytes(), file)
            if before == current:  # a killed writer has put the current one there already
                file.unlink()
                continue
            for entry in manifests.entries(before):
                _read(path, entry)  # raises if it is missing or damaged
            files.write(path / manifests.NAME, file.read_bytes())
            file.unlink()
            (path / ".learning").unlink(missing_ok=True)  # it continues the version that is gone now
            _clean(path, None)
            return
        raise TreeringError(f"{path} has no version to go back to: it holds the first one, or the others are gone")


def _clean(path: Path, keep: int | None) -> None:
    """Remove earlier versions beyond the last `keep` (None keeps all), and files that no remaining version names."""
    try:
        current = manifests.read(path)
        older = manifests.earlier_than(path, current)
        kept = older if keep is None else older[max(0, len(older) - keep) :]
        for file in manifests.earlier(path):
            if file not in kept:
                file.unlink()
        remaining = [manifests.parsed(file.read_bytes(), file) for file in manifests.earlier(path)]
        _remove_unnamed(path, [current, *remaining])
    except (OSError, TreeringError) as error:
        logger.warning("files of earlier versions stay in %s: %s", path, error)


def _remove_unnamed(path: Path, remaining: Sequence[dict[str, Any]]) -> None:
    """Delete the files of removed versions and of killed writers; files that treering did not write stay."""
    named = {_comparable(entry["name"]) for manifest in remaining for entry in manifests.entries(manifest)}
    for file in path.glob(f"previous/{files.TEMPORARY}*"):
        file.unlink()
    for file in [*path.glob("*"), *path.glob("memory/*/*"), *path.glob("held-out/*/*")]:
        ours = VERSIONED if file.parent == path else EXEMPLAR
        unnamed = _comparable(file.relative_to(path).as_posix()) not in named
        if unnamed and ours.fullmatch(file.name) and file.is_file():
            file.unlink()
    for folder in [*path.glob("memory/*"), *path.glob("held-out/*")]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _comparable(name: str) -> str:
    """Return a name in the form that all file systems agree on: some ignore case, some compose letters differently."""
    return unicodedata.normalize("NFC", name).casefold()


def consistently(path: Path, read: Callable[[dict[str, Any]], Read]) -> Read:
    """Return what `read` makes of the manifest and its files; read again if a writer removes that version meanwhile."""
    while True:
        manifest = manifests.read(path)
        try:
            return read(manifest)
        except (TreeringError, FileNotFoundError):
            if manifests.read(path) == manifest:
                raise


def content_of(path: Path, manifest: dict[str, Any]) -> Content:
    """Read every file that the manifest names."""
    entries = manifest["files"]
    tensors = safetensors.torch.load(_read(path, entries["weights"]))
    with ThreadPoolExecutor(WORKERS) as pool:

        def stacked(kind: str) -> dict[int, Tensor]:
            return {
                label: torch.stack(list(pool.map(lambda entry: _decode(_read(path, entry)), ranked)))
                for label, ranked in enumerate(entries[kind])
                if ranked
            }

        memory, held_out = stacked("memory"), stacked("held_out")
    return Content(manifest, manifest["classes"], tensors, memory, held_out, history_of(path, manifest))


def history_of(path: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the model's history: one record per step."""
    return [json.loads(line) for line in _read(path, manifest["files"]["history"]).splitlines()]


def _read(path: Path, entry: dict[str, str]) -> bytes:
    """Read a file that the manifest names, and check it."""
    file = path / entry["name"]
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise TreeringError(
            f"{file} is missing: the model folder was not copied completely; restore that file"
        ) from None
    except OSError as error:
        raise TreeringError(f"cannot read {file}: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise TreeringError(
            f"{file} is damaged (its checksum differs): restore that file from a copy of the model folder"
        )
    return content


def _write_files(path: Path, content: Content, before: dict[str, Any] | None) -> dict[str, Any]:
    """Write the files that the manifest is going to name; return the name and checksum of each."""
    flushed = {entry["name"] for entry in manifests.entries(before)} if before else set()
    unflushed: list[Path] = []

    def put(prefix: str, written: bytes, suffix: str) -> dict[str, str]:
        """Write one file under a name that holds its hash, unless it is there already."""
        checksum = hashlib.sha256(written).hexdigest()
        name = f"{prefix}{checksum[:12]}{suffix}"
        file = path / name
        is_there = file.is_file() and file.read_bytes() == written
        if not is_there:
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write(file, written, flushed=False)
        if not is_there or name not in flushed:  # a killed writer may have left it unflushed
            unflushed.append(file)
        return {"name": name, "sha256": checksum}

    def put_images(folder: str, images_by_class: Mapping[int, Tensor]) -> list[list[dict[str, str]]]:
        places = [f"{folder}/{label:04d}-{_slug(name)}" for label, name in enumerate(content.classes)]
        with ThreadPoolExecutor(WORKERS) as pool:
            return [
                [
                    put(f"{place}/{rank:04d}-", encoded, ".png")
                    for rank, encoded in enumerate(pool.map(_encode, images_by_class.get(label, ())))
                ]
                for label, place in enumerate(places)
            ]

    weights = {name: tensor.cpu().contiguous() for name, tensor in content.tensors.items()}
    history = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in content.history)
    entries = {
        "weights": put("weights-", safetensors.torch.save(weights), ".safetensors"),
        "history": put("history-", manifests.utf8(history), ".jsonl"),
        "memory": put_images("memory", content.memory),
        "held_out": put_images("held-out", content.held_out),
    }
    files.flush(unflushed)
    return entries


def _slug(name: Hashable) -> str:
    """Return a class name as part of a folder name."""
    return re.sub(r"[^\w-]+", "_", str(name))[:40].strip("_") or "class"


def _encode(image: Tensor) -> bytes:
    """Return C x H x W as a PNG file."""
    pixels = image.movedim(0, -1).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def _decode(content: bytes) -> Tensor:
    pixels = np.array(Image.open(io.BytesIO(content)))
    image = torch.from_numpy(pixels[:, :, None] if pixels.ndim == 2 else pixels).movedim(-1, 0)
    return image.clone(memory_format=torch.contiguous_format)
