"""The markers of a JPEG file: what decoding it takes, told before it is decoded."""

from __future__ import annotations

import re
from typing import BinaryIO

MOST_HEADER_BYTES = 2**25
"""The most bytes before the pixels: a depth map or a preview may be there, but no endless list."""
BLOCK = 2**20
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""The markers that tell the size of the picture and its number of colours."""
SCAN, END = 0xDA, 0xD9
SCANS_AND_END = re.compile(rb"\xff[\xda\xd9]")


def passes(stream: BinaryIO) -> tuple[int, int]:
    """Return how often decoding goes through the picture, and its number of colours; ValueError if it has no scan.

    A picture that comes in one pass is decoded row by row. Otherwise all of it is in memory, and each pass takes time.
    """
    stream.seek(2)
    colours, progressive = 0, False
    while stream.tell() < MOST_HEADER_BYTES:
        marker = _next_marker(stream)
        if marker == SCAN:
            in_this_scan = stream.read(3)[2:]
            if not progressive and in_this_scan == bytes([colours]):
                return 1, colours
            return 1 + _scans(stream), colours
        length = int.from_bytes(stream.read(2), "big")
        if marker in FRAMES:
            frame = stream.read(6)
            colours, progressive = frame[5] if len(frame) == 6 else 0, marker not in (0xC0, 0xC1)
            length -= 6
        stream.seek(max(0, length - 2), 1)
    raise ValueError("its header is too long")


def _next_marker(stream: BinaryIO) -> int:
    while (byte := stream.read(1)) != b"\xff":
        if not byte:
            raise ValueError("it ends before its pixels")
    while (byte := stream.read(1)) == b"\xff":
        pass
    return byte[0] if byte and byte != b"\0" else _next_marker(stream)


def _scans(stream: BinaryIO) -> int:
    """Count further scans until the picture ends; tables between them hold these two bytes once in a long while."""
    found, before = 0, b""
    while block := stream.read(BLOCK):
        for mark in SCANS_AND_END.findall(before + block):
            if mark[1] == END:
                return found
            found += 1
        before = block[-1:]
    return found
