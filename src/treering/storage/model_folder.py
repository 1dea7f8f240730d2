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
no manifest names are removed afterwards. Writers exclude each other by a lock; readers need none. No pickle is read.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import logging
import os
import platform
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import filelock
import numpy as np
import PIL
import safetensors
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from treering import methods
from treering.core import backbones
from treering.core.trainer import restore_generator
from treering.errors import TreeringError
from treering.images import folders as images
from treering.model import Model
from treering.recipe import Recipe
from treering.runtime import files
from treering.version import __version__

logger = logging.getLogger(__name__)

Content = TypeVar("Content")

FORMAT = "treering model"
FORMAT_VERSION = 1
FIXED = ("manifest.json", ".lock", ".writer", ".learning", "memory", "held-out", "previous")
VERSIONED = re.compile(
    rf"{re.escape(files.TEMPORARY)}.*|weights-[0-9a-f]{{12}}\.safetensors|history-[0-9a-f]{{12}}\.jsonl"
)
"""Names of ours in a model folder's top level: those that stay, and those of a version's files."""
EXEMPLAR = re.compile(rf"{re.escape(files.TEMPORARY)}.*|\d{{4,}}-[0-9a-f]{{12}}\.png")
"""Names of ours in a class's folder of exemplars."""
KEEP = 3
"""Versions before the current one that `undo` can go back to."""
SAVEABLE = (str, int, float, bool)
"""Types of labels that JSON gives back as they were."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Be the only writer of the folder, which is made if it is not there and then goes if nothing was put into it."""
    made = not files.exists(path)
    try:
        _make_folder(path)
        with filelock.FileLock(path / ".lock", timeout=0):
            try:
                (path / ".writer").write_text(json.dumps({"process": os.getpid(), "since": _now()}))
                yield
            finally:
                (path / ".writer").unlink(missing_ok=True)
                if not any(is_ours(file.name) for file in path.iterdir() if file.name != ".lock"):
                    with contextlib.suppress(PermissionError):  # on Windows, which removes it when it is released
                        (path / ".lock").unlink()
    except filelock.Timeout:
        raise TreeringError(f"{_writer(path)} is writing {path}: wait until it has ended, then try again") from None
    except OSError as error:
        raise TreeringError(
            f"cannot save to {path}: {error.strerror or error}; what it held before is intact"
        ) from error
    finally:
        if made:
            with contextlib.suppress(OSError):  # it holds something
                path.rmdir()


def _writer(path: Path) -> str:
    """Who holds the lock."""
    try:
        writer = json.loads((path / ".writer").read_bytes())
        return f"another treering (process {int(writer['process'])}, since {writer['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def save(model: Model, path: Path, keep: int = KEEP) -> None:
    """Write `model` as the folder's new content; the last `keep` versions stay for `undo`."""
    with writing(path):
        replace(model, path, keep)


def replace(model: Model, path: Path, keep: int) -> None:
    """`save` for who is `writing` already."""
    method = model.method
    unsaveable = next((label for label in model.classes if type(label) not in SAVEABLE), None)
    if unsaveable is not None:
        raise TreeringError(f"label {unsaveable!r} cannot be saved: a model folder holds texts and numbers as labels")
    before = _sound_manifest(path)
    entries = _write_files(path, model, before)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "recipe": method.recipe.to_dict(),
        "seed": model.seed,
        "classes": model.classes,
        "head_sizes": method.network.head_sizes,
        "steps": len(model.history),
        "image_shape": list(model.image_shape),
        "generator": {
            "device": method.generator.device.type,
            "state": method.generator.get_state().numpy().tobytes().hex(),
        },
        "files": entries,
        "saved": datetime.now(UTC).isoformat(),
        "versions": _versions(),
    }
    if keep and before and before["files"] != entries:
        current, earlier = (path / "manifest.json").read_bytes(), earlier_versions(path)
        if not earlier or earlier[-1].read_bytes() != current:  # it is there already if a writer was killed just then
            (path / "previous").mkdir(exist_ok=True)
            number = int(earlier[-1].stem) + 1 if earlier else 1
            files.write(path / "previous" / f"{number:04d}.json", current)
    files.write(path / "manifest.json", _sealed(manifest))
    _clean(path, keep)


def _sound_manifest(path: Path) -> dict[str, Any] | None:
    """What the folder says of its model, if it holds one."""
    try:
        return read_manifest(path)
    except TreeringError:
        return None


def undo(path: str | os.PathLike[str]) -> None:
    """Go back to the version before the current one."""
    path = Path(path)
    read_manifest(path)  # raises if there is no model
    with writing(path):
        current = read_manifest(path)
        for file in reversed(earlier_versions(path)):
            before = _parsed(file.read_bytes(), file)
            if before == current:  # a writer that was killed has put the current one there already
                file.unlink()
                continue
            for entry in _entries(before):
                _read(path, entry)  # raises if it is missing or damaged
            files.write(path / "manifest.json", file.read_bytes())
            file.unlink()
            (path / ".learning").unlink(missing_ok=True)  # of a step after the version that is gone
            _clean(path, None)
            return
        raise TreeringError(f"{path} has no version to go back to: it holds the first one, or the others are gone")


