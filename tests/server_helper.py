"""`treering serve` with a tiny model: within this process, or as the real command for what needs a raw socket."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from learn_helper import NEW, make_folder
from photo_helper import encoded
from starlette.testclient import TestClient

from treering.photos import learn as photos
from treering.server import app
from treering.server.guard import ENTRANCE_POLICY, HEADERS, LOOPBACK, Door
from treering.server.service import Service, Settings

ADDRESS = "http://127.0.0.1:8470"
HOST = "127.0.0.1:8470"
TOKEN = "a-token-of-these-tests"
ONCE = "a-link-of-these-tests"
CLASSES = {"cat": 4, "dog": 4, "owl": 4}
PATIENCE = 60.0
"""The seconds that a real server may take for anything on a machine with much else to do."""
PHOTO = encoded("PNG")
STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
IMPATIENT = """
import sys
from treering import cli
from treering.server import guard, run
run.LONGEST_HEADERS, guard.LONGEST_PAUSE, guard.LONGEST_BODY = 1.0, 1.0, 3.0
sys.argv[0] = "treering"
cli.main()
"""
"""The real command, which waits for a second where it waits for ten."""


def make_model(place: Path, name: str = "pets") -> Path:
    """PLACE/<name>, a model that has learnt `CLASSES`; takes a fraction of a second."""
    folder = make_folder(place / f"photos of {name}", CLASSES)
    photos.learn(place / name, folder, **NEW, device="cpu")
    return place / name


def door(token: str | None = None, local: bool = True, *names: str) -> Door:
    """A door as the command makes it."""
    return Door(frozenset({*LOOPBACK, *names}), local, token, ONCE if token else None)


def client_of(path: Path, opened: Door | None = None, **settings: str | None) -> tuple[TestClient, Service]:
    """A client of the application in this process, and what that holds; it runs within a `with` of the client.

    An exception that nobody catches is an answer with status 500, as it is for users.
    """
    guard, service = app.make(Settings(path, opened or door(), "cpu", **settings))
    return TestClient(guard, base_url=ADDRESS, raise_server_exceptions=False, follow_redirects=False), service


def require_guarded(headers: Mapping[str, str]) -> None:
    """Raise if an answer lacks what every answer says of itself, or invites other sites."""
    entrance = (
        {"content-security-policy": ENTRANCE_POLICY} if headers.get("content-type", "")[:9] == "text/html" else {}
    )
    for name, value in HEADERS.items():
        assert headers.get(name) in (value, entrance.get(name, value)), (name, headers)
    assert re.fullmatch("[0-9a-f]{16}", headers["x-request-id"])
    assert not [name for name in headers if name.startswith("access-control")]
    assert "server" not in headers


def require_reason(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Return the reason of a refusal; raise if this is none, or not one line in the form of all errors."""
    assert 400 <= status < 500, (status, body[:500])
    told = json.loads(body)
    assert list(told) == ["error"], told
    reason = told["error"]
    assert isinstance(reason, str)
    assert reason.strip()
    assert not STEERING.search(reason), ascii(reason)
    assert len(reason) <= 2000
    return reason


@dataclass(frozen=True)
class Answer:
    """What came back on a raw connection: one answer, or nothing (status 0) where the server hung up."""

    status: int
    headers: dict[str, str]
    body: bytes

    @classmethod
    def of(cls, content: bytes) -> Answer:
        head, _, body = content.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/1\.1 (\d{3}).*", first)
        pairs = (line.partition(":") for line in lines)
        return cls(int(found[1]) if found else 0, {name.lower(): value.strip() for name, _, value in pairs}, body)


class Server:
    """A real server, and a stranger's means against it."""

    def __init__(self, process: subprocess.Popen[str], address: str, errors: Path) -> None:
        self.process, self.address, self.errors = process, address, errors
        self.link = address
        host, _, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
        self.place = (host.strip("[]"), int(port))
        self.host = f"{host}:{port}"

    def connected(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(self.place, timeout=PATIENCE)

    def sent(self, content: bytes, ends: bool = False) -> Answer:
        """Send bytes as they are, and return the first answer; `ends` closes the sending half of the connection."""
        with self.connected() as connection:
            with contextlib.suppress(ConnectionError):  # it need not listen to the end
                connection.sendall(content)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            return Answer.of(received(connection))

    def asked(self, line: str, *headers: str, body: bytes = b"") -> Answer:
        """Send a request with the right Host and nothing else that was not asked for."""
        head = "\r\n".join([f"{line} HTTP/1.1", f"Host: {self.host}", "Connection: close", *headers, "", ""])
        return self.sent(head.encode("latin-1") + body)

    def is_well(self) -> bool:
        """Whether it still answers."""
        return self.process.poll() is None and self.asked("GET /health").status == 200

    def memory(self) -> int:
        """The most bytes of memory that the process has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found
        return int(found[1]) * 1024

    def said(self) -> str:
        """What it has written to its standard error."""
        return self.errors.read_text(errors="replace")


def received(connection: socket.socket, most: int = 2**22) -> bytes:
    """All that comes until the server hangs up."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while len(content) < most and (piece := connection.recv(2**16)):
            content += piece
    return content


@contextlib.contextmanager
def real(path: Path, home: Path, *options: str, impatient: bool = False, **environment: str) -> Iterator[Server]:
    """The real command at a free port; HOME is its home, temporary, state and working folder."""
    (home / "state").mkdir(parents=True)
    places = {"HOME": str(home), "TMPDIR": str(home), "XDG_STATE_HOME": str(home / "state")}
    settings = {"OMP_NUM_THREADS": "1", "TREERING_LOG": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    script = ["-c", IMPATIENT] if impatient else ["-m", "treering"]
    errors = home.with_name(f"{home.name}.log")
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *script, "serve", str(path), "--port", "0", "--device", "cpu", *options],
            env=os.environ | places | settings | environment,
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            umask=0,  # what is private is so by itself
        )
    late = threading.Timer(PATIENCE, process.kill)  # then the line is empty
    late.start()
    try:
        assert process.stdout
        line = process.stdout.readline()
        late.cancel()
        found = re.search(r"http://\S+", line)
        assert found, (line, errors.read_text())
        server = Server(process, found[0].partition("/?")[0].rstrip("/"), errors)
        server.link = found[0]
        _wait_for(server)
        yield server
    finally:
        late.cancel()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def _wait_for(server: Server) -> None:
    """Wait until a server answers at all, which may ask for a token."""
    until = time.monotonic() + PATIENCE
    while not server.asked("GET /health").status:
        assert server.process.poll() is None, server.said()
        assert time.monotonic() < until, server.said()
        time.sleep(0.05)
