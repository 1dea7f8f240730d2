"""Who may ask the server: no page of another site by any method, nobody without the token, and every answer says so."""

from __future__ import annotations

import asyncio
import base64
import logging
import pickle
import shutil
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from server_helper import ADDRESS, ONCE, PHOTO, TOKEN, client_of, door, make_model, require_guarded, require_reason
from starlette.testclient import TestClient

from treering.server import app, guard
from treering.server.guard import Door, Guard, Metrics
from treering.server.service import Settings

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")
PAGES = ("/", "/api", "/page/app.js", "/page/style.css", "/favicon.ico", "/openapi.json", "/nothing", "/api/nothing")
BEARER = {"authorization": f"Bearer {TOKEN}"}
STRANGERS = [
    *(
        "evil.example",
        "evil.example:8470",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example#localhost",
    ),
    *("user@localhost", "localhost:8470@evil.example", "evil.example:80@127.0.0.1:8470", "127.0.0.1@evil.example"),
    *("localhost.", "localhost..", "127.0.0.1.", "localhost,evil.example", "localhost evil.example"),
    *("localhost/evil", "localhost#evil", "localhost?evil", "localhost\\evil", "localhost:abc", "localhost:-1"),
    *("127.1", "2130706433", "0x7f.0.0.1", "0177.0.0.1", "0.0.0.0", "127.0.0.2", "192.168.1.7", "169.254.169.254"),
    *("[::2]", "[::ffff:127.0.0.1]", "[::1%25eth0]", "[::1].evil.example", "[::]"),
    *("[", "[::1", "::1]", "[evil.example]", "[]", "", " ", "*", ":8470", "%6cocalhost", "l\xf6calhost"),
]
"""Hosts by which the server for this computer must not be asked."""
OTHER_SITES: list[dict[str, str]] = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "file://"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://127.0.0.1:8471"},
    {"origin": "http://localhost:8470"},
    {"origin": "http://127.0.0.1:8470.evil.example"},
    {"origin": "http://evil.example@127.0.0.1:8470"},
    {"origin": f"{ADDRESS}, http://evil.example"},
    {"origin": f"{ADDRESS}/"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "what is that"},
    {"sec-fetch-site": ""},
    {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
]
"""What browsers send for pages of other sites, and what a page might have them send."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("guarded"))


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[TestClient]:
    """A client of a server for this computer alone, with a photo in the tray."""
    found, _ = client_of(model)
    with found:
        assert found.post("/api/models/pets/tray", params={"class": "bee"}, content=PHOTO).status_code == 200
        yield found


@pytest.fixture(scope="module")
def demanding(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server that asks for a token."""
    path = Path(shutil.copytree(model, tmp_path_factory.mktemp("demanding") / "pets"))
    found, _ = client_of(path, door(TOKEN, False))
    with found:
        yield found


def routes(client: TestClient, **headers: str) -> list[str]:
    """A path for each route, and some that lead nowhere."""
    paths = client.get("/openapi.json", headers=headers).json()["paths"]
    names = {"{model}": "pets", "{job}": "0" * 32, "{number}": "0" * 32, "{digest}": "0" * 64}
    found = list(PAGES)
    for path in paths:
        for name, value in names.items():
            path = path.replace(name, value)
        found.append(path)
    assert len(found) > 20
    return found


def told(headers: list[tuple[bytes, bytes]], path: str = "/health", opened: Door | None = None) -> int:
    """The status of an answer to a request with exactly these headers, of a guard with nothing behind it."""
    statuses = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": "GET", "path": path, "scheme": "http", "query_string": b"", "headers": headers}
    asyncio.run(Guard(application, opened or door(), Metrics())(scope, receive, send))
    return statuses[0]


# Names


@pytest.mark.parametrize("host", STRANGERS, ids=ascii)
def test_the_server_for_this_computer_goes_by_no_other_name(client: TestClient, host: str) -> None:
    answer = client.get("/health", headers={"host": host.encode("latin-1")})  # type: ignore[dict-item]
    require_reason(answer.status_code, answer.headers, answer.content)
    require_guarded(answer.headers)


