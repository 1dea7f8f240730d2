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
ever read, no link is followed, and nothing is believed that was not checked: a folder may come from a stranger.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors.torch
import torch
from torch import Tensor

from treering import words
from treering.errors import TreeringError, UnjudgedError
from treering.images.files import WORKERS
from treering.runtime.pixels import Images
from treering.storage import lock, names, pictures, versions
from treering.storage import manifest as manifests
from treering.storage import tensors as stored
from treering.storage.folder import Folder
from treering.storage.manifest import COPY, Entry, Manifest
from treering.storage.pictures import Pictures

logger = words.logger(__name__)

Read = TypeVar("Read")

KEEP = 3
"""The number of versions before the current one that `undo` can go back to."""
SAVEABLE = (str, int, float, bool)
"""The types of labels that JSON gives back as they were."""
LARGEST = 2**32
"""The most bytes of a weights file that is only compared with its checksum."""
UNFINISHED = 8
"""How many times the bytes of a model its unfinished step may have: two networks, and twice two values a weight."""
ALWAYS_HELD, MOST_HELD = 2**29, 64
"""Images may take so many bytes in memory, or so many times those of their files: photos take a few times those.

Files of one content, under whatever names, count once.
"""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Content:
    """What a model folder is going to hold, as plain values and tensors."""

    facts: dict[str, Any]
    """What the manifest says of the model; see `model.py`."""
    classes: list[Any]
    """The label of each column."""
    tensors: dict[str, Tensor]
    """The network's weights and statistics."""
    memory: Mapping[int, Images]
    """The exemplars of each column, best first."""
    held_out: Mapping[int, Images]
    history: list[dict[str, Any]]


# Writing


def save(content: Content, path: Path, keep: int = KEEP) -> None:
    """Write the folder's new content, as its only writer; the last `keep` versions stay for `undo`."""
    with lock.writing(path) as folder:
        replace(content, folder, keep)


def replace(content: Content, folder: Folder, keep: int, instead: bool = False) -> None:
    """Do what `save` does, for a caller that is `writing` to the folder already.

    The current version goes if this one comes `instead` of it, and the version before it is what `undo` leads to.
    An unfinished step gives way where the disk has no room for both: the model that is saved is what it leads to.
    """
    unsaveable = next((label for label in content.classes if type(label) not in SAVEABLE), None)
    if unsaveable is not None:
        raise TreeringError(f"label {unsaveable!r} cannot be saved: use texts or numbers as labels")
    try:
        _replace(content, folder, keep, instead)
    except OSError as error:
        if error.errno not in NO_ROOM or not folder.exists(names.LEARNING):
            raise
        _replace_without_unfinished(content, folder, keep, instead)


def _replace_without_unfinished(content: Content, folder: Folder, keep: int, instead: bool) -> None:
    """Try to save in the room of the unfinished step, which is put back if there is still too little.

    What is in its place and cannot be a step of this model goes without a copy: it could take all memory.
    """
    most = UNFINISHED * sum(tensor.nbytes for tensor in content.tensors.values()) + stored.LARGEST_HEADER
    try:
        unfinished = folder.read(names.LEARNING, most)
    except (OSError, TreeringError):
        logger.warning("%s is no unfinished step of this model and is not kept", folder.path / names.LEARNING)
        unfinished = None
    folder.remove(names.LEARNING)
    try:
        _replace(content, folder, keep, instead)
    except OSError:
        clean(folder, None)
        if unfinished is not None:
            folder.write(names.LEARNING, unfinished)
        raise


def _replace(content: Content, folder: Folder, keep: int, instead: bool) -> None:
    try:
        before = manifests.read(folder)
    except UnjudgedError:  # it may well be a model
        raise
    except TreeringError:  # it has no model yet, or a damaged one
        before = None
    files = write_files(folder, content, before)
    made = manifests.made(content.facts, asdict(files))
    manifests.checked(made, folder.path / manifests.NAME)  # nothing is written that could not be read again
    if keep and before and before.files != files and not instead:
        versions.add(folder, folder.read(manifests.NAME, manifests.LARGEST))
    folder.write(manifests.NAME, manifests.sealed(made))
    clean(folder, keep)


