"""Safetensors files from strangers: the header is checked before any memory is taken for what it describes.

The format is that of the safetensors package, which writes the files: eight bytes with the length of a JSON header, the
header, which gives name, type, shape and place of each tensor, and the tensors one after the other.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from treering.checked import brief, parse_json

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
TYPES |= {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8}
TYPES |= {"BOOL": torch.bool}
LARGEST_HEADER = 2**24
"""The most bytes of a header: networks of thousands of layers need a few hundred thousand."""
LONGEST_NAME = 1000
AT_ONCE = 2**22
"""The values of which is asked at once whether they are finite."""


class Spec(NamedTuple):
    """What a tensor is like."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes_of_row(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def is_like(self, other: Spec) -> bool:
        """Return whether the two differ in their number of rows at most."""
        return self.dtype == other.dtype and bool(self.shape) and self.shape[1:] == other.shape[1:]


class _Place(NamedTuple):
    spec: Spec
    begin: int
    end: int


class Header(NamedTuple):
    """The checked header of a file's content."""

    places: dict[str, _Place]
    metadata: dict[str, str]
    start: int
    """Where the tensors begin."""

    @property
    def specs(self) -> dict[str, Spec]:
        """What each tensor is like."""
        return {name: place.spec for name, place in self.places.items()}


def header(content: bytes | bytearray, size: int | None = None) -> Header:
    """Return the header of a file with this content; raise ValueError unless it accounts for every byte.

    If `size` is given, the file has so many bytes, and `content` may be its start alone.
    """
    size = len(content) if size is None else size
    if len(content) < 8:
        raise ValueError("it is shorter than a header")
    length = int.from_bytes(content[:8], "little")
    if length > min(LARGEST_HEADER, len(content) - 8):
        raise ValueError("its header is longer than the file")
    described = parse_json(bytes(content[8 : 8 + length]))
    if not isinstance(described, dict):
        raise ValueError("its header is no table")
    metadata = described.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its header has facts that are no texts")
    places = {name: _place(name, entry) for name, entry in described.items()}
    end = 0
    for place in sorted(places.values(), key=lambda place: (place.begin, place.end)):
        if place.begin != end:
            raise ValueError("its tensors overlap or leave gaps")
        end = place.end
    if end != size - 8 - length:
        raise ValueError("its tensors take another number of bytes than it has")
    return Header(places, metadata, 8 + length)


def _place(name: str, entry: Any) -> _Place:
    """Return what the header says of one tensor."""
    if len(name) > LONGEST_NAME:
        raise ValueError("a tensor's name is too long")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the tensor {name} is not described as it should be")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(one) is int and 0 <= one < 2**48 for one in numbers):
            raise ValueError(f"the tensor {name} has no proper shape or place")
    if not isinstance(dtype, str) or dtype not in TYPES or len(shape) > 8 or len(offsets) != 2:
        raise ValueError(f"the tensor {name} is of a type that no network has: {brief(dtype)}")
    spec = Spec(TYPES[dtype], tuple(shape))
    if offsets[1] - offsets[0] != spec.bytes:
        raise ValueError(f"the tensor {name} takes another number of bytes than its shape")
    return _Place(spec, *offsets)


def load(content: bytes | bytearray, found: Header) -> dict[str, Tensor]:
    """Return the tensors of a file whose header was checked; raise ValueError if one of their numbers is not finite.

    They lie in `content` if that can be changed.
    """
    buffer, tensors = content if isinstance(content, bytearray) else bytearray(content), {}
    for name, (spec, begin, end) in found.places.items():
        start = found.start + begin
        if begin == end:
            tensors[name] = torch.empty(spec.shape, dtype=spec.dtype)
        elif start % spec.dtype.itemsize:
            tensors[name] = torch.frombuffer(buffer[start : found.start + end], dtype=spec.dtype).view(spec.shape)
        else:
            count = (end - begin) // spec.dtype.itemsize
            tensors[name] = torch.frombuffer(buffer, dtype=spec.dtype, count=count, offset=start).view(spec.shape)
        if not all(part.isfinite().all() for part in tensors[name].flatten().split(AT_ONCE)):
            raise ValueError(f"the tensor {name} has numbers that are not finite")
    return tensors


def require_alike(found: Mapping[str, Spec], expected: Mapping[str, Spec]) -> None:
    """Raise ValueError, naming the first, unless there are these tensors and no others, each of this type and shape."""
    different = sorted(found.keys() ^ expected.keys()) or sorted(
        name for name in found if found[name] != expected[name]
    )
    if different:
        raise ValueError(f"{different[0]} differs")


def require_generator_state(state: bytes) -> None:
    """Raise ValueError if this is the state of a CPU's generator, but one that torch never gives.

    It begins with a seed, the number of values that are left, a truth value and the number of the next value. Torch
    does not compare the two numbers, so that it would read beyond the values.
    """
    if len(state) != len(torch.Generator().get_state()):
        return  # it is of another kind of device, and serves as a seed
    _, left, seeded, following = struct.unpack_from("<QiiQ", state)
    values = 624
    begun = 1 <= left <= values and left + following == values + 1
    if seeded != 1 or not (begun or (left, following) == (1, 0)):
        raise ValueError("its random state is damaged")