def test_a_page_with_a_strangers_name_reaches_nothing_by_any_method(client: TestClient) -> None:
    for path in routes(client):
        for method in METHODS:
            answer = client.request(method, path, headers={"host": "evil.example:8470"})
            assert answer.status_code == 421, (method, path)
            assert b"pets" not in answer.content


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8470", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8470"])
def test_the_server_goes_by_the_names_of_this_computer(client: TestClient, host: str) -> None:
    assert client.get("/health", headers={"host": host}).status_code == 200


def test_there_is_one_host() -> None:
    assert told([(b"host", b"localhost")]) == 200
    assert told([(b"host", b"localhost"), (b"host", b"localhost")]) == 421
    assert told([(b"host", b"localhost"), (b"host", b"evil.example")]) == 421
    assert told([(b"host", b"evil.example"), (b"host", b"localhost")]) == 421
    assert told([]) == 421


def test_a_forwarded_host_counts_for_nothing(client: TestClient) -> None:
    for name in ("x-forwarded-host", "forwarded", "x-host", "x-original-host"):
        assert client.get("/health", headers={"host": "evil.example", name: "127.0.0.1:8470"}).status_code == 421
        assert client.get("/health", headers={name: "evil.example"}).status_code == 200


def test_a_server_for_others_goes_by_addresses_and_its_own_names_alone() -> None:
    opened = door(None, False, "lab.example")

    def status(host: str) -> int:
        return told([(b"host", host.encode())], opened=opened)

    for host in ("192.168.1.7:8470", "[fd00::7]:8470", "lab.example:8470", "LAB.example", "localhost"):
        assert status(host) == 200, host
    for host in ("evil.example", "evil.lab.example", "lab.example.evil.example", "lab.example.", "a@lab.example", ""):
        assert status(host) in (400, 421), host


# Other sites


@pytest.mark.parametrize("headers", OTHER_SITES, ids=str)
def test_no_page_of_another_site_asks_by_any_method(client: TestClient, headers: dict[str, str]) -> None:
    before = client.get("/api/models/pets").json()
    for path in routes(client):
        for method in METHODS:
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 403, (method, path)
            require_guarded(answer.headers)
    assert client.get("/api/models/pets").json() == before


def test_no_page_of_another_site_takes_anything_away(client: TestClient) -> None:
    tray = client.get("/api/models/pets/tray").json()
    number = tray["classes"][0]["photos"][0]["id"]
    for headers in OTHER_SITES:
        for path in ("/api/models/pets/tray", f"/api/models/pets/tray/{number}"):
            assert client.delete(path, headers=headers).status_code == 403
            assert client.post(path, headers=headers | {"x-http-method-override": "DELETE"}).status_code == 403
    assert client.get("/api/models/pets/tray").json() == tray


def test_a_link_on_another_site_leads_to_the_pages_and_no_further(client: TestClient) -> None:
    for mode in ("navigate", "cors", "no-cors"):
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": mode}
        for path in routes(client):
            good = mode == "navigate" and path in ("/", "/api")
            assert client.get(path, headers=headers).status_code == (200 if good else 403), (mode, path)
            assert client.post(path, headers=headers).status_code == 403, (mode, path)


def test_two_origins_are_none() -> None:
    own = (b"origin", b"http://localhost")
    assert told([(b"host", b"localhost"), own]) == 200
    assert told([(b"host", b"localhost"), own, own]) == 403
    assert told([(b"host", b"localhost"), own, (b"origin", b"http://evil.example")]) == 403


def test_the_servers_own_page_asks(client: TestClient) -> None:
    for headers in ({"origin": ADDRESS}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {}):
        assert client.get("/api/models", headers=headers).status_code == 200
        assert client.delete("/api/models/pets/tray/x", headers=headers).status_code == 404


def test_no_other_site_is_invited_by_a_preflight(client: TestClient) -> None:
    asked = {"access-control-request-method": "DELETE", "access-control-request-private-network": "true"}
    for origin in ("http://evil.example", ADDRESS):
        answer = client.options("/api/models/pets/tray", headers=asked | {"origin": origin})
        assert answer.status_code in (403, 405)
        require_guarded(answer.headers)


