"""An exported ONNX file that answers for photos, without PyTorch.

The file may come from a stranger: its size, its graph and what it says of itself are checked before they are used.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treering.checked import Checked, checked, parse_json, require
from treering.errors import TreeringError, first_line
from treering.prediction import Teller
from treering.runtime import files

MOST_BYTES = 2**30
"""The largest file that is read."""
MOST_FACTS = 2**24
"""The most bytes of what the file says of itself."""
MOST_NODES = 100_000
"""The most operations of the file's graph."""
KEY = "treering.preprocessing"
"""The name of the fact that says how photos are prepared."""
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
            require(1 <= side <= 4096, f"{name} must be from 1 to 4096, not {side}")
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
    try:
        import onnxruntime
    except ImportError:
        raise TreeringError("ONNX files need more packages: pip install 'treering[export]'") from None
    try:
        content = files.read(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TreeringError(f"cannot read {file}: {reason}") from None
    try:
        facts = _facts(content)
    except TreeringError as error:
        raise TreeringError(f"{file} cannot be used: {error}; export the model again") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what is wrong is said in one line
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other programs use the cores meanwhile
    if threads:
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class for each kind of error, and none for all
        raise TreeringError(f"{file} is damaged: onnxruntime says {first_line(error)}") from None
    found = [(one.name, one.type, one.shape[1:]) for one in (*session.get_inputs(), *session.get_outputs())]
    how, kind = facts.how, "tensor(float)"
    expected = [("images", kind, [how.channels, how.input, how.input]), ("probabilities", kind, [len(facts.names)])]
    if found != expected + ([("distances", kind, [])] if facts.usual else []):
        raise TreeringError(f"{file} cannot be used: its graph does not fit what it says of itself; export it again")
    usual = np.array(facts.usual.quantiles) if facts.usual else None
    return Teller(facts.names, how.size, how.channels, functools.partial(_ask, session, how, file), usual)


def _ask(session: Any, how: Preprocessing, file: Path, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return probabilities N x classes and perhaps distances for images N x size x size x channels."""
    pixels = _resized(images.astype(np.float32).transpose(0, 3, 1, 2), how.input)
    try:
        answers, *more = session.run(None, {"images": np.ascontiguousarray(pixels)})
    except Exception as error:
        raise TreeringError(f"{file} cannot answer: onnxruntime says {first_line(error)}") from None
    probabilities = np.asarray(answers, np.float64)
    total = probabilities.sum(1, keepdims=True)
    if len(probabilities) != len(images) or (probabilities < 0).any() or not np.allclose(total, 1, atol=1e-3):
        raise TreeringError(f"{file} cannot be used: its answers are no probabilities; export the model again")
    distances = np.asarray(more[0], np.float64) if more else None
    if distances is not None and (distances.shape != (len(images),) or not np.isfinite(distances).all()):
        raise TreeringError(f"{file} cannot be used: its distances are no numbers; export the model again")
    return probabilities / total, distances  # they summed to 1 in float32 only


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


# The file as such: nested messages of protocol buffers. Numbers below are those of the fields in onnx.proto.


def _facts(content: bytes) -> Facts:
    """Return what the file says of itself, once the graph is known to need nothing but this file."""
    facts: dict[str, bytes] = {}
    try:
        for number, value in _fields(memoryview(content)):
            if number == 7:
                _require_self_contained(value)
            elif number == 14:
                key, text = (_joined(value, part) for part in (1, 2))
                facts[key.decode()] = text
            require(number != 25, "its graph has functions of its own")
        require(sum(map(len, facts.values())) <= MOST_FACTS, "it says too much of itself")
        require("classes" in facts and KEY in facts, "it does not say how photos are prepared")
        how = Preprocessing.of(parse_json(facts[KEY]), f"{KEY}.")
        usual = Usual.of(parse_json(facts["unknown"]), "unknown.") if "unknown" in facts else None
        names = list(checked(parse_json(facts["classes"]), tuple[str, ...], "classes"))
    except TreeringError:
        raise
    except (ValueError, IndexError) as error:
        raise TreeringError(f"it is damaged ({error})") from None
    require(len(names) > 0 and len(set(names)) == len(names), "its classes are not names that all differ")
    return Facts(names, how, usual)


def _require_self_contained(graph: memoryview) -> None:
    """Raise if a graph reads other files, or has loops or branches, which could go on for ever."""
    nodes = 0
    for number, value in _fields(graph):
        tensors = [value] if number == 5 else []
        if number == 1:
            nodes += 1
            require(nodes <= MOST_NODES, f"its graph has more than {MOST_NODES:,} operations")
            for part, attribute in _fields(value):
                for kind, inner in _fields(attribute) if part == 5 else ():
                    require(kind not in (6, 11), "its graph has loops or branches")
                    tensors += [inner] if kind in (5, 10) else []
        require(number != 15 and not any(_is_outside(tensor) for tensor in tensors), "its weights are in other files")


def _is_outside(tensor: memoryview) -> bool:
    return any(number in (13, 14) for number, _ in _fields(tensor))


def _joined(message: memoryview, wanted: int) -> bytes:
    return b"".join(bytes(value) for number, value in _fields(message) if number == wanted)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each field of a message; the content of a plain number is empty."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind, start = key & 7, at
        if kind == 0:
            start = at = _number(message, at)[1]
        elif kind == 2:
            size, start = _number(message, at)
            at = start + size
        elif kind in (1, 5):
            start = at = at + (8 if kind == 1 else 4)
        else:
            raise ValueError("a field of an unknown kind")
        if at > len(message):
            raise ValueError("it is cut short")
        yield key >> 3, message[start:at]


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at this place, seven bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at + shift // 7]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + shift // 7 + 1
    raise ValueError("a number of more than ten bytes")
