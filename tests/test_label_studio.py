"""Label Studio: what it really sends is answered and learnt, and photos come from nowhere else.

`label_studio_requests.json` holds one request of each kind as Label Studio 1.23.2 has sent it to this server.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from conftest import images_of
from learn_helper import NEW, SIDE, TUNED, make_folder
from PIL import Image
from server_helper import client_of, require_reason
from starlette.testclient import TestClient

from treering import TreeringError
from treering.photos import learn as photos
from treering.server import label_studio, service, tray, uploads
from treering.server.label_studio import Photos
from treering.server.schemas import Effort, Job
from treering.server.served import Loaded, Served
from treering.server.service import DRAIN, Service

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("label_studio_requests.json").read_text())
CLASSES = {"Blue Jay": 8, "Cardinal": 8, "Mallard": 8}
CONFIG: str = RECORDED["setup"]["body"]["schema"]
KEY = "an-older-key-of-label-studio"
REFRESH = "a-newer.key-of.label-studio"
JSON = {"Content-Type": "application/json"}
PATIENCE = 60.0
"""The seconds that anything may take on a machine with much else to do."""
WEBHOOK_TIMEOUT = 1.0
"""The seconds that Label Studio waits for the answer to a webhook, and for that to a question after the health."""

SHOWN = ("Blue Jay", "Mallard", "White Pelican")
"""What the recorded tasks show."""


def photo(name: str) -> bytes:
    """The file of a photo of a class."""
    content = io.BytesIO()
    Image.fromarray(images_of([name], seed=5, side=SIDE)[0]).save(content, "PNG")
    return content.getvalue()


class Studio:
    """A stub of Label Studio: it serves photos of the classes in their names to whoever shows the key."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        """The paths that were asked for, and what proved who asks."""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        """The status, headers and body that other paths are answered with; status 0 for a body that is no HTTP."""
        self.gate = threading.Event()
        """Whether photos are answered now."""
        self.gate.set()
        self.gated = ""
        """A part of the paths of the photos that wait for that; the others are answered in any case."""
        self.pause = 0.0
        """The seconds between two bytes of an answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str, authorization: str) -> tuple[int, dict[str, str], bytes]:
        """Return the answer to a request."""
        if path in self.answers:
            return self.answers[path]
        if authorization not in (f"Token {KEY}", "Bearer an-access-token"):
            return 401, {}, b"{}"
        name = re.fullmatch(r"/data/upload/\d+/[0-9a-f]{8}-(\w+)_\d{3}\.jpg", path)
        return (200, {}, photo(name[1].replace("_", " "))) if name else (404, {}, b"")

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(studio) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                studio.asked.append((self.path, self.headers.get("authorization", "")))
                if studio.gated in self.path:
                    studio.gate.wait(PATIENCE)
                self.reply(*studio.answer(self.path, self.headers.get("authorization", "")))

            def do_POST(self) -> None:
                studio.asked.append((self.path, ""))
                sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
                known = self.path == "/api/token/refresh/" and sent == {"refresh": REFRESH}
                told = json.dumps({"access": "an-access-token"}).encode()
                self.reply(*studio.answers.get(self.path, (200, {}, told) if known else (401, {}, b"{}")))

            def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
                if not status:
                    self.wfile.write(content)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    for start in range(0, len(content), 1) if studio.pause else ():
                        self.wfile.write(content[start : start + 1])
                        time.sleep(studio.pause)
                    self.wfile.write(b"" if studio.pause else content)
                except OSError:
                    pass  # who has asked does not wait any longer

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


@pytest.fixture(autouse=True)
def unending(monkeypatch: pytest.MonkeyPatch) -> None:
    """No while is quiet for long enough, however slow the machine, unless a test says so."""
    monkeypatch.setattr(label_studio, "QUIET", 1e6)


@pytest.fixture(scope="module")
def running() -> Iterator[Studio]:
    studio = Studio()
    yield studio
    studio.close()


@pytest.fixture
def studio(running: Studio) -> Iterator[Studio]:
    """A Label Studio that has not been asked for anything."""
    running.asked, running.answers, running.pause, running.gated = [], {}, 0.0, ""
    yield running
    running.gate.set()


@pytest.fixture
def elsewhere() -> Iterator[Studio]:
    """A server that must never be asked."""
    other = Studio()
    yield other
    other.close()
    assert other.asked == []