# The token


def test_nothing_is_answered_without_the_token(demanding: TestClient) -> None:
    for path in routes(demanding, **BEARER):
        for method in METHODS:
            answer = demanding.request(method, path)
            assert answer.status_code == 401, (method, path)
            require_guarded(answer.headers)
            assert TOKEN not in answer.text + str(answer.headers)
            assert b"pets" not in answer.content


@pytest.mark.parametrize(
    "authorization",
    [
        *("", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}", TOKEN),
        *(
            f"Token {TOKEN}",
            f"Bearer {TOKEN} {TOKEN}",
            f"Bearer {ONCE}",
            "Basic",
            "Basic !",
            "Basic AAAA",
            "Basic /w==",
        ),
        *(f"Basic {TOKEN}", "Bearer \xff", "Basic " + base64.b64encode(f"{TOKEN}:".encode()).decode()),
        "Basic " + base64.b64encode(b"user:wrong").decode(),
    ],
    ids=ascii,
)
def test_no_other_token_opens_the_door(demanding: TestClient, authorization: str) -> None:
    answer = demanding.get("/health", headers={"authorization": authorization.encode("latin-1")})  # type: ignore[dict-item]
    assert answer.status_code == 401
    require_reason(answer.status_code, answer.headers, answer.content)
    assert "bearer" in answer.headers["www-authenticate"].lower()


@pytest.mark.parametrize(
    "cookie", ["treering=", "treering=wrong", f"other={TOKEN}", f"treering2={TOKEN}", f"x-treering={TOKEN}", TOKEN]
)
def test_no_other_cookie_opens_the_door(demanding: TestClient, cookie: str) -> None:
    assert demanding.get("/health", headers={"cookie": cookie}).status_code == 401


@pytest.mark.parametrize("path", [f"/?token={TOKEN}", f"/health?key={TOKEN}", f"/?key={TOKEN}", f"/api?key={ONCE}"])
def test_the_token_is_never_taken_from_an_address(demanding: TestClient, path: str) -> None:
    assert demanding.get(path).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer {TOKEN}"},
        {"authorization": "Basic " + base64.b64encode(f"anyone:{TOKEN}".encode()).decode()},
        {"cookie": f"treering={TOKEN}"},
        {"cookie": f"a=b; treering={TOKEN}; c=d"},
    ],
)
def test_the_token_opens_the_door(demanding: TestClient, headers: dict[str, str]) -> None:
    for path in ("/", "/health", "/metrics", "/api/models/pets"):
        assert demanding.get(path, headers=headers).status_code == 200


def test_the_token_lets_no_page_of_another_site_in(demanding: TestClient) -> None:
    for headers in OTHER_SITES:
        assert demanding.delete("/api/models/pets/tray", headers=headers | BEARER).status_code == 403
        assert demanding.get("/api/models", headers=headers | {"cookie": f"treering={TOKEN}"}).status_code == 403
    assert demanding.get("/health", headers=BEARER | {"host": "evil.example"}).status_code == 421


def test_the_link_works_once(model: Path) -> None:
    client, _ = client_of(model, door(TOKEN, True))
    with client:
        assert client.get("/?key=wrong").status_code == 401
        assert client.get(f"/?key={ONCE}", headers={"host": "evil.example"}).status_code == 421
        assert client.get(f"/?key={ONCE}", headers={"origin": "http://evil.example"}).status_code == 403
        first = client.get(f"/?key={ONCE}")
        assert first.status_code == 303
        assert first.headers["location"] == "/"
        require_guarded(first.headers)
        flags = {part.strip().partition("=")[0].lower() for part in first.headers["set-cookie"].split(";")[1:]}
        assert {"httponly", "samesite", "path"} <= flags
        assert not {"domain"} & flags
        assert "samesite=none" not in first.headers["set-cookie"].lower()
        assert client.get("/api/models").status_code == 200  # the client keeps the cookie, as a browser does
        client.cookies.clear()
        for _ in range(2):
            assert client.get(f"/?key={ONCE}").status_code == 401
        assert client.get("/api/models").status_code == 401


