"""The command `serve`: opens the door, prints where it is, and runs until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from rich.console import Console
from uvicorn.protocols.http.h11_impl import H11Protocol

from treering.errors import TreeringError
from treering.server import app
from treering.server.guard import HEADERS, LOOPBACK, Door
from treering.server.service import Service, Settings
from treering.storage import manifest
from treering.terminal import Terminal

TOKEN, KEY = "TREERING_TOKEN", "LABEL_STUDIO_API_KEY"
"""The variables that hold the server's token, and what Label Studio asks for."""
LOG = "TREERING_LOG"
"""If this variable is set, each request is logged."""
SHORTEST_TOKEN = 16
EVERYWHERE = ("0.0.0.0", "::")
"""The addresses that stand for all of this computer's."""
MOST_CONNECTIONS = 256
LONGEST_HEADERS = 10.0
"""The seconds in which a request's headers must have come."""
LARGEST_HEADERS = 2**15
DRAIN = 10
"""The seconds that requests have to end when the server does."""


class Protocol(H11Protocol):
    """HTTP whose requests must begin and end: who opens a connection and says too little is hung up on."""

    _hang_up: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect a request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.write(_raw("503 Service Unavailable", "too many connections are open: try again in a moment"))
            transport.close()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        """Expect a request unless one is being answered."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._hang_up is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing more."""
        self._stop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Expect the other side to read what it was sent."""
        super().pause_writing()
        self._unread = self.loop.call_later(LONGEST_HEADERS, self.transport.abort)

    def resume_writing(self) -> None:
        """Expect nothing: it has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as any other error is answered."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(_raw("400 Bad Request", "this is no HTTP request"))
        self.transport.close()

    def _expect(self) -> None:
        self._hang_up = self.loop.call_later(LONGEST_HEADERS, self.transport.abort)

    def _stop(self) -> None:
        if self._hang_up is not None:
            self._hang_up.cancel()
            self._hang_up = None


def _raw(status: str, error: str) -> bytes:
    """Return an answer as it is sent, for those who have not asked anything yet."""
    body = json.dumps({"error": error})
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close", **HEADERS}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", body]
    return "\r\n".join(lines).encode()


class Running(uvicorn.Server):
    """A server that tells the streams of events to end as soon as it is told to."""

    def __init__(self, config: uvicorn.Config, held: Service) -> None:
        super().__init__(config)
        self.held = held

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End, after the requests that are being answered."""
        super().handle_exit(sig, frame)
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            asyncio.get_event_loop().call_soon_threadsafe(self.held.jobs.hurry)


def serve(
    path: Path,
    host: str,
    port: int,
    names: Sequence[str],
    device: str,
    many: bool,
    label_studio: str | None,
    console: Console,
) -> None:
    """Serve a model, or a folder of models, until Ctrl-C or SIGTERM."""
    if path.exists() and not path.is_dir():
        raise TreeringError(f"{path} is a file: give the folder of a model, or of models")
    if many and (manifest.is_there(path) or not path.is_dir()):
        raise TreeringError(f"{path} is not a folder of models: give one, which may be empty, or leave out --models")
    if manifest.is_there(path):
        manifest.of(path)  # raises in one line if it is damaged
    door, link = _door(host, names)
    taken = _listening(host, port)
    settings = Settings(path, door, device, many, label_studio, os.environ.get(KEY) or None)
    try:
        guarded, service = app.make(settings)
        for served in service.models.all():
            _ = served.tray  # raises if another server has it
        _run(guarded, service, taken, settings, link, Terminal(console))
    except OSError as error:
        raise TreeringError(f"cannot serve {path}: {error.filename or 'a file'}: {error.strerror or error}") from None
    finally:
        taken.close()


def _run(
    guarded: Any, service: Service, taken: socket.socket, settings: Settings, link: str, terminal: Terminal
) -> None:
    _log()
    config = uvicorn.Config(
        guarded,
        http=Protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        h11_max_incomplete_event_size=LARGEST_HEADERS,
        timeout_keep_alive=int(LONGEST_HEADERS),
        timeout_graceful_shutdown=DRAIN,
    )
    shown, port = taken.getsockname()[:2]
    if shown in EVERYWHERE:
        shown = socket.gethostname()
    address = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    terminal.line(f"{settings.path} is served at {address}{link}")
    if settings.door.token is not None:
        terminal.line("This link works once. Programs send the token as `Authorization: Bearer TOKEN`:")
        terminal.line(f"  {settings.door.token}" if not os.environ.get(TOKEN) else f"  the one in {TOKEN}")
        terminal.line("Photos and the token are not encrypted on their way: use it on a network that you trust.")
    terminal.line("Ctrl-C ends it.")
    Running(config, service).run(sockets=[taken])


def _log() -> None:
    """Have errors of the server's own written with where they come from, and with `LOG` a line for each request."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("uvicorn.error", logging.ERROR), ("treering.server", logging.WARNING)):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO if os.environ.get(LOG) and name != "uvicorn.error" else level)
        logging.getLogger(name).propagate = False


def _door(host: str, names: Sequence[str]) -> tuple[Door, str]:
    """Return who may ask, and what the printed link ends with."""
    is_local = host in LOOPBACK
    token = os.environ.get(TOKEN) or None
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise TreeringError(f"{TOKEN} is too short to be safe: give {SHORTEST_TOKEN} letters or more")
    if token is None and not is_local:
        token = secrets.token_urlsafe(32)
    hosts = frozenset({*LOOPBACK, *names, *(() if is_local else (host, socket.gethostname()))})
    once = secrets.token_urlsafe(16) if token else None
    return Door(frozenset(name.lower() for name in hosts), is_local, token, once), f"/?key={once}" if once else "/"


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise in one line if it cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        try:
            if os.name != "nt":
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(address)
            taken.listen(128)
        except OSError:
            taken.close()
            raise
    except OSError as error:
        what = f"cannot listen at {host}, port {port}: {error.strerror or error}"
        raise TreeringError(f"{what}; choose another --port or --host") from None
    return taken