@pytest.fixture(scope="module")
def served(running: Studio, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Service]]:
    """A client of a server for a folder of models, among them one that knows `CLASSES`, and what it holds."""
    place = tmp_path_factory.mktemp("models")
    changes = (*NEW["changes"], *TUNED)
    folder = make_folder(place / "photos of birds", CLASSES)
    photos.learn(place / "birds", folder, **{**NEW, "changes": changes}, device="cpu")
    found, service = client_of(place, label_studio=running.address, label_studio_key=KEY)
    with found:
        yield found, service


class Model:
    """A model as Label Studio meets it."""

    def __init__(self, client: TestClient, name: str) -> None:
        self.client, self.name = client, name

    def sent(self, kind: str, change: Callable[[dict[str, Any]], object] = lambda body: None) -> httpx2.Response:
        """Send a request as it was recorded, but for a change to its body."""
        request = copy.deepcopy(RECORDED[kind])
        if request["body"] is not None:
            change(request["body"])
        return self.client.request(
            request["method"], f"/label-studio/{self.name}{request['path']}", json=request["body"]
        )

    def told(self, kind: str, change: Callable[[dict[str, Any]], object] = lambda body: None) -> None:
        """Tell of an event; raise if it is not taken note of before Label Studio turns away."""
        begun = time.monotonic()
        assert self.sent(kind, change).status_code == 200
        assert time.monotonic() - begun < WEBHOOK_TIMEOUT

    def put(self, name: str) -> None:
        """Put a photo of a class into the tray by hand."""
        headers = {"content-type": "image/png"}
        self.client.post(
            f"/api/models/{self.name}/tray", params={"class": name}, content=photo(name), headers=headers
        ).raise_for_status()

    def results(self, **changes: Any) -> list[dict[str, Any]]:
        """Return what is predicted for the recorded tasks."""
        answer = self.sent("predict", lambda body: body.update(changes))
        assert answer.status_code == 200, answer.text
        return list(answer.json()["results"])

    def tray(self) -> dict[str, int]:
        """Return how many photos of each class wait to be learnt."""
        told = self.client.get(f"/api/models/{self.name}/tray").json()
        return {one["name"]: len(one["photos"]) for one in told["classes"]}

    def comes_to(self, tray: dict[str, int]) -> None:
        """Wait until these photos wait to be learnt."""
        wait(lambda: self.tray() == tray)

    def classes(self) -> list[str]:
        return [one["name"] for one in self.client.get(f"/api/models/{self.name}").json()["classes"]]

    def jobs(self) -> list[dict[str, Any]]:
        return [one for one in self.client.get("/api/jobs").json()["jobs"] if one["model"] == self.name]


@pytest.fixture
def client(served: tuple[TestClient, Service]) -> TestClient:
    return served[0]


@pytest.fixture
def model(served: tuple[TestClient, Service], studio: Studio) -> Model:
    """A model of this test's own that knows `CLASSES`."""
    client, service = served
    place = service.models.path
    name = f"birds{sum(1 for _ in place.iterdir())}"
    shutil.copytree(place / "birds", place / name)
    return Model(client, name)


