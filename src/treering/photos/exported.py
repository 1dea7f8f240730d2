"""An exported ONNX file that answers for photos, without PyTorch.

The file may come from a stranger: its size, its graph and what it says of itself are checked before they are used, and
another process computes its answers (`onnx_process.py`).
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treering.checked import Checked, checked, parse_json, require
from treering.errors import TreeringError
from treering.photos import onnx_file
from treering.photos.onnx_process import Process
from treering.prediction import LONGEST_SIDE, Teller
from treering.runtime import files

MOST_BYTES = 3 * 2**27
"""The largest file that is read."""
MOST_FACTS = 2**24
"""The most bytes of what the file says of itself."""
MOST_PIXELS = 2**16
"""About how many pixels the graph is asked about at once: few bound time and memory, and more are not faster."""
KEY = "treering.preprocessing"
"""The name of the fact that says how photos are prepared."""
MOST_CLASSES = 100_000
"""The most classes of a file."""
MOST_QUANTILES = 1000
"""The most quantiles of usual distances that are read."""


@dataclass(frozen=True)
class Preprocessing(Checked):
    """How a photo becomes the file's input."""

    channels: int
    size: int
    """The side of the squares that photos are read as."""
    input: int
    """The side of the squares that the graph takes, to which those photos are resized once more."""
    draft: int
    """The side below which a JPEG is not decoded at a fraction of its size."""

    def _check_ranges(self) -> None:
        require(self.channels in (1, 3), f"channels must be 1 or 3, not {self.channels}")
        for name in ("size", "input"):
            side = getattr(self, name)
            require(1 <= side <= LONGEST_SIDE, f"{name} must be from 1 to {LONGEST_SIDE}, not {side}")
        require(self.draft == 2 * self.size, f"draft must be twice the size, not {self.draft}")


@dataclass(frozen=True)
class Usual(Checked):
    """How far images of known classes usually are from the class that they resemble most."""

    quantiles: tuple[float, ...]
    share: float
    threshold: float

    def _check_ranges(self) -> None:
        require(1 <= len(self.quantiles) <= MOST_QUANTILES, f"quantiles must be 1 to {MOST_QUANTILES}")
        require(list(self.quantiles) == sorted(self.quantiles), "quantiles must be sorted")
        require(0 <= self.share <= 1, f"share must be from 0 to 1, not {self.share}")


@dataclass(frozen=True)
class Facts:
    """What a file says of itself."""

    names: list[str]
    """The classes."""
    how: Preprocessing
    usual: Usual | None
    """None if the file cannot tell unknown images."""


def opened(file: Path, threads: int | None = None) -> Teller:
    """Return what answers by this file."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise TreeringError("ONNX files need more packages: pip install 'treering[export]'")
    try:
        content = files.read(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TreeringError(f"cannot read {file}: {reason}") from None
    try:
        facts = _facts(content)
    except TreeringError as error:
        raise TreeringError(f"{file} cannot be used: {error}; export the model again") from None
    how, kind = facts.how, "tensor(float)"
    shape = [how.channels, how.input, how.input]
    try:
        process = Process(content, shape, threads)
    except TreeringError as error:
        raise TreeringError(f"{file} cannot be used: {error}; export the model again") from None
    expected = [["images", kind, shape], ["probabilities", kind, [len(facts.names)]]]
    if process.described != expected + ([["distances", kind, []]] if facts.usual else []):
        raise TreeringError(f"{file} cannot be used: its graph does not fit what it says of itself; export it again")
    usual = np.array(facts.usual.quantiles) if facts.usual else None
    return Teller(facts.names, how.size, how.channels, functools.partial(_ask, process, facts, file), usual)


def _ask(process: Process, facts: Facts, file: Path, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return probabilities N x classes and perhaps distances for images N x size x size x channels."""
    at_once = max(1, MOST_PIXELS // facts.how.input**2)
    parts = [images[start : start + at_once] for start in range(0, len(images), at_once)]
    try:
        answers = [_answers(process, facts, part) for part in parts]
    except TreeringError as error:
        raise TreeringError(f"{file} cannot answer: {error}; export the model again") from None
    probabilities, *distances = (np.concatenate(outputs) for outputs in zip(*answers, strict=True))
    return probabilities, distances[0] if distances else None


def _answers(process: Process, facts: Facts, images: np.ndarray) -> list[np.ndarray]:
    """Return what the file answers for a few images: probabilities and perhaps distances."""
    pixels = np.ascontiguousarray(_resized(images.astype(np.float32).transpose(0, 3, 1, 2), facts.how.input))
    shapes: list[tuple[int, ...]] = [(len(images), len(facts.names)), (len(images),)]
    outputs = process.outputs(pixels, shapes if facts.usual else shapes[:1])
    probabilities, *distances = (output.astype(np.float64) for output in outputs)
    total = probabilities.sum(1, keepdims=True)
    good = (probabilities >= 0).all() and np.allclose(total, 1, atol=1e-3)
    require(bool(good), "its answers are no probabilities")
    require(all(np.isfinite(part).all() for part in distances), "its distances are no numbers")
    return [probabilities / total, *distances]  # they summed to 1 in float32 only


def _resized(images: np.ndarray, side: int) -> np.ndarray:
    """Resize squares N x C x H x H as torch's bilinear, antialiased interpolation does, and round to whole numbers."""
    if images.shape[-1] == side:
        return images
    places, weights = _taps(images.shape[-1], side)
    rows = sum(images[..., places[:, tap]] * weights[:, tap] for tap in range(places.shape[1]))
    both = sum(rows[..., places[:, tap], :] * weights[:, tap, None] for tap in range(places.shape[1]))
    return np.rint(both).clip(0, 255)


def _taps(held: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which pixels of a row each new pixel is made of, and their weights, in float32 as torch computes them."""
    half, scale = np.float32(0.5), np.float32(held) / np.float32(side)
    reach = max(scale, np.float32(1))
    centre = scale * (np.arange(side, dtype=np.float32) + half)
    first = np.maximum((centre - reach + half).astype(int), 0)
    count = np.minimum((centre + reach + half).astype(int), held) - first
    tap = np.arange(count.max())
    distance = np.abs((tap + first[:, None] - centre[:, None] + half).astype(np.float32)) / reach
    weights = np.where(tap < count[:, None], np.clip(1 - distance, 0, None), 0).astype(np.float32)
    return np.minimum(first[:, None] + tap, held - 1), weights / weights.sum(1, keepdims=True)


def _facts(content: bytes) -> Facts:
    """Return what the file says of itself, once it is known to be harmless."""
    try:
        facts = onnx_file.facts(content)
        require(sum(map(len, facts.values())) <= MOST_FACTS, "it says too much of itself")
        squares = f"as files for square images of at most {LONGEST_SIDE:,} pixels a side do"
        require("classes" in facts and KEY in facts, f"it does not say how photos are prepared, {squares}")
        how = Preprocessing.of(parse_json(facts[KEY]), f"{KEY}.")
        usual = Usual.of(parse_json(facts["unknown"]), "unknown.") if "unknown" in facts else None
        names = list(checked(parse_json(facts["classes"]), tuple[str, ...], "classes"))
    except TreeringError:
        raise
    except (ValueError, IndexError) as error:
        raise TreeringError(f"it is damaged ({error})") from None
    require(len(names) <= MOST_CLASSES, f"it has more than {MOST_CLASSES:,} classes")
    require(len(names) > 0 and len(set(names)) == len(names), "its classes are not names that all differ")
    return Facts(names, how, usual)
