"""What stands before every request: who may ask, how much and how long, and what every answer says of itself.

A page of another site, or one that makes itself look like this server by its name, must not reach it, by any method.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from treering import words

logger = words.logger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_PHOTOS, MOST_OTHER = 64 * 2**20, 2 * 2**20
"""The most bytes of a body that brings photos, and of any other: JSON takes many times its bytes in memory."""
MOST_AT_ONCE = 256 * 2**20
"""The most bytes of all bodies that are held at the same time."""
BRINGS_PHOTOS = re.compile("/api/models/[^/]+/(?:predict|tray)")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{1,5})?", re.IGNORECASE)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
LONGEST_PAUSE, LONGEST_BODY = 10.0, 120.0
"""The seconds for which a sender may pause, and those that a whole body may take."""
LONGEST_NUMBER = 12
LOOPBACK = ("localhost", "127.0.0.1", "::1")
COOKIE = "treering"
BODY_LEFT = (400, 401, 403, 408, 413, 421, 429)
"""The statuses of answers that may be sent while a part of the request's body is still unread."""
PAGES = ("/", "/api")
"""What a link on another site may lead to."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "media-src 'self' blob:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

TOO_SLOW = "the request came too slowly: send it again"
LARGEST_TOKEN = 4096
"""The most bytes of the form in which somebody types the token."""
ENTRANCE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>treering</title>
<meta name="viewport" content="width=device-width"><h1>treering</h1>
<form method="post" action="/"><label>This server asks for its token, which it printed when it started:
<input name="token" type="password" autofocus required></label> <button>Enter</button></form></html>"""
ENTRANCE_POLICY = "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"


class Metrics:
    """What the server counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        names = ("method", "route", "status")
        self.requests = Counter("treering_requests", "Requests answered", names, registry=self.registry)
        self.seconds = Histogram(
            "treering_request_seconds", "Seconds until an answer", names[:2], registry=self.registry
        )
        self.photos = Counter("treering_photos", "Photos answered", registry=self.registry)
        self.batches = Counter("treering_batches", "Batches computed", registry=self.registry)
        self.jobs = Counter("treering_jobs", "Jobs that have ended", ["state"], registry=self.registry)


@dataclass
class Door:
    """Who may ask."""

    hosts: frozenset[str]
    """The names under which the server may be asked, beside addresses if it is not for this computer alone."""
    is_local: bool
    token: str | None
    """What every request must bring; None asks for nothing."""
    once: str | None = None
    """What the link brings that is printed once, in exchange for a cookie."""

    def knows(self, host: str) -> bool:
        """Return whether a request may ask for this host. No page of a stranger can have an address as its name."""
        found = HOST.fullmatch(host)
        if not found:
            return False
        name = found[1].strip("[]").lower()
        if name in self.hosts:
            return True
        if self.is_local:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def lets_in(self, headers: Headers, cookies: str) -> bool:
        """Return whether a request brings the token: as a bearer, as a password, or in the page's cookie."""
        if self.token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        offered = [given.strip()] if kind.lower() == "bearer" else []
        if kind.lower() == "basic":
            with contextlib.suppress(binascii.Error, ValueError):
                offered.append(base64.b64decode(given, validate=True).decode().partition(":")[2])
        offered += [
            part.strip()[len(COOKIE) + 1 :] for part in cookies.split(";") if part.strip().startswith(f"{COOKIE}=")
        ]
        return any(secrets.compare_digest(one.encode(), self.token.encode()) for one in offered)