def test_a_program_needs_no_token_on_this_computer(client: TestClient) -> None:
    for path in ("/", "/health", "/metrics", "/api/models", "/?key=anything"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers


# What every answer says


def broken(*arguments: object) -> None:
    raise ZeroDivisionError("somewhere in the server")


ASKED: dict[str, tuple[int, Callable[[TestClient], Any]]] = {
    "page": (200, lambda client: client.get("/")),
    "script": (200, lambda client: client.get("/page/app.js")),
    "picture": (200, lambda client: client.get(client.get("/api/models/pets").json()["classes"][0]["exemplars"][0])),
    "waiting": (
        200,
        lambda client: client.get(client.get("/api/models/pets/tray").json()["classes"][0]["photos"][0]["url"]),
    ),
    "metrics": (200, lambda client: client.get("/metrics")),
    "slash": (307, lambda client: client.get("/api/models/")),
    "form": (
        400,
        lambda client: client.post("/api/models/pets/predict", headers={"content-type": "multipart/form-data"}),
    ),
    "missing": (404, lambda client: client.get("/nothing")),
    "class": (404, lambda client: client.post("/api/models/pets/forget", json={"classes": ["x"]})),
    "method": (405, lambda client: client.patch("/health")),
    "undo": (409, lambda client: client.post("/api/models/pets/undo")),
    "large": (413, lambda client: client.post("/health", headers={"content-length": "99999999999"})),
    "kind": (415, lambda client: client.post("/api/models/pets/predict", headers={"content-type": "text/html"})),
    "value": (422, lambda client: client.post("/api/models/pets/predict?top=x", content=PHOTO)),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_answer_says_what_a_browser_may_do_with_it(client: TestClient, name: str) -> None:
    status, asked = ASKED[name]
    answer = asked(client)
    assert answer.status_code == status
    require_guarded(answer.headers)
    assert "cache-control" in answer.headers
    if status >= 400:
        require_reason(answer.status_code, answer.headers, answer.content)


def test_an_error_of_the_servers_own_is_told_in_the_form_of_all_others(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = client_of(model)
    monkeypatch.setattr(service.models, "all", lambda: [])
    with client:
        monkeypatch.setattr(service.models, "all", broken)
        answer = client.get("/api/models")
        assert answer.status_code == 500
        require_guarded(answer.headers)
        assert list(answer.json()) == ["error"]
        assert "ZeroDivision" not in answer.text
        assert client.get("/health").status_code == 200


def test_each_request_has_a_number_of_its_own(client: TestClient) -> None:
    asked = [client.get("/health", headers={"x-request-id": "mine"}).headers["x-request-id"] for _ in range(20)]
    assert len(set(asked)) == 20
    assert "mine" not in asked


# The log and the metrics


def test_the_log_tells_nothing_of_what_was_asked(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    secret = "s3cret"
    form = {"files": [("photo", (f"{secret}.png", PHOTO))]}
    caplog.set_level(logging.INFO, "treering")
    logging.getLogger("treering.server.guard").addHandler(caplog.handler)
    try:
        client.get(f"/?key={secret}")
        client.get(
            f"/health?{secret}={secret}", headers={"x-request-id": secret, "user-agent": secret, "cookie": secret}
        )
        client.get(f"/{secret}")
        client.get(f"/page/{secret}%0a%1b[31m")
        client.get(f"/api/models/{secret}")
        client.request(secret.upper(), f"/{secret}")
        client.post("/api/models/pets/predict", **form)  # type: ignore[arg-type]
        number = client.post(f"/api/models/pets/tray?class={secret}", **form).headers["x-request-id"]  # type: ignore[arg-type]
        client.delete(f"/api/models/pets/tray?class={secret}")
        client.post("/api/models/pets/rename", json={"old": secret, "new": secret})
        client.post("/api/models/pets/predict", content=f"{secret} is no photo".encode())
        client.get("/health", headers={"host": f"{secret}.example"})
        client.get("/health", headers={"origin": f"http://{secret}.example"})
        client.get("/health", headers={"authorization": f"Bearer {secret}"})
    finally:
        logging.getLogger("treering.server.guard").removeHandler(caplog.handler)
    assert number in caplog.text
    assert secret not in caplog.text
    assert "\x1b" not in caplog.text
    assert "PNG" not in caplog.text


def series(client: TestClient) -> int:
    return len([line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")])


@pytest.mark.parametrize(
    "asked",
    [
        ("GET", "/{}"),
        ("GET", "/api/models/{}"),
        ("GET", "/api/models/pets/exemplars/{}.png"),
        ("GET", "/page/{}?{}={}"),
        ("POST", "/label-studio/{}/predict"),
        ("X{}", "/health"),
        ("X{}", "/nothing/{}"),
        ("X{}", "/api/models/pets"),
    ],
    ids=str,
)
def test_no_stranger_makes_the_metrics_grow(client: TestClient, asked: tuple[str, str]) -> None:
    def ask(number: int) -> None:
        method, path = (text.replace("{}", str(number)) for text in asked)
        client.request(method, path)

    ask(0)
    series(client)  # asking for the metrics adds to them once
    before = series(client)
    for number in range(1, 30):
        ask(number)
    assert series(client) <= before + 16


class Evil:
    """What runs when a pickle of it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def test_pickles_are_never_read_and_hide_no_model(model: Path, tmp_path: Path) -> None:
    place = tmp_path / "models"
    shutil.copytree(model, place / "pets")
    shutil.copytree(model, place / "evil")
    for file in [*(place / "evil").glob("*.*"), place / "evil" / "model.pkl", place / "evil" / "weights.pt"]:
        file.write_bytes(pickle.dumps(Evil(tmp_path / "ran")))
    client, _ = client_of(place)
    with client:
        for method, path in (
            ("GET", ""),
            ("GET", "/tray"),
            ("POST", "/predict"),
            ("POST", "/undo"),
            ("POST", "/tray?class=a"),
        ):
            answer = client.request(method, f"/api/models/evil{path}", content=PHOTO if method == "POST" else None)
            require_reason(answer.status_code, answer.headers, answer.content)
        assert client.post("/api/models/pets/predict", content=PHOTO).status_code == 200
        answer = client.get("/api/models")
        assert answer.status_code == 200
        assert "pets" in [one["name"] for one in answer.json()["models"]]
    assert not (tmp_path / "ran").exists()


def test_whoever_knows_the_token_may_type_it_into_a_form(model: Path) -> None:
    client, _ = client_of(model, door(TOKEN, False))
    own = {"origin": "http://127.0.0.1:8470"}
    with client:
        page = client.get("/", headers={"accept": "text/html"})
        assert page.status_code == 401
        assert "<form" in page.text
        assert "<script" not in page.text
        require_guarded(page.headers)
        assert client.post("/", data={"token": "wrong"}, headers=own).status_code == 401
        assert client.post("/", data={"token": TOKEN}, headers={"origin": "http://evil.example"}).status_code == 403
        assert client.post("/", content=b"token=" + bytes(10**6), headers=own).status_code == 401
        right = client.post("/", data={"token": TOKEN}, headers=own)
        assert (right.status_code, right.headers["location"]) == (303, "/")
        assert client.get("/health").status_code == 200  # by the cookie


def test_a_form_that_trickles_in_is_given_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LONGEST_PAUSE", 0.3)
    entrance, _ = app.make(Settings(model, door(TOKEN, False), "cpu"))
    head = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "scheme": "http"}
    scope = head | {"headers": [(b"host", b"127.0.0.1:8470")]}
    sent: list[Any] = []

    async def trickle() -> dict[str, Any]:
        await asyncio.sleep(0.1)  # each pause is short, and there is no end of them
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(asyncio.wait_for(entrance(scope, trickle, send), 5.0))
    assert sent[0]["status"] == 408