@pytest.fixture
def restarted(
    served: tuple[TestClient, Service], studio: Studio, tmp_path: Path
) -> Callable[[], contextlib.AbstractContextManager[Model]]:
    """Starts a server of this test's own, whose model knows `CLASSES`; it may be started again when it has ended."""
    place = Path(shutil.copytree(served[1].models.path / "birds", tmp_path / "birds"))

    @contextlib.contextmanager
    def started() -> Iterator[Model]:
        client, _ = client_of(place, label_studio=studio.address, label_studio_key=KEY)
        with client:
            yield Model(client, place.name)

    return started


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Where this holds a distance, photos that are further away than that are unknown; else all are known."""
    found: list[float] = []
    monkeypatch.setattr(Loaded, "limit", lambda self, share: found[0] if found else None)
    return found


def wait(reached: Callable[[], bool]) -> None:
    """Wait until something is so."""
    until = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.02)


def chosen(*names: str) -> list[dict[str, Any]]:
    """The result of an annotation that chooses classes."""
    return [{"from_name": "choice", "to_name": "image", "type": "choices", "value": {"choices": list(names)}}]


def says(*names: str, annotation: int = 9, task: int = 19) -> Callable[[dict[str, Any]], None]:
    """Change a webhook so that this annotation says that this task shows these classes."""

    def change(body: dict[str, Any]) -> None:
        body["annotation"] |= {"id": annotation, "task": task, "result": chosen(*names)}
        body["task"]["id"] = task

    return change


def of(*numbers: int) -> list[dict[str, int]]:
    """Objects with these numbers."""
    return [{"id": one} for one in numbers]


# Label Studio connects


def test_a_taught_model_connects_and_names_its_version(model: Model) -> None:
    assert model.sent("health").json()["status"] == "UP"
    version = model.sent("setup").json()["model_version"]
    assert version
    assert model.client.get(f"/label-studio/{model.name}/versions").json() == {"versions": [version]}
    assert {one["model_version"] for one in model.results()} == {version}


def test_a_model_that_has_learnt_nothing_connects_and_predicts_nothing(client: TestClient, studio: Studio) -> None:
    client.post("/api/models", json={"name": "new"}).raise_for_status()
    new = Model(client, "new")
    assert new.sent("health").status_code == 200
    assert new.sent("setup").status_code == 200
    assert [one["result"] for one in new.results()] == [[], [], []]
    assert studio.asked == []


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "no XML",
        "<View/>",
        '<View><Image name="image" value="$image"/></View>',
        '<View><Text name="text" value="$text"/><Choices name="choice" toName="text"/></View>',
        '<View><Image name="i" value="$image"/><Choices name="c" toName="i" perRegion="true"/></View>',
        '<!DOCTYPE View [<!ENTITY a "Mallard">]>' + CONFIG.replace("Mallard", "&a;"),
        '<!DOCTYPE View [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]>' + CONFIG.replace("Mallard", "&b;"),
        '<!DOCTYPE View [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + CONFIG.replace("<View>", "<View>&a;"),
        '<!DOCTYPE View SYSTEM "file:///etc/passwd">' + CONFIG,
        "<View>" * 3000,
        CONFIG + " " * 2**17,
        "\ud800",
        None,
        7,
        ["<View/>"],
    ],
    ids=lambda schema: str(ascii(schema))[:40],
)
def test_a_project_that_does_not_classify_photos_is_refused(model: Model, schema: object) -> None:
    content = json.dumps(RECORDED["setup"]["body"] | {"schema": schema})  # the client's own refuses lone surrogates
    answer = model.client.post(f"/label-studio/{model.name}/setup", content=content, headers=JSON)
    assert answer.status_code == 422
    require_reason(answer.status_code, answer.headers, answer.content)


# Predictions


def test_predictions_are_in_the_terms_of_the_project(
    model: Model, served: tuple[TestClient, Service], limit: list[float]
) -> None:
    """The recorded tasks show a blue jay, a mallard, and a pelican, which the model does not know."""
    loaded = served[1].models.find(model.name).current()  # type: ignore[union-attr]
    assert loaded
    _, distances = loaded.answers(np.concatenate([images_of([name], seed=5, side=SIDE) for name in SHOWN]))
    assert distances is not None
    limit.append(float(distances[1:].mean()))
    assert distances[:2].max() < limit[0]
    jay, mallard, pelican = model.results()
    assert jay["result"] == chosen("Blue Jay")
    assert mallard["result"] == chosen("Mallard")
    assert 0.5 < mallard["score"] <= 1
    assert pelican["result"] == []


@pytest.mark.usefixtures("limit")
def test_a_class_that_the_project_does_not_have_gives_an_empty_result(model: Model) -> None:
    config = RECORDED["predict"]["body"]["label_config"].replace('value="Mallard"', 'value="Duck"')
    assert [one["result"] for one in model.results(label_config=config)][:2] == [chosen("Blue Jay"), []]
    aliased = config.replace('value="Duck"', 'value="Duck" alias="Mallard"')
    assert model.results(label_config=aliased)[1]["result"] == chosen("Mallard")


@pytest.mark.usefixtures("limit")
def test_choices_for_something_else_than_the_photo_are_passed_over(model: Model) -> None:
    other = '<View><Text name="t" value="$t"/><Choices name="mood" toName="t"><Choice value="Mallard"/></Choices>'
    config = RECORDED["predict"]["body"]["label_config"].replace("<View>", other, 1)
    assert model.results(label_config=config)[1]["result"] == chosen("Mallard")


@pytest.mark.usefixtures("limit")
def test_a_photo_that_cannot_be_had_leaves_its_task_without_a_prediction(model: Model, studio: Studio) -> None:
    """Label Studio keeps no prediction that has no result, and asks again another time."""
    tasks = RECORDED["predict"]["body"]["tasks"]
    studio.answers[tasks[1]["data"]["image"]] = (500, {}, b"")
    studio.answers[tasks[2]["data"]["image"]] = (200, {}, b"no photo")
    first, second, third = model.results()
    assert first["result"] == chosen("Blue Jay")
    assert "result" not in second
    assert "500" in second["error"]
    assert "result" not in third


def test_a_wrong_key_is_told(model: Model, studio: Studio) -> None:
    studio.answers = {one["data"]["image"]: (401, {}, b"") for one in RECORDED["predict"]["body"]["tasks"]}
    assert all("LABEL_STUDIO_API_KEY" in one["error"] for one in model.results())


def test_no_more_tasks_are_answered_than_label_studio_waits_for(
    model: Model, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = RECORDED["predict"]["body"]["tasks"][0]
    assert (
        model.sent("predict", lambda body: body.update(tasks=[task] * (label_studio.MOST_TASKS + 1))).status_code == 422
    )
    monkeypatch.setattr(label_studio, "PATIENCE", -1.0)
    assert all("result" not in one for one in model.results())
    assert studio.asked == []


# Annotations


def test_the_tray_holds_what_was_said_last(model: Model) -> None:
    model.told("created")
    model.comes_to({"White Pelican": 1})
    model.told("updated")
    model.comes_to({"Mallard": 1})
    model.told("emptied")
    model.comes_to({})
    model.told("created")
    model.comes_to({"White Pelican": 1})
    model.told("deleted", lambda body: body.update(annotations=of(9)))
    model.comes_to({})
    model.told("created")
    model.comes_to({"White Pelican": 1})
    model.told("tasks deleted", lambda body: body.update(tasks=of(19)))
    model.comes_to({})


def test_annotations_made_together_put_the_photo_of_each_task_into_the_tray_once(model: Model) -> None:
    """Label Studio makes an annotation of each version's prediction, so that a task has several."""
    tasks = {one["task"] for one in RECORDED["created together"]["body"]["annotation"]}
    assert len(tasks) < len(RECORDED["created together"]["body"]["annotation"])
    model.told("created together")
    model.comes_to({"Cardinal": len(tasks)})