def history_of(path: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """One record per step."""
    return [json.loads(line) for line in _read(path, manifest["files"]["history"]).splitlines()]


def earlier_versions(path: Path) -> list[Path]:
    """The manifests of earlier versions, oldest first."""
    return sorted(path.glob("previous/[0-9][0-9][0-9][0-9]*.json"), key=lambda file: int(file.stem))


def versions_before(path: Path, current: dict[str, Any]) -> list[Path]:
    """Those that `undo` can go back to: a writer that was killed may have put the current one there already."""

    def is_current(file: Path) -> bool:
        try:
            return _parsed(file.read_bytes(), file) == current
        except TreeringError:
            return False

    return [file for file in earlier_versions(path) if not is_current(file)]


def _clean(path: Path, keep: int | None) -> None:
    """Remove versions beyond the last `keep`, if so many are given, and all files that no remaining version names."""
    try:
        current = read_manifest(path)
        older = versions_before(path, current)
        kept = older if keep is None else older[max(0, len(older) - keep) :]
        for file in earlier_versions(path):
            if file not in kept:
                file.unlink()
        _remove_unnamed(path, [current, *(_parsed(file.read_bytes(), file) for file in earlier_versions(path))])
    except (OSError, TreeringError) as error:
        logger.warning("files of earlier versions stay in %s: %s", path, error)


def load(path: Path, backbone: nn.Module | None, device: torch.device) -> Model:
    """The model that the folder holds."""
    return consistently(path, lambda manifest: _read_model(path, manifest, backbone, device))


def consistently(path: Path, read: Callable[[dict[str, Any]], Content]) -> Content:
    """What `read` makes of the manifest and its files; again if a writer cleans up a version while it is read."""
    while True:
        manifest = read_manifest(path)
        try:
            return read(manifest)
        except (TreeringError, FileNotFoundError):
            if read_manifest(path) == manifest:
                raise


def _read_model(path: Path, manifest: dict[str, Any], backbone: nn.Module | None, device: torch.device) -> Model:
    recipe = Recipe.from_dict(manifest["recipe"])
    entries = manifest["files"]
    custom = recipe.backbone == "custom"
    if custom and backbone is None:
        raise TreeringError(
            f"{path} was learnt with a module of your own: load it with Learner.load(folder, backbone=module)"
        )
    if not custom and backbone is not None:
        raise TreeringError(
            f"{path} was learnt with the backbone {recipe.backbone}: load it without a backbone of your own"
        )
    tensors = safetensors.torch.load(_read(path, entries["weights"]))
    channels = manifest["image_shape"][0]
    features = (
        backbones.copied(backbone)
        if backbone
        else backbones.build(recipe.backbone, channels, manifest["seed"], pretrained=False)
    )
    method = methods.create(recipe, features, torch.zeros_like(tensors["mean_image"]), manifest["seed"], device)
    if backbone is None:
        method.start_from(functools.partial(backbones.build, recipe.backbone, channels, manifest["seed"]))
    try:
        method.network.load_tensors(manifest["head_sizes"], tensors)
    except ValueError as error:
        raise TreeringError(f"the weights in {path} do not fit the backbone {recipe.backbone}: {error}") from None
    with images.decoding() as pool:

        def stacked(ranked: Sequence[dict[str, str]]) -> Tensor:
            return torch.stack(list(pool.map(lambda entry: _decode(_read(path, entry)), ranked)))

        for label, ranked in enumerate(entries["memory"]):
            if ranked:
                method.memory.store(label, stacked(ranked).to(device))
        held_out = {label: stacked(part) for label, part in enumerate(entries.get("held_out", ())) if part}
    drawn = bytearray.fromhex(manifest["generator"]["state"])
    restore_generator(method.generator, torch.frombuffer(drawn, dtype=torch.uint8))
    history = history_of(path, manifest)
    return Model(method, manifest["seed"], tuple(manifest["image_shape"]), manifest["classes"], history, held_out)


def _write_files(path: Path, model: Model, before: dict[str, Any] | None) -> dict[str, Any]:
    """Write what the manifest is going to name; returns name and checksum of each file."""
    method = model.method
    weights = safetensors.torch.save(
        {name: tensor.cpu().contiguous() for name, tensor in method.network.tensors().items()}
    )
    history = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in model.history)
    flushed = {entry["name"] for entry in _entries(before)} if before else set()
    unflushed: list[Path] = []

    def put(prefix: str, content: bytes, suffix: str) -> dict[str, str]:
        """Write one file under a name that holds its hash, unless it is there already."""
        checksum = hashlib.sha256(content).hexdigest()
        name = f"{prefix}{checksum[:12]}{suffix}"
        file = path / name
        is_there = file.is_file() and file.read_bytes() == content
        if not is_there:
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write(file, content, flushed=False)
        if not is_there or name not in flushed:  # a writer that was killed may have left it unflushed
            unflushed.append(file)
        return {"name": name, "sha256": checksum}

    def put_images(folder: str, images_by_class: Mapping[int, Tensor]) -> list[list[dict[str, str]]]:
        places = [f"{folder}/{label:04d}-{_slug(name)}" for label, name in enumerate(model.classes)]
        with images.decoding() as pool:
            return [
                [
                    put(f"{place}/{rank:04d}-", content, ".png")
                    for rank, content in enumerate(pool.map(_encode, images_by_class.get(label, ())))
                ]
                for label, place in enumerate(places)
            ]

    entries = {
        "weights": put("weights-", weights, ".safetensors"),
        "history": put("history-", _utf8(history), ".jsonl"),
        "memory": put_images("memory", method.memory.exemplars),
        "held_out": put_images("held-out", model.held_out),
    }
    files.flush(unflushed)
    return entries


