"""A table of hostile uploads and requests: each is refused in one line, and the server stays whole, small and private.

What only a raw socket can send goes to the real command; one of two such servers waits for a second where the other
waits for ten. Nothing leaves 127.0.0.1.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import os
import shutil
import socket
import stat
import struct
import tempfile
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from learn_helper import SIDE
from photo_helper import BAD_FILES, encoded, png_of_size
from PIL import Image
from server_helper import (
    ADDRESS,
    CLASSES,
    PHOTO,
    Answer,
    Server,
    client_of,
    make_model,
    real,
    received,
    require_guarded,
    require_reason,
)
from starlette.testclient import TestClient

from treering.server import tray
from treering.server.guard import HEADERS, MOST_PHOTOS
from treering.storage import user_key

MOST_MEMORY = 2**31
"""The bytes of memory beyond which the server is not small."""
PREDICT, TRAY = "/api/models/pets/predict", "/api/models/pets/tray"
SCRIPT = b"<script>alert(document.domain)</script>"
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>" + SCRIPT + b"</svg>"
JSON = {"content-type": "application/json"}
BOUNDARY = "multipart/form-data; boundary="


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("attacked"))


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[TestClient]:
    found, _ = client_of(model)
    with found:
        yield found


@pytest.fixture(scope="module")
def many(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server of a folder of models."""
    place = tmp_path_factory.mktemp("many")
    shutil.copytree(model, place / "models" / "pets")
    found, _ = client_of(place / "models")
    with found:
        yield found


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real command; at the end it is still well, and has said nothing of its own."""
    place = tmp_path_factory.mktemp("real")
    path = Path(shutil.copytree(model, place / "pets"))
    with real(path, place / "home") as found:
        yield found
        assert found.is_well()


@pytest.fixture(scope="module")
def impatient(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real command, which waits for a second."""
    place = tmp_path_factory.mktemp("impatient")
    with real(Path(shutil.copytree(model, place / "pets")), place / "home", impatient=True) as found:
        yield found
        assert found.is_well()


def require_refused(answer: Any) -> str:
    """Raise if a request was not refused as all are."""
    require_guarded(answer.headers)
    return require_reason(answer.status_code, answer.headers, answer.content)


def form(*parts: tuple[str, bytes], boundary: str = "b") -> bytes:
    """A form of parts, each with this Content-Disposition."""
    lines = [f"--{boundary}\r\nContent-Disposition: {kind}\r\n\r\n".encode() + content for kind, content in parts]
    return b"\r\n".join([*lines, f"--{boundary}--\r\n".encode()])


def file_part(name: str, content: bytes = PHOTO) -> tuple[str, bytes]:
    return f'form-data; name="photo"; filename="{name}"', content


# Files that are no photos


def zipped() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../evil.png", bytes(2**20))
    return stream.getvalue()


@functools.cache
def bomb() -> bytes:
    """A whole PNG file that decodes to 440 MB, from a thousandth of that."""
    side = 21_000
    packer = zlib.compressobj(1)
    rows = b"".join([packer.compress(bytes(side + 1)) for _ in range(side)]) + packer.flush()
    whole = png_of_size(side, side)
    header = whole[16:24] + b"\x08\x00\x00\x00\x00"  # grey, one byte a pixel
    return whole[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


NO_PHOTOS: dict[str, Callable[[], bytes]] = {
    **{name: content for name, (content, _) in BAD_FILES.items()},
    "script.svg": lambda: SVG,
    "entities.svg": lambda: b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a SYSTEM "file:///etc/passwd">]><s>&a;</s>',
    "page.html": lambda: b"<!doctype html>" + SCRIPT,
    "archive.zip": zipped,
    "playlist.jpg": lambda: b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
    "magick.mvg": lambda: b"push graphic-context\nimage over 0,0 0,0 'https://127.0.0.1/x'\npop graphic-context\n",
    "postscript.eps": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
    "pickle.png": lambda: b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.",
    "many passes.jpg": lambda: (
        encoded("JPEG", progressive=True)[:-2] + b"\xff\xda\x00\x08\x01\x01\x00\x15\x15\x00" * 5000
    ),
    "bomb.png": bomb,
    "wide.png": lambda: png_of_size(2**31 - 1, 1),
    "an address": lambda: b"http://127.0.0.1:9/photo.jpg",
    "a path": lambda: b"file:///etc/passwd",
    "code first.gif": lambda: b"GIF89a/*" + b"=1;alert(1)//*/" * 20,
}


@pytest.mark.parametrize("name", NO_PHOTOS)
def test_what_is_no_photo_is_refused(client: TestClient, name: str) -> None:
    content = NO_PHOTOS[name]()
    before = client.get(TRAY).json()
    for kind in ("image/jpeg", "image/svg+xml", "application/octet-stream"):
        require_refused(client.post(PREDICT, content=content, headers={"content-type": kind}))
    require_refused(client.post(TRAY, params={"class": "bee"}, content=content))
    require_refused(client.post(TRAY, params={"class": "bee"}, files=[("photo", (name, content))]))
    assert client.get(TRAY).json() == before
    among = client.post(PREDICT, files=[("photo", ("good.png", PHOTO)), ("photo", (name, content))])
    assert among.status_code == 200
    assert [one["error"] is None for one in among.json()["predictions"]] == [True, False]