def test_what_one_says_of_a_task_replaces_what_another_has_said(model: Model) -> None:
    model.told("created")
    model.told("created", says("Blue Jay", annotation=10))
    model.comes_to({"Blue Jay": 1})
    model.told("deleted", lambda body: body.update(annotations=of(9)))
    model.told("created", says("Blue Jay", annotation=11, task=20))
    model.comes_to({"Blue Jay": 2})


@pytest.mark.parametrize("names", [(), ("Blue Jay", "Mallard"), ("../up",), ("",), ("a" * 5000,)])
def test_annotations_without_one_class_are_left_out(model: Model, names: tuple[str, ...]) -> None:
    model.told("created", says(*names))
    model.told("skipped")
    model.told("created", says("Cardinal", annotation=10, task=20))
    model.comes_to({"Cardinal": 1})


def test_events_of_other_kinds_change_nothing(model: Model) -> None:
    for kind in ("tasks created", "project updated"):
        model.told(kind)
    model.told("tasks created", lambda body: body.update(action="SOMETHING_NEW"))
    model.told("created")
    model.comes_to({"White Pelican": 1})
    assert model.jobs() == []


def test_events_are_answered_at_once_and_dealt_with_in_their_order(model: Model, studio: Studio) -> None:
    """Label Studio waits for a second, however long a photo takes; a deletion never overtakes what it deletes."""
    studio.gate.clear()
    model.told("created")
    model.told("deleted", lambda body: body.update(annotations=of(9)))
    model.told("created", says("Cardinal", annotation=10, task=20))
    model.told("updated", says("Blue Jay", annotation=10, task=20))
    begun = time.monotonic()
    assert model.sent("health").status_code == 200
    assert model.sent("setup").status_code == 200
    assert time.monotonic() - begun < WEBHOOK_TIMEOUT
    assert model.tray() == {}
    studio.gate.set()
    model.comes_to({"Blue Jay": 1})


def test_too_many_events_are_refused_and_none_is_counted_twice(
    model: Model, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_studio, "MOST_WAITING", 2)
    studio.gate.clear()
    model.told("created")
    model.told("created", says("Cardinal", annotation=10, task=20))
    for kind in ("created", "deleted", "tasks deleted", "training", "created together"):
        assert model.sent(kind).status_code == 429
    studio.gate.set()
    model.comes_to({"White Pelican": 1, "Cardinal": 1})
    wait(lambda: model.sent("deleted").status_code == 200)


ADDRESS: str = RECORDED["created"]["body"]["task"]["data"]["image"]


