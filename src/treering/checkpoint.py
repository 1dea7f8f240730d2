"""Crash-safe model folders.

    manifest.json                    what the model is: classes, heads, recipe and every file's checksum
    weights-<hash>.safetensors       the network
    memory/<class>/<rank>-<hash>.png the exemplars, lossless; people may look at them
    history-<hash>.jsonl             one line a step

Files carry a hash of their content in their name and are never changed, so saving writes the new ones beside the old
and then replaces manifest.json, in one rename: a crash at any moment leaves either the old model or the new one. Files
no manifest names are removed afterwards. Writers exclude each other by a lock; readers need none. No pickle is read.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import platform
import re
from collections.abc import Hashable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import PIL
import safetensors
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

from treering import backbones, files, methods
from treering.errors import TreeringError
from treering.model import Model
from treering.recipe import Recipe
from treering.version import __version__

logger = logging.getLogger(__name__)

FORMAT = "treering model"
FORMAT_VERSION = 1
KEPT = ("manifest.json", ".lock")
OURS = re.compile(
    rf"manifest\.json|\.lock|memory|{re.escape(files.TEMPORARY)}.*|weights-[0-9a-f]{{12}}\.safetensors|history-[0-9a-f]{{12}}\.jsonl"
)
"""Names of ours in a model folder's top level."""
EXEMPLAR = re.compile(rf"{re.escape(files.TEMPORARY)}.*|\d{{4,}}-[0-9a-f]{{12}}\.png")
"""Names of ours in a class's folder of exemplars."""
SAVEABLE = (str, int, float, bool)
"""Types of labels that JSON gives back as they were."""


def save(model: Model, path: Path) -> None:
    """Write `model` as the folder's new content."""
    method = model.method
    unsaveable = next((label for label in model.classes if type(label) not in SAVEABLE), None)
    if unsaveable is not None:
        raise TreeringError(f"label {unsaveable!r} cannot be saved: a model folder holds texts and numbers as labels")
    try:
        _make_folder(path)
        with filelock.FileLock(path / ".lock", timeout=0):
            entries = _write_files(path, model)
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
            files.write(path / "manifest.json", _sealed(manifest))
            try:
                _remove_unnamed(path, manifest)
            except OSError as error:
                logger.warning("files of earlier versions stay in %s: %s", path, error)
    except filelock.Timeout:
        raise TreeringError(f"another process is writing {path}: wait until it has ended, then save again") from None
    except OSError as error:
        raise TreeringError(
            f"cannot save to {path}: {error.strerror or error}; what it held before is intact"
        ) from error


def load(path: Path, backbone: nn.Module | None, device: torch.device) -> Model:
    """The model that the folder holds."""
    while True:
        manifest = _read_manifest(path)
        try:
            return _read_model(path, manifest, backbone, device)
        except TreeringError:
            if _read_manifest(path) == manifest:
                raise
            # A writer has just put a new version in its place and cleaned up: read that one.


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
        copy.deepcopy(backbone).cpu() if backbone else backbones.build(recipe.backbone, channels, manifest["seed"])
    )
    method = methods.create(recipe, features, torch.zeros_like(tensors["mean_image"]), manifest["seed"], device)
    try:
        method.network.load_tensors(manifest["head_sizes"], tensors)
    except ValueError as error:
        raise TreeringError(f"the weights in {path} do not fit the backbone {recipe.backbone}: {error}") from None
    for label, ranked in enumerate(entries["memory"]):
        if ranked:
            images = [_decode(_read(path, entry)) for entry in ranked]
            method.memory.store(label, torch.stack(images).to(device))
    generator = manifest["generator"]
    if generator["device"] == device.type:
        method.generator.set_state(torch.frombuffer(bytearray.fromhex(generator["state"]), dtype=torch.uint8))
    history = [json.loads(line) for line in _read(path, entries["history"]).splitlines()]
    return Model(method, manifest["seed"], tuple(manifest["image_shape"]), manifest["classes"], history)


def _write_files(path: Path, model: Model) -> dict[str, Any]:
    """Write what the manifest is going to name; returns name and checksum of each file."""
    method = model.method
    weights = safetensors.torch.save({name: tensor.cpu() for name, tensor in method.network.tensors().items()})
    history = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in model.history)
    exemplars = []
    for label, name in enumerate(model.classes):
        folder = f"memory/{label:04d}-{_slug(name)}"
        images = method.memory.exemplars.get(label, ())
        exemplars.append(
            [_put(path, f"{folder}/{rank:04d}-", _encode(image), ".png") for rank, image in enumerate(images)]
        )
    return {
        "weights": _put(path, "weights-", weights, ".safetensors"),
        "history": _put(path, "history-", _utf8(history), ".jsonl"),
        "memory": exemplars,
    }


def _put(path: Path, prefix: str, content: bytes, suffix: str) -> dict[str, str]:
    """Write one file under a name that holds its hash, unless it is there already; returns the manifest's entry."""
    checksum = hashlib.sha256(content).hexdigest()
    name = f"{prefix}{checksum[:12]}{suffix}"
    file = path / name
    if not (file.is_file() and file.read_bytes() == content):
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, content)
    return {"name": name, "sha256": checksum}


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


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_bytes())
    except NotADirectoryError:
        raise TreeringError(f"{path} is a file, not a model folder") from None
    except FileNotFoundError:
        what = "has no manifest.json: it is not a treering model folder" if path.is_dir() else "does not exist"
        raise TreeringError(f"{path} {what}; give the folder that a learner was saved to") from None
    except OSError as error:
        raise TreeringError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise TreeringError(f"{file} is damaged (not JSON): restore it from a copy of the model folder") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise TreeringError(f"{file} was not written by treering: give the folder that a learner was saved to")
    version = manifest.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise TreeringError(
            f"{path} was written by a newer treering (format {version}; this one reads up to {FORMAT_VERSION}): "
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
    foreign = [item.name for item in path.iterdir() if not OURS.fullmatch(item.name)]
    if foreign and not (path / "manifest.json").exists():
        raise TreeringError(f"{path} is not a treering model folder and holds {foreign[0]}: give a new or empty folder")


def _remove_unnamed(path: Path, manifest: dict[str, Any]) -> None:
    """Delete the files of earlier versions and of writers that died; files that are not ours stay."""
    entries = manifest["files"]
    ranked = [entry for part in entries["memory"] for entry in part]
    named = {entry["name"] for entry in (entries["weights"], entries["history"], *ranked)}
    for file in [*path.glob("*"), *path.glob("memory/*/*")]:
        ours = OURS if file.parent == path else EXEMPLAR
        unnamed = file.name not in KEPT and file.relative_to(path).as_posix() not in named
        if unnamed and ours.fullmatch(file.name) and file.is_file():
            file.unlink()
    for folder in path.glob("memory/*"):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


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


def _versions() -> dict[str, str]:
    return {
        "treering": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "safetensors": safetensors.__version__,
    }
