"""Photos from outside: each becomes pixels of the model's size at once, so that nothing of its file or name is kept."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PureWindowsPath

import numpy as np
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from treering.changes import new_label
from treering.errors import TreeringError
from treering.images import bounds, files
from treering.words import shown

MOST_BYTES = 32 * 2**20
"""The most bytes of a photo."""
MOST_FILES, MOST_FIELDS = 500, 20
"""The most files and other fields of one request."""
MOST_FORM, LARGEST_FIELD = 2**27, 2**16
"""The bytes up to which a file of a form stays in memory, which none exceeds, and those of a field that is no file."""
MOST_MEMORY = 400 * 2**20
"""The most bytes that decoding one photo may take, and all together: 100 megapixels, or 33 with transparency."""
DECODERS = 2
NO_PHOTO = "send a photo as the body, or photos as the files of a form (multipart/form-data)"


@dataclass(frozen=True)
class Upload:
    """A file that was sent: its pixels N x N x 3, or the reason why it is no photo."""

    name: str | None
    pixels: np.ndarray | str


class Decoder:
    """Decodes photos beside the server's loop, a few at a time within a bounded amount of memory."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(DECODERS, "decoder")
        self._memory = bounds.Memory(MOST_MEMORY)

    async def photos(self, request: Request, size: int) -> list[Upload]:
        """Return the photos of a request, decoded to this size; raise HTTPException if it has none."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "multipart/form-data":
            form = await _form(request)
            try:
                parts = [part for _, part in form.multi_items() if isinstance(part, UploadFile)]
                if not parts:
                    raise HTTPException(422, f"the form has no file: {NO_PHOTO}")
                return await asyncio.gather(*(self._upload(part, size) for part in parts))
            finally:
                await form.close()
        if kind and not kind.startswith("image/") and kind != "application/octet-stream":
            raise HTTPException(415, f"{shown(kind)} is no photo: {NO_PHOTO}")
        content = await request.body()
        if not content:
            raise HTTPException(422, f"the body is empty: {NO_PHOTO}")
        return [Upload(None, await self.decoded(content, size))]

    async def _upload(self, part: UploadFile, size: int) -> Upload:
        name = shown(part.filename or "")
        content = await part.read(MOST_BYTES + 1)
        return Upload(name, await self.decoded(content, size))

    async def decoded(self, content: bytes, size: int) -> np.ndarray | str:
        """Return the pixels of a photo, or why it cannot be read."""
        if len(content) > MOST_BYTES:
            return f"larger than {MOST_BYTES // 2**20} MB"
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._decode, content, size)

    def _decode(self, content: bytes, size: int) -> np.ndarray | str:
        try:
            return files.read_bytes(content, size, self._memory, MOST_MEMORY)
        except MemoryError:
            return "too large to decode"

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class _InMemory(MultiPartParser):
    """A form whose files stay in memory: the bytes of a photo never reach the disk."""

    spool_max_size = MOST_FORM


async def _form(request: Request) -> FormData:
    """Return the fields of a form."""
    coding = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
    if coding.lower() not in (b"utf-8", b"utf8"):  # others may not exist, or take long
        raise HTTPException(415, "the form is not in UTF-8: send it so")
    limits = {"max_files": MOST_FILES, "max_fields": MOST_FIELDS, "max_part_size": LARGEST_FIELD}
    try:
        return await _InMemory(request.headers, request.stream(), **limits).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None


def require_name(name: str) -> str:
    """Return the name of a class as it is learnt; raise if no folder of photos could be called so."""
    name = name.strip(" ")
    if shown(name) != name or "\\" in name or PureWindowsPath(name).drive:
        raise HTTPException(422, f"{shown(name)} cannot be the name of a class: give another name")
    try:
        return new_label(name, [])
    except TreeringError as error:
        raise HTTPException(422, str(error)) from None