def write_files(folder: Folder, content: Content, before: Manifest | None) -> manifests.Files:
    """Write the files that the manifest is going to name; return the name and checksum of each."""
    flushed = {entry.name for entry in before.files} if before else set()
    unflushed: list[str] = []

    def put(prefix: str, written: bytes, suffix: str) -> Entry:
        """Write one file under a name that holds its hash, unless the version before has it already.

        Another file of that name is written anew: its content may be in memory alone, if flushing it has failed.
        """
        checksum = hashlib.sha256(written).hexdigest()
        name = f"{prefix}{checksum[:12]}{suffix}"
        if name not in flushed or not _holds(folder, name, written):
            folder.write(name, written, flushed=False)
            unflushed.append(name)
        return Entry(name, checksum)

    def put_images(around: str, images_by_class: Mapping[int, Images]) -> tuple[tuple[Entry, ...], ...]:
        entries: list[tuple[Entry, ...]] = []
        with ThreadPoolExecutor(WORKERS) as pool:
            for label, name in enumerate(content.classes):
                place = f"{around}/{label:04d}-{_slug(name)}"
                files = pictures.encoded(images_by_class[label], pool) if label in images_by_class else ()
                entries.append(tuple(put(f"{place}/{rank:04d}-", file, ".png") for rank, file in enumerate(files)))
        return tuple(entries)

    weights = {name: tensor.cpu().contiguous() for name, tensor in content.tensors.items()}
    history = manifests.utf8("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in content.history))
    manifests.require_bounded(history, folder.path)
    written = manifests.Files(
        put("weights-", safetensors.torch.save(weights), ".safetensors"),
        put("history-", history, ".jsonl"),
        put_images("memory", content.memory),
        put_images("held-out", content.held_out),
    )
    folder.flush(unflushed)
    return written


def _holds(folder: Folder, name: str, content: bytes) -> bool:
    """Return whether a file is there and has this content."""
    try:
        return folder.read(name, len(content)) == content
    except (FileNotFoundError, TreeringError):  # a TreeringError if it is longer, or no file: it is replaced
        return False


def _slug(name: Hashable) -> str:
    """Return a class name as part of a folder name."""
    return re.sub(r"[^\w-]+", "_", str(name))[:40].strip("_") or "class"


def undo(path: Path, examine: Callable[[Folder, Manifest], object]) -> None:
    """Do what `model.undo` does, where `examine` raises if a version cannot be used."""
    manifests.of(path)  # raises if there is no model
    with lock.writing(path) as folder:
        current = manifests.read(folder)
        for name in reversed(manifests.earlier(folder)):
            before, content = manifests.read_earlier(folder, name)
            if before == current:  # a killed writer has put the current one there already
                folder.remove(name)
                continue
            for entry in before.files:
                require_whole(folder, before, entry)
            examine(folder, before)
            put_back(folder, name, content)
            return
        raise TreeringError(f"{path} has no version to go back to: it holds the first one, or the others are gone")


def put_back(folder: Folder, name: str, content: bytes, newer: Sequence[str] = ()) -> None:
    """Make an earlier version, whose manifest is the file `name` with this content, the current one again.

    The manifests of versions that are `newer` go.
    """
    folder.write(manifests.NAME, content)
    for gone in (*newer, name):
        folder.remove(gone)
    folder.remove(names.LEARNING)  # it continues the version that is gone now
    clean(folder, None)


def clean(folder: Folder, keep: int | None) -> None:
    """Remove earlier versions beyond the last `keep` (None keeps all), and files that no remaining version names."""
    try:
        current = manifests.read(folder)
        older = manifests.earlier_than(folder, current)
        kept = older if keep is None else older[max(0, len(older) - keep) :]
        for name in manifests.earlier(folder):
            if name not in kept:
                folder.remove(name)
        remaining = [manifests.read_earlier(folder, name)[0] for name in manifests.earlier(folder)]
        for name in unnamed(folder, [current, *remaining]):
            (folder.remove_unfinished if names.fits(names.TEMPORARY, name) else folder.remove)(name)
        for item in reversed(list(folder.walk())):
            if item.kind == "folder" and names.fits(names.CLASS, item.name):
                folder.remove_folder(item.name)
    except (OSError, TreeringError) as error:
        logger.warning("files of earlier versions stay in %s: %s", folder.path, error)


def unnamed(folder: Folder, remaining: Sequence[Manifest]) -> dict[str, int]:
    """Return name and size of the files of removed versions and of killed writers, which no manifest names."""
    named = {names.comparable(entry.name) for manifest in remaining for entry in manifest.files}
    ours = (names.WEIGHTS, names.HISTORY, names.IMAGE)
    return {
        item.name: item.size
        for item in folder.walk()
        if item.kind == "file"
        and (
            names.fits(names.TEMPORARY, item.name)
            or (names.comparable(item.name) not in named and any(names.fits(kind, item.name) for kind in ours))
        )
    }


# Reading


def consistently(path: Path, read: Callable[[Folder, Manifest], Read]) -> Read:
    """Return what `read` makes of the manifest and its files; read again if a writer removes that version meanwhile."""
    with manifests.opened(path) as folder:
        while True:
            manifest = manifests.read(folder)
            try:
                return read(folder, manifest)
            except (TreeringError, FileNotFoundError):
                if manifests.read(folder) == manifest:
                    raise


def weights_of(
    folder: Folder,
    manifest: Manifest,
    expected: Mapping[str, stored.Spec],
    loose: Mapping[str, int],
    further: Sequence[Mapping[str, stored.Spec]],
) -> dict[str, Tensor]:
    """Read the weights; raise ValueError unless they are the tensors of these names, types and shapes.

    `loose` names tensors that may have any number of rows up to the one that it gives. `further` ones may be there too,
    all or none of each table.
    """
    every = {name: spec for table in (expected, *further) for name, spec in table.items()}
    rows = sum(most * every[name].bytes_of_row for name, most in loose.items())
    most = 8 + stored.LARGEST_HEADER + rows + sum(spec.bytes for spec in every.values())
    file = folder.path / manifest.files.weights.name
    content = _read_weights(folder, manifest.files.weights, most)
    try:
        header = stored.header(content)
    except ValueError as error:
        raise TreeringError(f"{file} is no file of weights, since {error}: {COPY}") from None
    found = header.specs
    for table in further:
        expected = {**expected, **table} if found.keys() & table.keys() else expected
    free = {name: found[name] for name in loose if name in found and found[name].is_like(expected[name])}
    stored.require_alike(found, {**expected, **free})
    try:
        return stored.load(content, header)
    except ValueError as error:
        raise TreeringError(f"{file} cannot be used, since {error}: {COPY}") from None


def images_of(
    folder: Folder, manifest: Manifest, decoded: bool
) -> tuple[dict[int, Tensor] | dict[int, Pictures], dict[int, Pictures]]:
    """Read the exemplars and the held-out images of each column that has some.

    Exemplars are `decoded` here or, as held-out images are, when they are used.
    """
    shape, by_kind = manifest.image_shape, (manifest.files.memory, manifest.files.held_out)
    entries = [entry for by_class in by_kind for ranked in by_class for entry in ranked]
    taken = len(entries) * math.prod(shape)
    if taken > ALWAYS_HELD:
        different = {entry.sha256: entry.name for entry in entries}
        if taken > MOST_HELD * sum(map(folder.held, different.values())):
            what = f"{len(entries):,} images that would take {taken:,} bytes, far more than their files"
            raise TreeringError(f"{folder.path} keeps {what}, so they are no photos: {COPY}")

    known: dict[str, bytes] = {}

    def whole(entry: Entry) -> bytes:
        content = _read(folder, entry, pictures.most_bytes(shape))
        if entry.sha256 not in known:
            pictures.require_decodable(content, shape)
        return known.setdefault(entry.sha256, content)

    def each(ranked: Sequence[Entry], use: Callable[[Entry], Read]) -> list[Read]:
        found = []
        for entry in ranked:
            try:
                found.append(use(entry))
            except TreeringError:
                raise
            except ValueError as error:
                file = folder.path / entry.name
                raise TreeringError(f"{file} is no image of the model's shape, since {error}: {COPY}") from None
        return found

    def as_files(ranked: Sequence[Entry]) -> Pictures:
        return Pictures(each(ranked, whole), shape)

    def as_pixels(ranked: Sequence[Entry]) -> Tensor:
        most = pictures.most_bytes(shape)
        return torch.stack(each(ranked, lambda entry: pictures.decoded(_read(folder, entry, most), shape)))

    def by_label(read: Callable[[Sequence[Entry]], Read], by_class: Sequence[Sequence[Entry]]) -> dict[int, Read]:
        some = {label: ranked for label, ranked in enumerate(by_class) if ranked}
        return dict(zip(some, pool.map(read, some.values()), strict=True))

    with ThreadPoolExecutor(WORKERS) as pool:
        memory, held_out = by_kind
        kept = by_label(as_pixels, memory) if decoded else by_label(as_files, memory)
        return kept, by_label(as_files, held_out)


def history_of(folder: Folder, manifest: Manifest) -> list[dict[str, Any]]:
    """Read the model's history: one record per step."""
    content = _read(folder, manifest.files.history, manifests.LARGEST_HISTORY)
    return manifests.history(content, manifest, folder.path / manifest.files.history.name)


def require_whole(folder: Folder, manifest: Manifest, entry: Entry) -> None:
    """Raise if a file that a manifest names is missing or damaged; little memory is taken, however large it is."""
    if entry is manifest.files.weights:
        _read_by(folder, entry, lambda: (None, _digest_of_weights(folder, entry)))
    else:
        is_history = entry is manifest.files.history
        most = manifests.LARGEST_HISTORY if is_history else pictures.most_bytes(manifest.image_shape)
        _read_by(folder, entry, lambda: folder.digest(entry.name, most))


def _read_weights(folder: Folder, entry: Entry, most: int) -> bytearray:
    def read() -> tuple[bytearray, str]:
        _require_stored(folder, entry)
        content = folder.buffer(entry.name, most)
        return content, hashlib.sha256(content).hexdigest()

    return _read_by(folder, entry, read)


def _require_stored(folder: Folder, entry: Entry) -> None:
    """Raise if the disk holds only a part of a weights file: a few bytes could ask for gigabytes of memory so."""
    if folder.is_hollow(entry.name):
        what = "is mostly holes, which no weights are (or its file system compresses it to less than half)"
        raise TreeringError(f"{folder.path / entry.name} {what}: {COPY}")


def _digest_of_weights(folder: Folder, entry: Entry) -> str:
    """Return the checksum of a weights file, or a text that is none if its size is not that in its header."""
    _require_stored(folder, entry)
    try:
        length = int.from_bytes(folder.start(entry.name, 8), "little")
        stored.header(folder.start(entry.name, 8 + min(length, stored.LARGEST_HEADER)), folder.size(entry.name))
    except TreeringError:
        raise
    except ValueError:
        return "of no tensors"
    return folder.digest(entry.name, LARGEST)[1]


def _read(folder: Folder, entry: Entry, most: int) -> bytes:
    """Read a file that the manifest names, and check it."""

    def read() -> tuple[bytes, str]:
        content = folder.read(entry.name, most)
        return content, hashlib.sha256(content).hexdigest()

    return _read_by(folder, entry, read)


def _read_by(folder: Folder, entry: Entry, read: Callable[[], tuple[Read, str]]) -> Read:
    """Return what `read` gives beside the checksum of a file, if the checksum is right."""
    try:
        content, checksum = read()
    except FileNotFoundError:
        what = "is missing: the model folder was not copied completely; restore that file"
        raise TreeringError(f"{folder.path / entry.name} {what}") from None
    except OSError as error:
        raise UnjudgedError(f"cannot read {folder.path / entry.name}: {error.strerror}") from None
    if checksum != entry.sha256:
        what = "is damaged (its checksum differs): restore that file from a copy of the model folder"
        raise TreeringError(f"{folder.path / entry.name} {what}")
    return content