def test_an_annotation_does_not_wait_for_predictions(model: Model, studio: Studio) -> None:
    tasks = RECORDED["predict"]["body"]["tasks"][:1] * 20
    studio.gated = tasks[0]["data"]["image"]
    assert studio.gated != ADDRESS
    studio.gate.clear()
    predicting = threading.Thread(target=model.results, kwargs={"tasks": tasks})
    predicting.start()
    wait(lambda: len(studio.asked) == label_studio.AT_ONCE)
    model.told("created")
    model.comes_to({"White Pelican": 1})
    assert len(studio.asked) == label_studio.AT_ONCE + 1
    studio.gate.set()
    predicting.join()


def test_a_photo_that_cannot_be_had_just_now_is_fetched_again_before_it_replaces_the_old_one(
    model: Model, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_studio, "PAUSES", (0.05,) * 1000)
    model.told("created")
    model.comes_to({"White Pelican": 1})
    studio.answers[ADDRESS] = (503, {}, b"")
    model.told("updated")
    wait(lambda: len(studio.asked) > 3)
    assert model.tray() == {"White Pelican": 1}
    studio.answers[ADDRESS] = (0, {}, b"no HTTP")
    asked = len(studio.asked)
    wait(lambda: len(studio.asked) > asked + 2)
    studio.answers.clear()
    model.comes_to({"Mallard": 1})


@pytest.mark.parametrize(("status", "times"), [(503, 4), (429, 4), (404, 1), (302, 1)])
def test_a_photo_that_is_not_to_be_had_is_given_up_with_a_warning_that_names_its_task(
    model: Model,
    studio: Studio,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
    times: int,
) -> None:
    """What was said of the task before is not learnt either, since it holds no longer."""
    monkeypatch.setattr(label_studio, "PAUSES", (0.01,) * 3)
    model.told("created", says("White Pelican"))
    model.comes_to({"White Pelican": 1})
    studio.answers[ADDRESS] = (status, {}, b"")
    model.told("updated", says("Mallard"))
    wait(lambda: any("task 19" in one.getMessage() and str(status) in one.getMessage() for one in caplog.records))
    assert len(studio.asked) == 1 + times
    assert model.tray() == {}
    studio.answers.clear()
    model.told("updated", says("Mallard"))
    model.comes_to({"Mallard": 1})


# Restarts


Starting = Callable[[], contextlib.AbstractContextManager[Model]]