class Guard:
    """Lets a request pass to the application, or answers it."""

    def __init__(self, application: Any, door: Door, metrics: Metrics) -> None:
        self.application, self.door, self.metrics = application, door, metrics
        self.held = 0
        """The bytes of the bodies that are being received or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        number, began, status = secrets.token_hex(8), time.perf_counter(), 500

        async def sent(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                headers["x-request-id"] = number
                if status in BODY_LEFT:
                    headers["connection"] = "close"
            await send(message)

        refused = self._refused(scope)
        try:
            if refused is not None:
                await refused(scope, receive, sent)
            else:
                await self._pass(scope, receive, sent)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            spent = time.perf_counter() - began
            is_usual = route != "none" and scope["method"] in METHODS  # else strangers could make the metrics grow
            labels = scope["method"] if is_usual else "any", route
            self.metrics.requests.labels(*labels, status).inc()
            self.metrics.seconds.labels(*labels).observe(spent)
            level = logging.ERROR if status >= 500 and status != 503 else logging.INFO
            logger.log(level, "%s %s %s %d %.0f ms", number, scope["method"], route, status, 1000 * spent)

    def _refused(self, scope: Scope) -> Any:
        """Return what answers a request that may not pass; None if it may."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.door.knows(hosts[0]):
            return told(
                421, "this server does not go by that name: ask for the address that it printed when it started"
            )
        if not _is_own(headers, hosts[0], scope):
            return told(403, "a page of another site may not ask this server")
        code = parse_qs(scope["query_string"].decode("latin-1")).get("key", [""])[0] if scope["path"] == "/" else ""
        if code and self.door.token is not None:
            return self._exchanged(code)
        if scope["path"] == "/" and scope["method"] == "POST" and self.door.token is not None:
            return self._enter
        if not self.door.lets_in(headers, headers.get("cookie", "")):
            if scope["path"] == "/" and scope["method"] == "GET" and "text/html" in headers.get("accept", ""):
                return HTMLResponse(ENTRANCE, 401, {"content-security-policy": ENTRANCE_POLICY})
            answer = told(
                401, "this server asks for its token: open the link that it printed, or send the token as a bearer"
            )
            answer.headers["www-authenticate"] = 'Bearer realm="treering"'
            return answer
        if "transfer-encoding" in headers and "content-length" in headers:
            return told(400, "a request has a length or comes in pieces, not both: send it with one of them")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > LONGEST_NUMBER or int(length) > _most(scope):
            return told(413, _too_large(scope))
        return None

    def _exchanged(self, code: str) -> Response:
        """Return the answer to the link that was printed: it serves once, and leaves a cookie."""
        if self.door.once is None or not secrets.compare_digest(code.encode(), self.door.once.encode()):
            return told(
                401, "this link has been used: start the server again for another, or send the token as a bearer"
            )
        self.door.once = None
        return self._let_in()

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the form in which somebody has typed the token."""
        body, more = b"", True
        try:
            async with asyncio.timeout(LONGEST_PAUSE):
                while more and len(body) <= LARGEST_TOKEN:
                    message = await receive()
                    body, more = body + message.get("body", b""), message.get("more_body", False)
        except TimeoutError:
            await told(408, TOO_SLOW)(scope, receive, send)
            return
        given = parse_qs(body[:LARGEST_TOKEN].decode("latin-1")).get("token", [""])[0].strip()
        if self.door.token is not None and secrets.compare_digest(given.encode(), self.door.token.encode()):
            await self._let_in()(scope, receive, send)
        else:
            wrong = HTMLResponse(ENTRANCE, 401, {"content-security-policy": ENTRANCE_POLICY})
            await wrong(scope, receive, send)

    def _let_in(self) -> Response:
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, self.door.token or "", httponly=True, samesite="lax", path="/")
        return answer

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the application answer, and count what it receives."""
        size, begun, complete = 0, time.monotonic(), False

        async def received() -> MutableMapping[str, Any]:
            nonlocal size, complete
            if complete:  # it waits for the end of the connection, which may take as long as it likes
                return await receive()
            try:
                async with asyncio.timeout(min(LONGEST_PAUSE, begun + LONGEST_BODY - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, TOO_SLOW) from None
            complete = not message.get("more_body", False)
            size += len(message.get("body", b""))
            self.held += len(message.get("body", b""))
            if size > _most(scope):
                raise HTTPException(413, _too_large(scope))
            if self.held > MOST_AT_ONCE:
                raise HTTPException(429, "too much is being sent at the same time: try again in a moment")
            return message

        try:
            await self.application(scope, received, send)
        finally:
            self.held -= size


def _most(scope: Scope) -> int:
    """Return the most bytes that the body of a request may have."""
    return MOST_PHOTOS if BRINGS_PHOTOS.fullmatch(scope["path"]) else MOST_OTHER


def _too_large(scope: Scope) -> str:
    return f"more than {_most(scope) // 2**20} MB in one request: send less at a time"


def told(status: int, error: str) -> JSONResponse:
    """Return an answer that says what is wrong."""
    return JSONResponse({"error": error}, status)


def _is_own(headers: Headers, host: str, scope: Scope) -> bool:
    """Return whether a request comes from this server's own page, or from a program."""
    origins = headers.getlist("origin")
    if origins:
        # Only the name and the port are compared: a proxy before this server may speak HTTPS.
        return len(origins) == 1 and origins[0].lower().partition("://")[2] == host.lower()
    site = headers.get("sec-fetch-site", "none")
    is_link = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET" and scope["path"] in PAGES
    return site in ("same-origin", "none") or is_link
