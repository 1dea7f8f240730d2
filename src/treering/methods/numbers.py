"""A lasting number for each class, which it keeps while its column moves because another class is forgotten.

Images are recognised by a hash of their class's number and their pixels. The number of a forgotten class is never used
again, so its images can be learnt anew. Two classes that became one have the numbers of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from treering.runtime import pixels
from treering.runtime.pixels import Images

NUMBERS = "statistics.ids"
"""The name under which the numbers are saved, once they are not the columns themselves."""
FORGOTTEN = -1
"""The column of a class that is forgotten."""


class Numbers:
    """The lasting numbers of a method's classes."""

    def __init__(self, columns: Sequence[int] = ()) -> None:
        self.columns = list(columns)
        """The column of each number."""

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], classes: int) -> Numbers:
        """Return what gave `tensors`; raise ValueError if they are not of so many classes."""
        if NUMBERS not in tensors:
            return cls(range(classes))
        rows = tensors[NUMBERS].tolist()
        columns = [column for _, column in rows]
        if [number for number, _ in rows] != list(range(len(rows))) or {*columns} - {FORGOTTEN} != {*range(classes)}:
            raise ValueError(f"{NUMBERS} differs")
        return cls(columns)

    def tensors(self) -> dict[str, Tensor]:
        """Return number and column in rows; nothing as long as both are the same."""
        if self.columns == list(range(len(self.columns))):
            return {}
        return {NUMBERS: torch.tensor(list(enumerate(self.columns)), dtype=torch.int64)}

    def add(self, classes: int) -> None:
        """Give a number to each new class, until there are so many classes."""
        self.columns += range(max(self.columns, default=FORGOTTEN) + 1, classes)

    def forget(self, column: int) -> None:
        """Use the numbers of a class no more; the columns behind it move up by one."""
        self._move(column, FORGOTTEN)

    def merge(self, kept: int, gone: int) -> None:
        """Give the numbers of the class `gone` to the class `kept`, of which the column is smaller."""
        self._move(gone, kept)

    def _move(self, gone: int, to: int) -> None:
        self.columns = [to if column == gone else column - (column > gone) for column in self.columns]

    def keys(self, labels: Sequence[int], images: Images) -> list[list[int]]:
        """Return for each image a hash of 64 bits by each number of its class, that of the first number first."""
        numbers: dict[int, list[int]] = {}
        for number, column in enumerate(self.columns):
            numbers.setdefault(column, []).append(number)
        return [
            [_key(number, digest) for number in numbers[label]]
            for label, digest in zip(labels, pixels.digests(images), strict=True)
        ]


def _key(number: int, digest: bytes) -> int:
    return int.from_bytes(hashlib.sha256(b"%d %b" % (number, digest)).digest()[:8], signed=True)