def _read(path: Path, entry: dict[str, str]) -> bytes:
    """A file's content, checked."""
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


def _sealed(manifest: dict[str, Any]) -> bytes:
    """The manifest as JSON with a checksum of itself."""
    return _utf8(json.dumps({"checksum": _seal(manifest), **manifest}, indent=1, ensure_ascii=False))


def _utf8(text: str) -> bytes:
    # Names of files that are not UTF-8 reach Python with lone surrogates; they pass.
    return text.encode("utf-8", "surrogatepass")


def _seal(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """What the folder says of its model, without its weights and images."""
    file = path / "manifest.json"
    try:
        content = file.read_bytes()
    except NotADirectoryError:
        raise TreeringError(f"{path} is a file, not a model folder") from None
    except FileNotFoundError:
        if files.exists(path / ".learning") or files.exists(path / ".writer"):
            raise TreeringError(f"{path} has no model yet: its first step is under way, or was interrupted") from None
        what = "has no manifest.json: it is not a treering model folder" if path.is_dir() else "does not exist"
        raise TreeringError(f"{path} {what}; give the folder that a learner was saved to") from None
    except OSError as error:
        raise TreeringError(f"cannot read {file}: {error.strerror}") from None
    return _parsed(content, file)


def _parsed(content: bytes, file: Path) -> dict[str, Any]:
    """The manifest in a file's `content`."""
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


def _make_folder(path: Path) -> None:
    """Create the folder, or make sure that an existing one is ours to write to."""
    if path.exists() and not path.is_dir():
        raise TreeringError(f"{path} is a file: give the name of a folder")
    path.mkdir(parents=True, exist_ok=True)
    clutter = [item.name for item in path.iterdir() if item.is_file() and images.is_clutter(item.name)]
    foreign = [item.name for item in path.iterdir() if not is_ours(item.name) and item.name not in clutter]
    if foreign and not (path / "manifest.json").exists():
        raise TreeringError(f"{path} is not a treering model folder and holds {foreign[0]}: give a new or empty folder")


def _remove_unnamed(path: Path, manifests: Sequence[dict[str, Any]]) -> None:
    """Delete the files of removed versions and of writers that died; files that are not ours stay."""
    named = {_comparable(entry["name"]) for manifest in manifests for entry in _entries(manifest)}
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


def _entries(manifest: dict[str, Any]) -> list[dict[str, str]]:
    """Every file that the manifest names."""
    entries = manifest["files"]
    images = [entry for kind in ("memory", "held_out") for part in entries.get(kind, ()) for entry in part]
    return [entries["weights"], entries["history"], *images]


def is_ours(name: str) -> bool:
    """Whether something in a model folder's top level is treering's."""
    return name in FIXED or VERSIONED.fullmatch(name) is not None


def _comparable(name: str) -> str:
    """A file's name in the form that all file systems agree on: some ignore case, some compose letters differently."""
    return unicodedata.normalize("NFC", name).casefold()


def _slug(name: Hashable) -> str:
    """A class name as part of a folder name."""
    return re.sub(r"[^\w-]+", "_", str(name))[:40].strip("_") or "class"


def _encode(image: Tensor) -> bytes:
    """C x H x W as a PNG file."""
    pixels = image.movedim(0, -1).cpu().numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()


def _decode(content: bytes) -> Tensor:
    pixels = np.array(Image.open(io.BytesIO(content)))
    image = torch.from_numpy(pixels[:, :, None] if pixels.ndim == 2 else pixels).movedim(-1, 0)
    return image.clone(memory_format=torch.contiguous_format)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    return {
        "treering": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "safetensors": safetensors.__version__,
    }
