"""The directory of tags at the start of a TIFF file, which RAW files and the camera data in photos have too."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, MAKE, OFFSETS, ORIENTATION = 256, 257, 258, 259, 262, 271, 273, 274
SAMPLES, ROWS_PER_STRIP, PLANES, TILE_WIDTH, TILE_HEIGHT, TILE_OFFSETS = 277, 278, 284, 322, 323, 324
SUBFILE, SUBDIRECTORIES, DNG_VERSION = 254, 330, 50706
"""The numbers of the tags that matter here."""
BYTES_OF_KIND = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
TEXTS = (1, 2, 6, 7)
"""The kinds whose values are bytes."""
MOST_NUMBERS = 1_000_000
"""The most numbers that one tag may have: a photo of 200 megapixels in tiles of 16 x 16 has fewer."""


class Directory:
    """The first directory of a stream, whose values are read when they are asked for; ValueError if there is none."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, start = stream, stream.read(8)
        self._order = {b"II": "<", b"MM": ">"}.get(start[:2], "")
        if not self._order or len(start) < 8:
            raise ValueError("no TIFF directory")
        stream.seek(struct.unpack(f"{self._order}4xI", start)[0])
        head = stream.read(2)
        rows = stream.read(12 * struct.unpack(f"{self._order}H", head)[0]) if len(head) == 2 else b""
        self.entries: dict[int, tuple[int, int, bytes]] = {}
        """Tag -> the kind and the number of its values, and 4 bytes with them or with where they are."""
        for at in range(0, len(rows) - 11, 12):
            tag, kind, count = struct.unpack_from(f"{self._order}HHI", rows, at)
            self.entries[tag] = kind, count, rows[at + 8 : at + 12]

    def number(self, tag: int, otherwise: int = 0) -> int:
        """Return the first value of a tag that has whole numbers."""
        kind, count, value = self.entries.get(tag, (0, 0, b""))
        if kind not in (1, 3, 4, 13) or not count:
            return otherwise
        size = BYTES_OF_KIND[kind]
        if size * count > 4:
            self._stream.seek(struct.unpack(f"{self._order}I", value)[0])
            value = self._stream.read(size)
        code = {1: "B", 2: "H", 4: "I"}[size]
        return int(struct.unpack_from(self._order + code, value)[0]) if len(value) >= size else otherwise

    def text(self, tag: int) -> str:
        """Return the beginning of a tag that is a text."""
        kind, count, value = self.entries.get(tag, (0, 0, b""))
        if kind != 2:
            return ""
        if count > 4:
            self._stream.seek(struct.unpack(f"{self._order}I", value)[0])
            value = self._stream.read(min(count, 64))
        return value.split(b"\0")[0].decode("ascii", "replace")

    def is_absurd(self) -> bool:
        """Return whether all values together are more than the file could hold, or a list of them is endless."""
        sizes = [BYTES_OF_KIND.get(kind, 1) * count for kind, count, _ in self.entries.values()]
        numbers = [count for kind, count, _ in self.entries.values() if kind not in TEXTS]
        most = self._stream.seek(0, os.SEEK_END)
        return sum(size for size in sizes if size > 4) > most or max(numbers, default=0) > MOST_NUMBERS

    def has_too_many_pieces(self) -> bool:
        """Return whether there are more strips or tiles than the image has room for."""
        tiled = TILE_OFFSETS in self.entries and OFFSETS not in self.entries
        width, height = self.number(WIDTH), self.number(HEIGHT)
        across, down = width, min(self.number(ROWS_PER_STRIP, height), height)
        if tiled:
            across, down = self.number(TILE_WIDTH), self.number(TILE_HEIGHT)
        room = -(-width // max(1, across)) * -(-height // max(1, down))
        planes = self.number(SAMPLES, 1) if self.number(PLANES, 1) == 2 else 1
        _, pieces, _ = self.entries.get(TILE_OFFSETS if tiled else OFFSETS, (0, 0, b""))
        return pieces > room * planes