def test_after_a_restart_the_photos_that_wait_are_learnt(restarted: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    with restarted() as model:
        model.told("created")
        model.comes_to({"White Pelican": 1})
        assert model.jobs() == []
    monkeypatch.setattr(label_studio, "QUIET", 0.2)
    with restarted() as model:
        wait(lambda: [one["state"] for one in model.jobs()] == ["done"])
        assert model.jobs()[0]["classes"] == {"White Pelican": 1}
        assert "White Pelican" in model.classes()


def test_after_a_restart_a_task_is_learnt_as_what_is_said_of_it_last(restarted: Starting) -> None:
    with restarted() as model:
        model.told("created", says("White Pelican"))
        model.told("created", says("Cardinal", annotation=10, task=20))
        model.comes_to({"White Pelican": 1, "Cardinal": 1})
    with restarted() as model:
        model.told("updated", says("Mallard"))
        model.comes_to({"Cardinal": 1, "Mallard": 1})
    with restarted() as model:
        model.told("deleted", lambda body: body.update(annotations=of(9)))
        model.comes_to({"Cardinal": 1})


@pytest.mark.parametrize(
    "notes",
    [None, b"", b"\xff", b"[" * 10**5, b'{"photo_of": 7, "waits": true}', b'{"waits": true}' + b" " * 2**23],
    ids=lambda notes: repr(notes)[:20],
)
def test_photos_that_no_annotation_is_known_of_are_left_to_the_user(
    restarted: Starting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, notes: bytes | None
) -> None:
    monkeypatch.setattr(label_studio, "QUIET", 0.05)
    with restarted() as model:
        model.put("Mallard")
    if notes is not None:
        (tray.place_of(tmp_path / "birds") / label_studio.NOTES).write_bytes(notes)
    with restarted() as model:
        time.sleep(0.5)
        assert model.tray() == {"Mallard": 1}
        assert model.jobs() == []
        model.told("created", says("Cardinal"))
        wait(lambda: [one["classes"] for one in model.jobs()] == [{"Cardinal": 1, "Mallard": 1}])


def test_what_was_answered_is_dealt_with_before_the_server_ends(restarted: Starting, studio: Studio) -> None:
    with restarted() as model:
        studio.gate.clear()
        model.told("created")
        model.told("created", says("Cardinal", annotation=10, task=20))
        threading.Timer(0.3, studio.gate.set).start()
    with restarted() as model:
        assert model.tray() == {"White Pelican": 1, "Cardinal": 1}


def test_a_server_that_ends_does_not_wait_to_fetch_again(
    restarted: Starting, studio: Studio, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(label_studio, "PAUSES", (1e6,))
    studio.answers[ADDRESS] = (503, {}, b"")
    with restarted() as model:
        model.told("created")
        wait(lambda: bool(studio.asked))
        begun = time.monotonic()
    assert time.monotonic() - begun < DRAIN
    assert any("task 19" in one.getMessage() for one in caplog.records)


# Learning


def test_a_new_class_is_learnt_after_a_quiet_while(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_studio, "QUIET", 0.5)
    before = model.sent("setup").json()["model_version"]
    for number in range(3):
        model.told("created", says("White Pelican", annotation=50 + number, task=50 + number))
    wait(lambda: sum(one["classes"]["White Pelican"] for one in model.jobs() if one["state"] == "done") == 3)
    assert {one["effort"] for one in model.jobs()} == {"fast"}
    assert model.tray() == {}
    assert "White Pelican" in model.classes()
    assert model.sent("setup").json()["model_version"] != before


def test_training_is_begun_when_label_studio_asks_for_it(model: Model, studio: Studio) -> None:
    """The photos of the annotations that came before are learnt, even if they have not been fetched yet."""
    studio.gate.clear()
    model.told("created")
    model.told("training")
    studio.gate.set()
    wait(lambda: [one["state"] for one in model.jobs()] == ["done"])
    assert model.jobs()[0]["effort"] == "usual"
    assert "White Pelican" in model.classes()
    model.told("training")  # there is nothing to be learnt any more
    model.told("created", says("Cardinal", annotation=10, task=20))
    model.comes_to({"Cardinal": 1})
    assert len(model.jobs()) == 1


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The efforts of the jobs that were to be begun; none can be begun until `MOST_QUEUED` is another number."""
    begin, found = Service.begin_job, list[str]()

    async def counted(self: Service, served: Served, effort: Effort) -> Job:
        found.append(effort)
        return await begin(self, served, effort)

    monkeypatch.setattr(Service, "begin_job", counted)
    monkeypatch.setattr(service, "MOST_QUEUED", 0)
    monkeypatch.setattr(label_studio, "QUIET", 0.1)
    return found


@pytest.mark.parametrize(("kinds", "effort"), [(["created"], "fast"), (["created", "training"], "usual")])
def test_what_cannot_be_learnt_because_too_much_waits_is_learnt_later(
    model: Model, tried: list[str], monkeypatch: pytest.MonkeyPatch, kinds: list[str], effort: str
) -> None:
    for kind in kinds:
        model.told(kind)
    wait(lambda: tried[-3:] == [effort] * 3)
    assert model.tray() == {"White Pelican": 1}
    assert model.jobs() == []
    monkeypatch.setattr(service, "MOST_QUEUED", 20)
    wait(lambda: [one["state"] for one in model.jobs()] == ["done"])
    assert model.jobs()[0]["effort"] == effort


def test_learning_is_not_tried_for_ever(
    model: Model, tried: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(label_studio, "TRIES", 3)
    model.told("created")
    wait(lambda: any("jobs wait already" in one.getMessage() for one in caplog.records))
    time.sleep(0.5)
    assert len(tried) == 3
    assert model.tray() == {"White Pelican": 1}


# Where photos come from


def test_an_older_key_is_sent_as_it_is(studio: Studio) -> None:
    assert Photos(studio.address, KEY).content("/data/upload/1/0d4b9d3e-Mallard_010.jpg") == photo("Mallard")
    assert studio.asked == [("/data/upload/1/0d4b9d3e-Mallard_010.jpg", f"Token {KEY}")]


def test_a_newer_key_is_exchanged_for_an_access_token_now_and_then(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking, path = Photos(studio.address, REFRESH), "/data/upload/1/0d4b9d3e-Mallard_010.jpg"
    asking.content(path)
    asking.content(path)
    exchanged, fetched = ("/api/token/refresh/", ""), (path, "Bearer an-access-token")
    assert studio.asked == [exchanged, fetched, fetched]
    monkeypatch.setattr(label_studio, "FRESH", -1.0)
    asking.content(path)
    assert studio.asked[3:] == [exchanged, fetched]


@pytest.mark.parametrize("told", [b"{}", b"[]", b"7", b"no JSON", b"\xff", b"[" * 2**15, b'{"access": "\\n"}'])
def test_an_answer_without_an_access_token_is_told(studio: Studio, told: bytes) -> None:
    studio.answers["/api/token/refresh/"] = (200, {}, told)
    with pytest.raises(ValueError, match=r"."):
        Photos(studio.address, REFRESH).content("/data/upload/1/0d4b9d3e-Mallard_010.jpg")


def test_no_key_is_sent_if_there_is_none(studio: Studio) -> None:
    studio.answers["/data/open.png"] = (200, {}, b"open")
    assert Photos(studio.address, None).content("/data/open.png") == b"open"
    assert studio.asked == [("/data/open.png", "")]


def test_addresses_may_be_whole_and_have_any_letters(studio: Studio) -> None:
    studio.answers["/data/local-files/?d=V%C3%B6gel/a%20b%25.png"] = (200, {}, b"found")
    for address in ("/data/local-files/?d=Vögel/a b%25.png", "/data/local-files/?d=V%C3%B6gel/a%20b%25.png"):
        assert Photos(studio.address, KEY).content(address) == b"found"
        assert Photos(f"{studio.address}/", KEY).content(studio.address + address) == b"found"


def test_label_studio_may_be_in_a_folder_of_a_site(studio: Studio) -> None:
    studio.answers["/studio/data/a.png"] = (200, {}, b"found")
    asking = Photos(f"{studio.address}/studio", KEY)
    assert asking.content("/studio/data/a.png") == b"found"
    with pytest.raises(ValueError, match="not a file"):
        asking.content("/studio/api/users")


@pytest.mark.parametrize(
    "address",
    [
        "{elsewhere}/data/a.png",
        "//{other}/data/a.png",
        "///{other}/data/a.png",
        "\\\\{other}\\data\\a.png",
        "http:{other}/data/a.png",
        "{here}@{other}/data/a.png",
        "http://user:word@{place}/data/a.png",
        "https://{place}/data/a.png",
        "ftp://{place}/data/a.png",
        "file:///data/a.png",
        "file://{place}/data/a.png",
        "data:image/png;base64,iVBORw0KGgo=",
        "data:/data/a.png",
        "javascript:/data/a.png",
        "s3://bucket/data/a.png",
        "http://127.0.0.1:1/data/a.png",
        "http://localhost:{port}/data/a.png",
        "http://[::1]:{port}/data/a.png",
        "http://[/data/a.png",
        "/api/users",
        "api/users",
        "/",
        "/data",
        "/database/a.png",
        "/data/../api/users",
        "/data/%2e%2e/api/users",
        "/data/%2E./api/users",
        "/data/..%2fapi/users",
        "/%2e%2e/data/a.png",
        "?/data/",
        "#/data/",
        "",
        "/data/" + "a" * 5000,
        "/data/\ud800",
        None,
        7,
        True,
        ["/data/a.png"],
        {"url": "/data/a.png"},
    ],
    ids=lambda address: str(ascii(address))[:40],
)
def test_photos_are_never_fetched_from_elsewhere(studio: Studio, elsewhere: Studio, address: Any) -> None:
    if isinstance(address, str):
        place, other = studio.address.removeprefix("http://"), elsewhere.address.removeprefix("http://")
        port = place.partition(":")[2]
        names = {"elsewhere": elsewhere.address, "other": other, "here": studio.address, "place": place, "port": port}
        for name, value in names.items():
            address = address.replace("{" + name + "}", value)
    with pytest.raises(ValueError, match=r"."):
        Photos(studio.address, KEY).content(address)
    assert studio.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("to", ["{elsewhere}/data/a.png", "/api/users", "file:///etc/passwd"])
def test_redirects_are_not_followed(studio: Studio, elsewhere: Studio, status: int, to: str) -> None:
    studio.answers["/data/a.png"] = (status, {"Location": to.replace("{elsewhere}", elsewhere.address)}, b"")
    with pytest.raises(ValueError, match=str(status)):
        Photos(studio.address, KEY).content("/data/a.png")
    assert len(studio.asked) == 1


def test_proxies_of_the_environment_are_not_asked(
    studio: Studio, elsewhere: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, elsewhere.address)
    monkeypatch.delenv("no_proxy", raising=False)
    assert Photos(studio.address, KEY).content("/data/upload/1/0d4b9d3e-Mallard_010.jpg") == photo("Mallard")


def test_what_setup_says_of_label_studio_is_ignored(model: Model, studio: Studio, elsewhere: Studio) -> None:
    """Whoever can reach the server could say it, and would have the photos or the key."""

    def elsewhere_instead(body: dict[str, Any]) -> None:
        body |= {"hostname": elsewhere.address, "access_token": "another-key", "project": "9.9"}
        body["extra_params"] = {"hostname": elsewhere.address}

    assert model.sent("setup", elsewhere_instead).status_code == 200
    model.results(params={"login": "me", "password": "word", "hostname": elsewhere.address})
    assert len(studio.asked) == 3
    assert {proof for _, proof in studio.asked} == {f"Token {KEY}"}


def test_a_photo_that_is_too_large_is_given_up(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MOST_BYTES", 1000)
    studio.answers["/data/a.png"] = (200, {}, bytes(1000))
    studio.answers["/data/b.png"] = (200, {}, bytes(1001))
    assert len(Photos(studio.address, KEY).content("/data/a.png")) == 1000
    with pytest.raises(ValueError, match="too large"):
        Photos(studio.address, KEY).content("/data/b.png")


@pytest.mark.parametrize("pause", [0.02, 5.0])
def test_a_photo_that_comes_too_slowly_is_given_up(
    studio: Studio, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr(label_studio, "SECONDS", 0.3)
    studio.answers["/data/a.png"] = (200, {}, bytes(300))
    studio.pause = pause
    begun = time.monotonic()
    with pytest.raises(ValueError, match=r"."):
        Photos(studio.address, KEY).content("/data/a.png")
    assert time.monotonic() - begun < 3


def test_what_is_no_http_is_told(studio: Studio) -> None:
    studio.answers["/data/a.png"] = (0, {}, b"no HTTP\r\n\r\n")
    with pytest.raises(ValueError, match="cannot be asked"):
        Photos(studio.address, KEY).content("/data/a.png")
    with pytest.raises(ValueError, match="cannot be asked"):
        Photos("http://127.0.0.1:1", KEY).content("/data/a.png")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:8080",
        "ftp://127.0.0.1",
        "file:///data",
        "http://",
        "http://me:word@h",
        "http://me@h",
        "http://h?a",
    ],
)
def test_an_address_that_is_none_of_a_label_studio_is_refused(address: str) -> None:
    with pytest.raises(TreeringError, match="no address of a Label Studio"):
        Photos(address, None)


# Strangers


ODD = (None, 7, "a", {}, [[]], {"id": []})


def altered(value: Any, depth: int = 4) -> Iterator[Any]:
    """Yield an object or a list with each of its parts, and theirs, replaced by each odd value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        for other in (*ODD, *(altered(part, depth - 1) if depth else ())):
            changed = copy.copy(value)
            changed[key] = other
            yield changed


@pytest.mark.parametrize("kind", sorted(set(RECORDED) - {"health", "training", "project updated", "tasks created"}))
def test_odd_requests_are_refused_or_left_out(
    model: Model, studio: Studio, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    read = ("tasks", "task", "annotation", "annotations", "result", "project", "action", "id", "data", "image", "value")
    read += ("choices", "from_name", "type", "label_config", "schema", "was_cancelled")

    def trimmed(value: Any) -> Any:
        if isinstance(value, list):
            return [trimmed(one) for one in value[:1]]
        return {key: trimmed(part) for key, part in value.items() if key in read} if isinstance(value, dict) else value

    body = trimmed(RECORDED[kind]["body"])
    address = f"/label-studio/{model.name}{RECORDED[kind]['path']}"
    for changed in (*altered(body), *ODD):
        answer = model.client.post(address, json=changed)
        assert answer.status_code < 500, (changed, answer.text)
        if answer.status_code >= 400:
            require_reason(answer.status_code, answer.headers, answer.content)
    model.told("created", says("Cardinal", annotation=10, task=20))
    wait(lambda: "Cardinal" in model.tray())
    gc.collect()
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'"a"', b"[" * 10**5, b'{"tasks": [' * 10**4, b'{"action": ' + b"9" * 5000 + b"}"],
    ids=lambda content: repr(content[:12]),
)
@pytest.mark.parametrize("place", ["setup", "predict", "webhook", "train"])
def test_what_is_no_object_is_refused(model: Model, place: str, content: bytes) -> None:
    answer = model.client.post(f"/label-studio/{model.name}/{place}", content=content, headers=JSON)
    require_reason(answer.status_code, answer.headers, answer.content)


def test_only_models_that_are_there_are_found(client: TestClient, studio: Studio) -> None:
    for name in ("nothing", "Birds", "birds%2f..", "..%2fbirds", "%00"):
        assert client.get(f"/label-studio/{name}/health").status_code == 404