@pytest.mark.parametrize(
    "kind",
    [
        *("text/html", "text/plain", "application/json", "application/x-www-form-urlencoded", "multipart/mixed"),
        *(
            "application/zip",
            "video/mp4",
            "image",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "*/*",
            "\xff",
        ),
        "multipart/form-data; boundary=" + "a" * 300,
        "multipart/form-data; boundary=" + "a" * 100_000,
    ],
    ids=lambda kind: ascii(kind[:40]),
)
def test_other_kinds_of_bodies_are_refused(client: TestClient, kind: str) -> None:
    answer = client.post(PREDICT, content=PHOTO, headers={"content-type": kind.encode("latin-1")})  # type: ignore[dict-item]
    require_refused(answer)


def test_a_photo_that_is_also_a_page_is_only_a_photo_afterwards(client: TestClient) -> None:
    """What a photo carries beside its pixels is gone: place, camera, comment, and whatever follows its end."""
    exif = Image.Exif()
    exif[0x010F], exif[0x8825] = "Camera s3cret", {1: "N", 2: (1.0, 2.0, 3.0), 3: "E", 4: (4.0, 5.0, 6.0)}
    settings = {"exif": exif.tobytes(), "comment": SCRIPT, "quality": 95}
    photos = {
        "../../s3cret.jpg": encoded("JPEG", **settings) + SCRIPT,
        "s3cret.html": encoded("JPEG", **settings) + b"<html>" + SCRIPT,
        "s3cret.gif": encoded("GIF", comment=b"*/=1;alert(1);/*") + SCRIPT,
        "s3cret.png": encoded("PNG", exif=exif.tobytes()) + zipped(),
    }
    answer = client.post(TRAY, params={"class": "fox"}, files=[("photo", one) for one in photos.items()])
    assert answer.status_code == 200
    assert len(answer.json()["added"]) == len(photos)
    for added in answer.json()["added"]:
        told = client.get(added["url"])
        require_guarded(told.headers)
        assert told.headers["content-type"] == "image/png"
        assert told.content.startswith(b"\x89PNG")
        assert told.content.endswith(b"IEND\xaeB`\x82")
        with Image.open(io.BytesIO(told.content)) as image:
            assert image.size == (SIDE, SIDE)
            assert not image.getexif()
            assert not image.info
    for file in (user_key.place().parent / "serve").rglob("*"):
        assert "s3cret" not in str(file)
        if file.is_file() and ".serv" not in file.name:
            content = file.read_bytes()
            for trace in (b"s3cret", b"alert", b"<html", b"Exif", b"PK\x03\x04"):
                assert trace not in content, file


# Forms


FORMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "nothing": ("b", lambda: b""),
    "no end": ("b", lambda: form(file_part("a.png"))[:40]),
    "no file": ("b", lambda: form(('form-data; name="photo"', PHOTO[:0] + b"text"))),
    "10,000 files": ("b", lambda: form(*[file_part(f"{number}.png", b"x") for number in range(10_000)])),
    "10,000 fields": ("b", lambda: form(*[('form-data; name="x"', b"y")] * 10_000)),
    "a long field": ("b", lambda: form(('form-data; name="x"', bytes(2**20)), file_part("a.png"))),
    "many headers": ("b", lambda: b"--b\r\n" + b"X: y\r\n" * 10_000 + form(file_part("a.png"))),
    "a long header": ("b", lambda: form((f'form-data; name="photo"; filename="{"a" * 2**20}"', PHOTO))),
    "no name": ("b", lambda: form(("form-data", PHOTO))),
    "dashes after the boundary": ("b", lambda: b"--b" + b"-" * 2**23),
    "breaks before the boundary": ("b", lambda: b"\r\n" * 2**22),
    "a boundary almost": ("a" * 250, lambda: b"--" + b"a" * 250 + b"\r\n" + (b"\r\n--" + b"a" * 249) * 2**14),
    "another boundary": ("b", lambda: form(file_part("a.png"), boundary="c")),
    "an unknown encoding": ("b; charset=undefined", lambda: form(file_part("\xff.png"))),
    "a slow encoding": (
        "b; charset=punycode",
        lambda: form(*[('form-data; name="x"', ("é" * 9000).encode("punycode") + b"-")] * 19, file_part("a.png")),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_are_none_or_too_much_are_refused_soon(client: TestClient, name: str) -> None:
    boundary, content = FORMS[name]
    body, begun = content(), time.process_time()
    require_refused(client.post(PREDICT, content=body, headers={"content-type": BOUNDARY + boundary}))
    assert time.process_time() - begun < 3.0
    require_refused(
        client.post(TRAY, params={"class": "bee"}, content=body, headers={"content-type": BOUNDARY + boundary})
    )


@pytest.mark.parametrize(
    "charset", ["undefined", "punycode", "idna", "utf-7", "utf-16", "zlib", "hex", "unicode_escape", "x"]
)
def test_the_encoding_of_a_form_breaks_nothing(client: TestClient, charset: str) -> None:
    body = form(('form-data; name="+2AA-\xff"; filename="+2AA-\\ud800\xff-99999999.png"', PHOTO))
    answer = client.post(PREDICT, content=body, headers={"content-type": f"{BOUNDARY}b; charset={charset}"})
    assert answer.status_code < 500
    assert answer.status_code == 200 or require_refused(answer)
    assert "\ud800" not in answer.text


def test_photos_of_a_form_are_never_written_to_a_temporary_file(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled = []
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", lambda file: rolled.append(file))
    large = encoded("BMP") + bytes(2**21)
    client.post(PREDICT, files=[("photo", ("a.bmp", large))])
    assert not rolled


FILE_NAMES = [
    *(
        "../../evil.png",
        "..\\..\\evil.png",
        "/etc/passwd",
        "C:\\Windows\\evil.png",
        "%2e%2e%2fevil.png",
        "con",
        "\u202egnp.exe",
    ),
    *(
        "a\x1b[31m.png",
        "a\x00b.png",
        "\u2028.png",
        "a" * 3000,
        "",
        ".",
        "..",
        "~",
        "$(touch evil)",
        "; touch evil",
        "{{7*7}}",
    ),
]


@pytest.mark.parametrize("name", FILE_NAMES, ids=lambda name: ascii(name[:20]))
def test_names_of_files_are_only_shown(client: TestClient, name: str) -> None:
    body = form(file_part(name))
    answer = client.post(PREDICT, content=body, headers={"content-type": f"{BOUNDARY}b"})
    if answer.status_code != 200:
        require_refused(answer)
        return
    told = answer.json()["predictions"][0]["name"]
    assert told.isprintable()
    assert len(told) <= 200


# Names of classes and models


PATHS = [
    *("../evil", "a/../../evil", "..", ".", "/evil", "/", "evil/", "a/b", "../", "....//evil", "\x00", "evil\x00.png"),
    *(
        "..\\evil",
        "..\\..\\evil",
        "a\\..\\evil",
        "\\evil",
        "C:\\evil",
        "C:evil",
        "c:/evil",
        "\\\\host\\evil",
        "\\\\?\\C:\\evil",
    ),
    *("%2e%2e%2fevil/", "file:///evil", "http://127.0.0.1/evil", ".hidden", "~/evil", "", "a" * 101, "\ud800"),
]
"""Names that are paths, on this system or another."""
MISLEADING = [
    "a\nb",
    "\x1b[31mevil",
    "\r\nset-cookie: a=b",
    "\u202egnp",
    "a\u2066b\u2069",
    "\u200b",
    "a\u2028b",
    "\x7f",
    "\x9b",
    "\t",
]
"""Names that steer a terminal or mislead the eye."""


@pytest.fixture
def unchanged(client: TestClient) -> Iterator[None]:
    """What a test adds or renames although it should not is put right for the next one."""
    yield
    client.delete(TRAY)
    for one in client.get("/api/models/pets").json()["classes"]:
        if one["name"] not in CLASSES:
            client.post("/api/models/pets/rename", json={"old": one["name"], "new": "cat"})


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", [*PATHS, *MISLEADING], ids=lambda name: ascii(name[:20]))
def test_no_class_is_called_by_a_path_or_misleads(client: TestClient, name: str) -> None:
    for body in ({"old": name, "new": "bee"}, {"old": "cat", "new": name}):
        require_refused(client.post("/api/models/pets/rename", content=json.dumps(body), headers=JSON))
    for path, asked in (("forget", {"classes": [name]}), ("merge", {"kept": "cat", "gone": name})):
        require_refused(client.post(f"/api/models/pets/{path}", content=json.dumps(asked), headers=JSON))
    with contextlib.suppress(UnicodeEncodeError):
        require_refused(client.post(f"{TRAY}?class={quote(name, safe='')}", content=PHOTO))


WINDOWS = ["con", "NUL", "com1", "aux", "lpt9"]
ODD = [
    "a.",
    " a",
    "a ",
    "-",
    "_",
    "--help",
    "a:b",
    "a|b",
    "<b>",
    "\u00e9" * 65,
    "\U00020000" * 64,
    "pets",
    "PETS",
    "a.b",
    "😀",
]


@pytest.mark.parametrize("name", [*PATHS, *MISLEADING, *WINDOWS, *ODD], ids=lambda name: ascii(name[:20]))
def test_no_model_is_called_by_a_path_or_what_no_folder_can_be_called(many: TestClient, name: str) -> None:
    before = many.get("/api/models").json()
    require_refused(many.post("/api/models", content=json.dumps({"name": name}), headers=JSON))
    assert many.get("/api/models").json() == before


def test_names_in_addresses_are_looked_up_and_never_made_into_paths(client: TestClient, many: TestClient) -> None:
    written: set[str] = set()
    for name in [*PATHS, *MISLEADING, "etc", "pets/../pets", "pets\x00", "PETS", "pets "]:
        with contextlib.suppress(UnicodeEncodeError):
            written |= {quote(name), quote(name, safe=""), quote(quote(name, safe=""), safe="")}
    for name in written:
        if {"", ".", ".."} & set(name.split("/")):
            continue  # the client resolves it itself
        asked = [
            (each, "GET", f"{path}{name}")
            for each in (client, many)
            for path in ("/page/", "/page/..%2f", "/api/jobs/")
        ]
        asked += [(each, "GET", f"/api/models/{name}/tray") for each in (client, many)]
        asked += [(client, "GET", f"{path}/{name}.png") for path in ("/api/models/pets/exemplars", TRAY)]
        asked += [(client, "DELETE", f"{TRAY}/{name}")]
        for each, method, path in asked:
            answer = each.request(method, path)
            if answer.status_code == 307:  # to the same with a slash more or less
                assert answer.headers["location"].startswith(f"{ADDRESS}/")
                assert "\n" not in answer.headers["location"]
            else:
                require_refused(answer)


def test_models_cannot_be_added_without_end(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "models" / "pets")
    client, _ = client_of(tmp_path / "models")
    with client:
        statuses = [client.post("/api/models", json={"name": f"model {number}"}).status_code for number in range(300)]
    assert 201 in statuses
    assert statuses[-1] in (409, 429)
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["pets"]


def test_a_full_index_of_a_tray_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos of cancelled jobs come back into a full tray, all with the longest of names."""
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    waiting = tray.Tray(tmp_path)
    photos = {f"{number:032x}": "\U0001f600" * 63 for number in range(3 * tray.MOST_PHOTOS)}
    waiting._change(photos)
    assert tray.read_index(tmp_path) == photos


# JSON


DEEP = 100_000
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"\xff\xfe{}",
    "a word": b"name",
    "null": b"null",
    "a list": b"[]",
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"name":' * DEEP + b"1" + b"}" * DEEP,
    "NaN": b'{"name":NaN,"old":NaN,"new":NaN,"kept":NaN,"gone":NaN,"classes":[NaN],"effort":NaN}',
    "infinity": b'{"name":1e999,"old":-1e999,"new":Infinity,"classes":[-Infinity],"effort":Infinity}',
    "huge integers": b'{"name":X,"old":X,"new":X,"classes":[X],"effort":X}'.replace(b"X", b"9" * 10_000),
    "lone surrogates": b'{"name":X,"old":X,"new":X,"kept":X,"gone":X,"classes":[X]}'.replace(b"X", b'"\\ud800"'),
    "a lone surrogate as a name": b'{"\\ud800":1}',
    "a name that misleads": b'{"\\u202e\\u001b[31m\\n":1}',
    "twice": b'{"name":1,"name":[1],"old":1,"old":2,"classes":1,"classes":2,"effort":1,"effort":2}',
    "more than is asked": b'{"name":"a","old":"cat","new":"b","kept":"cat","gone":"dog","classes":["cat"],"x":1}',
    "NUL": b'{"name":X,"old":X,"new":X,"kept":X,"gone":X,"classes":[X]}'.replace(b"X", b'"\\u0000"'),
    "another prototype": b'{"__proto__":{"name":"a"},"constructor":{"prototype":{}}}',
    "many classes": b'{"classes":[' + b",".join([b'"cat"'] * 1001) + b"]}",
    "a long name": json.dumps({"name": "a" * 10**6, "effort": "a" * 10**6, "classes": ["a" * 10**6]}).encode(),
}
ASKING_JSON = ("/api/models", *(f"/api/models/pets/{one}" for one in ("forget", "rename", "merge", "jobs")))


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_ask_for_nothing_are_refused(many: TestClient, name: str) -> None:
    before = many.get("/api/models/pets").json()
    for path in ASKING_JSON:
        for kind in ("application/json", "text/plain", "application/json; charset=utf-7"):
            require_refused(many.post(path, content=BODIES[name], headers={"content-type": kind}))
    assert many.get("/api/models/pets").json() == before


@pytest.mark.parametrize("path", ASKING_JSON)
def test_much_json_is_refused_before_it_is_read(many: TestClient, path: str) -> None:
    """Small values take 30 times their letters in memory, and no other request is answered while they are read."""
    body = b"[" + b",".join([b'{"":[]}'] * 2**18) + b"]"
    begun = time.process_time()
    answer = many.post(path, content=body, headers=JSON)
    assert answer.status_code == 413
    require_refused(answer)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    "query",
    [
        *(
            "top=0",
            "top=-1",
            "top=101",
            "top=1e9",
            "top=9" * 9,
            "top=" + "9" * 5000,
            "top=1.5",
            "top=NaN",
            "top=%00",
            "top=",
        ),
        *(
            "unknown=nan",
            "unknown=inf",
            "unknown=-1",
            "unknown=1.01",
            "unknown=1e999",
            "unknown=0x1",
            "unknown=" + "9" * 5000,
        ),
        *("nearest=-1", "nearest=13", "nearest=1e400", "nearest=%ed%a0%80", "nearest=[]"),
    ],
    ids=lambda query: query[:20],
)
def test_numbers_that_make_no_sense_are_refused(client: TestClient, query: str) -> None:
    require_refused(client.post(f"{PREDICT}?{query}", content=PHOTO))


def test_ranges_are_left_alone(client: TestClient) -> None:
    """Starlette took quadratic time for many ranges (CVE-2025-62727)."""
    for ranges in (
        "0-",
        "-1",
        "5-2",
        ",".join(f"{n}-{n + 1}" for n in range(5000)),
        ",".join(["0-99999999999"] * 5000),
        "x",
    ):
        begun = time.process_time()
        answer = client.get("/page/app.js", headers={"range": f"bytes={ranges}", "if-range": "x"})
        assert answer.status_code in (200, 400, 416)
        assert time.process_time() - begun < 1.0


# Nothing is fetched


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, list[bytes]]]:
    """A port of this computer, and the first bytes of whatever connects to it."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = door.accept()
                    with connection:
                        connection.settimeout(2)
                        heard.append(connection.recv(1000))
                        connection.sendall(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        threading.Thread(target=listen, daemon=True).start()
        yield door.getsockname()[1], heard
        door.shutdown(socket.SHUT_RDWR)


def test_no_address_in_any_field_is_fetched(many: TestClient) -> None:
    with listening() as (port, heard):
        url = f"http://127.0.0.1:{port}/photo.png"
        link = f"<svg xmlns:x='http://www.w3.org/1999/xlink'><image x:href='{url}'/></svg>".encode()
        many.post(f"{TRAY}?class={quote(url, safe='')}", content=PHOTO)
        for path in (PREDICT, f"{TRAY}?class=bee&url={quote(url)}"):
            for content in (url.encode(), link, f'<?xml version="1.0"?><!DOCTYPE a SYSTEM "{url}"><a/>'.encode()):
                many.post(path, content=content, headers={"content-type": "image/svg+xml", "referer": url})
                many.post(path, files=[("photo", (url, content, url))], data={"url": url, "photo": url})
            many.post(path, json={"url": url, "photo": url, "image": url, "path": url})
            headers = {"content-type": f"message/external-body; access-type=URL; url={url}", "content-location": url}
            many.post(path, content=b"", headers=headers)
        names = ("name", "effort", "old", "new", "kept", "gone", "url", "model", "path", "callback", "$ref", "$schema")
        for path in ASKING_JSON:
            for name in names:
                many.post(path, json={name: url})
            many.post(path, json=dict.fromkeys(names, url) | {"classes": [url]})
        for path in (
            f"/{url}",
            f"/page/{quote(url, safe='')}",
            f"/api/models/{quote(url, safe='')}",
            f"/api/jobs?url={url}",
        ):
            many.get(
                path, headers={"x-forwarded-host": url, "x-original-url": url, "x-rewrite-url": url, "origin-url": url}
            )
        many.post("/label-studio/pets/predict", json={"tasks": [{"data": {"image": url}}]})
        time.sleep(0.2)
    assert not heard


CONFIG = (
    '<View><Image name="image" value="$image"/>'
    '<Choices name="choice" toName="image"><Choice value="cat"/></Choices></View>'
)


@dataclass(frozen=True)
class Studio:
    """A server that learns from a Label Studio, which has no photos; and another address, which is not to be asked."""

    client: TestClient
    address: str
    heard: list[bytes]
    other: str
    misled: list[bytes]


@pytest.fixture(scope="module")
def studio(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    path = Path(shutil.copytree(model, tmp_path_factory.mktemp("studio") / "pets"))
    with listening() as (own, heard), listening() as (other, misled):
        address = f"http://127.0.0.1:{own}"
        client, _ = client_of(path, label_studio=address, label_studio_key="s3cret")
        with client:
            yield Studio(client, address, heard, f"127.0.0.1:{other}", misled)


def test_label_studio_is_asked_for_photos_and_nobody_else(studio: Studio) -> None:
    own, evil = studio.address, f"{studio.other}/data/x.png"
    addresses: list[Any] = [
        *(f"http://{evil}", f"//{evil}", f"https://{evil}", f"{own}@{evil}", f"http://user@{evil}", f"\\\\{evil}"),
        *(f"{own}#@{evil}", f"http:/\\{evil}", f"/\\{evil}", f"ftp://{evil}", "file:///etc/passwd", "gopher://x"),
        *("data:image/png;base64," + base64.b64encode(PHOTO).decode(), "/etc/passwd", "http://[", "http://[::1"),
        *("/data/../api/users", "/data/%2e%2e/api/users", "/data/..%2fapi/users", "/data/.%2E/api/users", "/api/users"),
        *(
            "/data/x\x7f",
            "/data/x\r\nX: y",
            "/data/\ud800",
            "/data/é",
            "",
            None,
            5,
            [],
            {},
            "a" * 5000,
            f"{own}/api/token",
        ),
    ]
    for task in [*({"data": {"image": one}} for one in addresses), {}, None, 5, {"data": 5}, {"data": {}}]:
        body = json.dumps({"tasks": [task], "label_config": CONFIG, "project": "1"})
        answer = studio.client.post("/label-studio/pets/predict", content=body, headers=JSON)
        assert answer.status_code < 500, task
    assert not studio.misled
    paths = [line.split()[1].decode() for line in studio.heard]
    assert not [path for path in paths if not path.startswith("/data/") or "%2e" in path.lower() or ".." in path]


WEBHOOKS: list[Any] = [
    {"action": "ANNOTATIONS_DELETED", "annotations": 5},
    {"action": "ANNOTATIONS_DELETED", "annotations": [5, None, {}, {"id": []}, {"id": {}}]},
    {"action": "ANNOTATION_CREATED", "project": "x", "annotation": 5, "task": []},
    {"action": "ANNOTATION_CREATED", "annotation": {"id": [], "result": [5, {"type": "choices", "value": 5}]}},
    {"action": [], "annotations": {}},
    {},
]


@pytest.mark.parametrize("told", WEBHOOKS, ids=str)
def test_events_that_make_no_sense_break_nothing(studio: Studio, told: Any) -> None:
    assert studio.client.post("/label-studio/pets/webhook", json=told).status_code < 500
    assert studio.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "config",
    [5, None, "", "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "<a>" * 20_000, "<View/>", "\x00", "\ud800", "a" * 10**5],
    ids=lambda config: ascii(config)[:20],
)
def test_configurations_that_make_no_sense_are_refused(studio: Studio, config: Any) -> None:
    for path, body in (("setup", {"schema": config}), ("predict", {"tasks": [], "label_config": config})):
        require_refused(studio.client.post(f"/label-studio/pets/{path}", content=json.dumps(body), headers=JSON))


def test_too_many_tasks_are_refused(studio: Studio) -> None:
    for tasks in ([{}] * 10_000, 5, {}, None, "tasks"):
        require_refused(studio.client.post("/label-studio/pets/predict", json={"tasks": tasks, "label_config": CONFIG}))


# Raw connections


POST = "POST /api/models/pets/predict HTTP/1.1\r\nHost: {host}\r\n"
CHUNKED = POST + "Transfer-Encoding: chunked\r\n\r\n"
NO_HTTP: dict[str, str | bytes] = {
    "HTTP/0.9": "GET /health\r\n\r\n",
    "binary": bytes(range(256)) * 20,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "no version": "GET /health HTTP\r\nHost: {host}\r\n\r\n",
    "NUL in the path": "GET /\x00 HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "NUL in a header": "GET /health HTTP/1.1\r\nHost: {host}\r\nX: \x00\r\n\r\n",
    "two hosts": "GET /health HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n",
    "no host": "GET /health HTTP/1.1\r\n\r\n",
    "space before a colon": POST + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a long header": "GET /health HTTP/1.1\r\nHost: {host}\r\nX: " + "a" * 2**20 + "\r\n\r\n",
    "many headers": "GET /health HTTP/1.1\r\nHost: {host}\r\n" + "X: y\r\n" * 2**17 + "\r\n",
    "a long address": "GET /" + "a" * 2**20 + " HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a negative length": POST + "Content-Length: -1\r\n\r\n",
    "a signed length": POST + "Content-Length: +5\r\n\r\nhello",
    "a hexadecimal length": POST + "Content-Length: 0x5\r\n\r\nhello",
    "a length of no digits": POST + "Content-Length: five\r\n\r\nhello",
    "a length of 5,000 digits": POST + "Content-Length: " + "9" * 5000 + "\r\n\r\n",
    "two lengths": POST + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "another coding": POST + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "no chunk": CHUNKED + "ZZ\r\n",
    "a negative chunk": CHUNKED + "-5\r\nhello\r\n0\r\n\r\n",
    "an endless chunk": CHUNKED + "F" * 100 + "\r\n",
}
REFUSED: dict[str, str | bytes] = {
    "HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "another host in the target": "GET http://evil.example/health HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "another host beside the target": "GET http://{host}/health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a host in the path": "GET //evil.example/%2e%2e/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "half an address": "GET /health HTTP/1.1\r\nHost: [\r\n\r\n",
    "a proxy": "CONNECT evil.example:443 HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "options of all": "OPTIONS * HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a method": "A" * 5000 + " /health HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a break in a redirect": "GET /api/models%0d%0aset-cookie:%20a=b/ HTTP/1.1\r\nHost: {host}\r\n\r\n",
    "a length and a coding": POST + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding and a length": POST + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "a length beyond the limit": POST + "Content-Length: 999999999999\r\n\r\n",
    "much that is expected": POST + "Expect: 100-continue\r\nContent-Length: 999999999999\r\n\r\n",
    "a length just beyond the limit": POST + f"Content-Length: {MOST_PHOTOS + 1}\r\n\r\n",
    "no body": POST + "\r\n",
    "a body of nothing": POST + "Content-Length: 0\r\n\r\n",
}


def raw(server: Server, content: str | bytes) -> bytes:
    return content.replace("{host}", server.host).encode("latin-1") if isinstance(content, str) else content


@pytest.mark.parametrize("name", [*NO_HTTP, *REFUSED])
def test_raw_requests_are_refused(impatient: Server, name: str) -> None:
    """A server that closes the connection without a word has refused as well."""
    answer = impatient.sent(raw(impatient, (NO_HTTP | REFUSED)[name]))
    assert answer.status == 0 or 400 <= answer.status < 500, answer
    if name in REFUSED and answer.status:
        require_guarded(answer.headers)
        require_reason(answer.status, answer.headers, answer.body)
    assert b"set-cookie" not in str(answer.headers).encode()
    assert impatient.is_well()


@pytest.mark.parametrize("name", ["HTTP/0.9", "binary", "two hosts", "a negative length", "an unknown coding"])
def test_what_is_no_http_is_answered_in_the_form_of_all_errors(impatient: Server, name: str) -> None:
    answer = impatient.sent(raw(impatient, NO_HTTP[name]))
    assert HEADERS.items() <= answer.headers.items()
    require_reason(answer.status, answer.headers, answer.body)


def test_no_request_is_smuggled_in_another(impatient: Server) -> None:
    """Where two lengths contradict each other, what follows is never taken for another request."""
    inner = f"DELETE /api/models/pets/tray HTTP/1.1\r\nHost: {impatient.host}\r\nX-Inner: 1\r\n\r\n"
    for headers in (
        f"Content-Length: {len(inner) + 5}\r\nTransfer-Encoding: chunked",
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(inner) + 5}",
        f"Content-Length: {len(inner) + 5}\r\nTransfer-Encoding:\tchunked",
    ):
        outer = f"POST /api/jobs HTTP/1.1\r\nHost: {impatient.host}\r\n{headers}\r\n\r\n0\r\n\r\n{inner}"
        with impatient.connected() as connection:
            connection.sendall(outer.encode())
            assert received(connection).count(b"HTTP/1.1 ") <= 1, headers


def test_garbage_behind_a_request_ends_the_connection(impatient: Server) -> None:
    good = f"GET /health HTTP/1.1\r\nHost: {impatient.host}\r\n\r\n".encode()
    with impatient.connected() as connection:
        connection.sendall(good * 50 + b"\x00\x01 garbage\r\n\r\n" + good * 50)
        told = received(connection)
    assert told.count(b"HTTP/1.1 200") == 50
    assert told.count(b"HTTP/1.1 400") == 1
    assert impatient.is_well()


def test_a_get_with_a_body_and_an_upgrade_are_answers_like_any_other(impatient: Server) -> None:
    assert impatient.asked("GET /health", "Content-Length: 5", body=b"hello").status == 200
    assert impatient.asked("GET /health", "Content-Length: 5", body=b"GET /").body == b'{"status":"UP"}'
    upgrade = ("Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    assert impatient.asked("GET /health", *upgrade).status in (200, 400, 426)


def test_a_body_over_the_limit_is_cut_off(server: Server) -> None:
    """A sender in chunks does not say beforehand how much it sends."""
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    sent = 0
    with server.connected() as connection:
        connection.sendall(raw(server, CHUNKED))
        with contextlib.suppress(ConnectionError):
            while sent < 2 * MOST_PHOTOS:
                connection.sendall(chunk)
                sent += 2**20
        answer = Answer.of(received(connection))
    assert answer.status in (0, 413)
    assert sent < MOST_PHOTOS + 2**24
    assert server.is_well()


def test_bodies_that_come_at_the_same_time_share_a_bounded_memory(server: Server) -> None:
    before, head = server.memory(), raw(server, POST + f"Content-Length: {MOST_PHOTOS}\r\n\r\n")
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(server.connected()) for _ in range(12)]
        for one in senders:
            with contextlib.suppress(ConnectionError):
                one.sendall(head)

        def send(one: socket.socket) -> None:
            with contextlib.suppress(OSError):
                one.sendall(bytes(MOST_PHOTOS - 2**20))

        threads = [threading.Thread(target=send, args=(one,)) for one in senders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert server.is_well()
    assert server.memory() - before < 2**29


def test_an_upload_that_is_broken_off_is_no_error_of_the_servers_own(server: Server) -> None:
    for path in ("predict", "tray?class=bee", "forget"):
        for kind in ("image/png", "multipart/form-data; boundary=b", "application/json"):
            with server.connected() as connection:
                head = f"POST /api/models/pets/{path} HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: {kind}\r\n"
                connection.sendall(f"{head}Content-Length: 500\r\n\r\n--b\r\n".encode())
    assert server.is_well()
    time.sleep(0.3)
    assert "Traceback" not in server.said()


SLOW: dict[str, tuple[bytes, bytes]] = {
    "nothing": (b"", b""),
    "headers": (b"GET /health HTTP/1.1\r\nHost: {host}\r\n", b"X: y\r\n"),
    "a byte of a header": (b"GET /health HTTP/1.1\r\nX: ", b"y"),
    "a body": (b"POST /api/models/pets/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n", b"x"),
    "chunks": (
        b"POST /api/models/pets/tray?class=a HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n",
    ),
    "a form": (
        b"POST /api/models/pets/predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 1000\r\n\r\n--b\r\n",
        b"X",
    ),
    "JSON": (
        b"POST /api/models HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n[",
        b" ",
    ),
    "a body nobody reads": (
        b"POST /nothing HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n",
    ),
    "after an answer": (b"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n", b""),
    "half a request after an answer": (b"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\nGET /health HT", b""),
    "letters after an answer": (b"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\nGET /", b"x"),
}


def test_slow_senders_are_hung_up_on(impatient: Server) -> None:
    """Whether they pause, or send a little now and then, all of them are gone within the time of a body."""
    said = {}

    def send(name: str, first: bytes, then: bytes, pauses: bool) -> None:
        begun = time.monotonic()
        with impatient.connected() as connection:
            connection.sendall(first.replace(b"{host}", impatient.host.encode()))
            connection.settimeout(0.3)
            content, closed = b"", False
            while not closed and time.monotonic() - begun < 12:
                try:
                    piece = connection.recv(2**16)
                    content, closed = content + piece, not piece
                except TimeoutError:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"" if pauses else then)
                except ConnectionError:
                    closed = True
        said[name, pauses] = (closed, content)

    threads = [
        threading.Thread(target=send, args=(name, *what, pauses))
        for name, what in SLOW.items()
        for pauses in (True, False)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not [name for name, (closed, _) in said.items() if not closed]
    for name, (_, content) in said.items():
        if content and "answer" not in name[0] and "nobody" not in name[0]:
            answer = Answer.of(content)
            assert answer.status == 408, name
            require_reason(answer.status, answer.headers, answer.body)
    assert impatient.is_well()


def connections(server: Server) -> int:
    """How many connections the server has."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    own = f":{server.place[1]:04X}"
    return sum(line.split()[1].endswith(own) and line.split()[3] == "01" for line in lines)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells the connections")
def test_those_who_never_read_are_hung_up_on(impatient: Server) -> None:
    """Else a few hundred connections that ask for much and take none of it keep everybody out for ever."""
    asked = f"GET /openapi.json HTTP/1.1\r\nHost: {impatient.host}\r\n\r\n".encode() * 300
    before = connections(impatient)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(impatient.place)
            connection.sendall(asked)
        until = time.monotonic() + 8
        while (left := connections(impatient) - before) > 0 and time.monotonic() < until:
            time.sleep(0.2)
        assert left <= 0


def test_idle_connections_do_not_keep_others_out(impatient: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(impatient.connected())
        answer = impatient.asked("GET /health")
        assert answer.status in (0, 200, 503)
        until = time.monotonic() + 20
        while not impatient.is_well():
            assert time.monotonic() < until
            time.sleep(0.2)


def test_refusals_for_want_of_connections_are_told_in_the_form_of_all_errors(impatient: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(impatient.connected())
        answer = impatient.asked("GET /health")
    if answer.status == 503:
        assert list(json.loads(answer.body)) == ["error"]
        assert HEADERS.items() <= answer.headers.items()


def test_a_photo_bomb_takes_bounded_memory_from_the_real_server(server: Server) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (10_000, 9_900)).save(stream, "PNG", compress_level=1)  # 99 megapixels, just within the limit
    bodies = [stream.getvalue(), bomb(), png_of_size(60_000, 60_000)] * 2
    answers = []

    def ask(body: bytes) -> None:
        answers.append(server.asked("POST /api/models/pets/predict", f"Content-Length: {len(body)}", body=body).status)

    threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    assert server.is_well()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200] * 2 + [422] * 4


def test_the_real_server_stays_small_writes_nothing_elsewhere_and_lets_nobody_else_look(
    server: Server, model: Path
) -> None:
    """The last test: `server` has been through what is above; its files are made with an open umask."""
    names = ["photo.png", "../../evil.png"]
    body = form(*[file_part(name) for name in names])
    head = ("Content-Type: multipart/form-data; boundary=b", f"Content-Length: {len(body)}")
    assert server.asked("POST /api/models/pets/tray?class=bee", *head, body=body).status == 200
    assert server.asked("POST /api/models/pets/jobs", "Content-Length: 0").status == 202
    assert server.memory() < MOST_MEMORY
    home = server.errors.with_suffix("")
    assert [file.name for file in home.iterdir()] == ["state"]
    assert [file.name for file in (home / "state").iterdir()] == ["treering"]
    files = [file for file in home.rglob("*") if file.is_file()]
    assert [file for file in files if file.suffix == ".png"]
    for file in files:
        assert not set(names) & {file.name}
        around = [one for one in file.parents if home / "state" in one.parents]
        assert any(not stat.S_IMODE(one.stat().st_mode) & 0o077 for one in [file, *around]), file
    assert {file.name for file in home.parent.iterdir()} == {"pets", "home", "home.log"}
    assert "evil" not in server.said()


def test_what_waits_for_models_of_a_folder_is_private(many: TestClient) -> None:
    assert many.post(TRAY, params={"class": "bee"}, content=PHOTO).status_code == 200
    places = user_key.place().parent / "serve"
    for file in places.rglob("*"):
        if file.is_file():
            around = [file, *(one for one in file.parents if places in one.parents)]
            assert any(not stat.S_IMODE(one.stat().st_mode) & 0o077 for one in around), file
    assert os.name == "nt" or not stat.S_IMODE(places.stat().st_mode) & 0o022


def test_after_all_this_the_model_is_whole(client: TestClient, many: TestClient) -> None:
    for asked in (client, many):
        answer = asked.post(PREDICT, content=encoded("JPEG"))
        assert answer.status_code == 200
        assert {one["name"] for one in answer.json()["predictions"][0]["classes"]} == {"cat", "dog", "owl"}
