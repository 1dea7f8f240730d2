"""CIFAR-100 (Krizhevsky 2009) from its standard `cifar-100-python` folder, and its vehicles [appendix C]."""

from __future__ import annotations

import hashlib
import http.client
import io
import pickle
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from treering.data.stream import Dataset
from treering.errors import TreeringError

FOLDER = "cifar-100-python"
URL = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"
MD5 = "eb9058c3a382ffc7106e4002c42a8d85"
"""Of the archive, as published beside it."""
ATTEMPTS = 3
VEHICLES = ("vehicles_1", "vehicles_2")


def load(folder: Path, download: bool = False) -> Dataset:
    """All hundred classes. `folder` holds cifar-100-python, or is it."""
    source = _find(folder, download)
    train, test, meta = (_read(source / name) for name in ("train", "test", "meta"))
    names = tuple(name.decode() for name in meta[b"fine_label_names"])
    return Dataset("cifar100", *_arrays(train), *_arrays(test), names)


def load_vehicles(folder: Path, download: bool = False) -> Dataset:
    """The ten classes of the superclasses vehicles 1 and 2, numbered 0..9 in the order of their labels."""
    full = load(folder, download)
    superclass = superclasses(folder)
    chosen = [label for label, name in enumerate(full.class_names) if superclass[name] in VEHICLES]
    number = np.full(len(full.class_names), -1)
    number[chosen] = np.arange(len(chosen))
    train, test = np.isin(full.train_labels, chosen), np.isin(full.test_labels, chosen)
    return Dataset(
        "cifar100-vehicles",
        full.train_images[train],
        number[full.train_labels[train]],
        full.test_images[test],
        number[full.test_labels[test]],
        tuple(full.class_names[label] for label in chosen),
    )


def superclasses(folder: Path) -> dict[str, str]:
    """Class name -> superclass name."""
    source = _find(folder, download=False)
    train, meta = _read(source / "train"), _read(source / "meta")
    pairs = set(zip(train[b"fine_labels"], train[b"coarse_labels"], strict=True))
    return {
        meta[b"fine_label_names"][fine].decode(): meta[b"coarse_label_names"][coarse].decode() for fine, coarse in pairs
    }


def _find(folder: Path, download: bool) -> Path:
    for candidate in (folder / FOLDER, folder):
        if all((candidate / name).is_file() for name in ("train", "test", "meta")):
            return candidate
    if not download:
        raise TreeringError(f"no {FOLDER} folder in {folder}: unpack CIFAR-100 there, or let --download fetch it")
    fetch(folder)
    return folder / FOLDER


def _arrays(content: dict[bytes, Any]) -> tuple[np.ndarray, np.ndarray]:
    images = content[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.array(content[b"fine_labels"], dtype=np.int64)


class _PlainUnpickler(pickle.Unpickler):
    """Reads what the published files hold, arrays and lists, and nothing that could run code."""

    ALLOWED = ("_reconstruct", "ndarray", "dtype", "encode")

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def _read(path: Path) -> dict[bytes, Any]:
    try:
        content = _PlainUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError("it holds no dictionary")
    except OSError as error:
        raise TreeringError(f"cannot read {path}: {error.strerror}") from None
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError, ImportError) as error:
        raise TreeringError(
            f"{path} is not a file of CIFAR-100 ({error}): delete the folder and unpack it again"
        ) from None
    return content


def fetch(folder: Path, url: str = URL, md5: str = MD5, pause: float = 2.0) -> None:
    """Download and verify the published archive and unpack it; the folder appears complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                archive = response.read()
            break
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            if attempt == ATTEMPTS:
                raise TreeringError(
                    f"cannot download {url} ({reason}): fetch it elsewhere and unpack it in {folder}"
                ) from None
            time.sleep(pause * attempt)
    if hashlib.md5(archive, usedforsecurity=False).hexdigest() != md5:
        raise TreeringError(f"what {url} sent is not the published archive (its MD5 differs): try again later")
    unpacked = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(unpacked, filter="data")
        (unpacked / FOLDER).replace(folder / FOLDER)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
