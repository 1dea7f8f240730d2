"""The server: models are asked, taught and changed over HTTP, jobs go on after any end, and nothing is lost."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import images_of
from learn_helper import FIRST, NEW, SIDE, TUNED, make_folder
from PIL import Image
from starlette.testclient import TestClient

import treering
from treering.photos import learn as photos
from treering.server import app, jobs, tray
from treering.server.guard import LOOPBACK, Door
from treering.server.service import Settings
from treering.storage import lock

ADDRESS = "http://127.0.0.1:8470"
SECONDS = 60.0


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of cats and dogs."""
    place = tmp_path_factory.mktemp("learnt")
    changes = (*NEW["changes"], *TUNED)
    photos.learn(place / "pets", make_folder(place / "first", FIRST), **{**NEW, "changes": changes}, device="cpu")
    return place / "pets"


@pytest.fixture
def model(learnt: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learnt, tmp_path / "pets"))


def served(path: Path) -> TestClient:
    """A client of a server of its own, which begins with the `with` statement."""
    guard, _ = app.make(Settings(path, Door(frozenset(LOOPBACK), True, None), "cpu"))
    return TestClient(guard, base_url=ADDRESS)


@pytest.fixture
def client(model: Path) -> Iterator[TestClient]:
    with served(model) as found:
        yield found


def photo(name: str, seed: int = 7, kind: str = "PNG") -> bytes:
    """The file of a photo of a class."""
    stream = io.BytesIO()
    Image.fromarray(images_of([name], seed=seed, side=SIDE)[0]).save(stream, kind)
    return stream.getvalue()


def put(client: TestClient, name: str, count: int, model: str = "pets") -> dict[str, Any]:
    """Put photos of a class into the tray."""
    files = [("photo", (f"{number}.png", photo(name, 50 + number))) for number in range(count)]
    answer = client.post(f"/api/models/{model}/tray", params={"class": name}, files=files)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def begin(client: TestClient, effort: str = "fast", model: str = "pets") -> dict[str, Any]:
    answer = client.post(f"/api/models/{model}/jobs", json={"effort": effort})
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ended(client: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    """The job once it has ended."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found: dict[str, Any] = client.get(f"/api/jobs/{job['id']}").json()
        if found["ended"] and found["state"] in ("done", "failed", "cancelled"):
            return found
        time.sleep(0.05)
    raise AssertionError(f"the job has not ended: {found}")


def answer(client: TestClient, name: str, **params: Any) -> dict[str, Any]:
    """What the model says of a photo of a class."""
    found = client.post("/api/models/pets/predict", content=photo(name), params=params)
    assert found.status_code == 200, found.text
    prediction: dict[str, Any] = found.json()["predictions"][0]
    return prediction


def refused(answer: Any, status: int, *fragments: str) -> None:
    """The answer is this status and one line that says why."""
    assert answer.status_code == status, answer.text
    said = answer.json()["error"]
    assert list(answer.json()) == ["error"]
    assert said
    assert "\n" not in said
    for fragment in fragments:
        assert fragment in said, (fragment, said)


# Asking


def test_a_model_is_told_with_its_classes_steps_and_exemplars(client: TestClient, model: Path) -> None:
    found = client.get("/api/models/pets").json()
    assert [one["name"] for one in found["classes"]] == ["cat", "dog"]
    assert {one["name"]: one["photos"] for one in found["classes"]} == FIRST
    assert [step["new_classes"] for step in found["steps"]] == [["cat", "dog"]]
    score = found["steps"][0]["all"]
    assert score["low"] <= score["percent"] <= score["high"]
    assert score["images"] == sum(count["images"] for one in found["classes"] for count in one["course"])
    kept = treering.load(model).exemplars_["cat"]
    first = client.get(found["classes"][0]["exemplars"][0])
    assert first.headers["content-type"] == "image/png"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(first.content))), kept[0])


def test_an_answer_is_the_learners(client: TestClient, model: Path) -> None:
    learner = treering.load(model)
    image = np.asarray(Image.open(io.BytesIO(photo("dog"))))[None]
    expected = dict(zip(learner.classes_.tolist(), learner.predict_proba(image)[0].tolist(), strict=True))
    said = {one["name"]: one["probability"] for one in answer(client, "dog")["classes"]}
    assert said == pytest.approx(expected)
    assert answer(client, "dog", unknown=0.0)["unknown"] is None
    assert answer(client, "dog", unknown=1.0)["unknown"] is True


def test_many_photos_are_answered_in_their_order_and_a_bad_one_beside_them(client: TestClient) -> None:
    files = [("a", ("one", photo("cat"))), ("b", ("two", b"no photo")), ("c", ("three", photo("dog", kind="JPEG")))]
    found = client.post("/api/models/pets/predict", files=files, params={"top": 1}).json()["predictions"]
    assert [one["name"] for one in found] == ["one", "two", "three"]
    assert [one["classes"][0]["name"] if one["classes"] else None for one in found] == ["cat", None, "dog"]
    assert "not a JPEG" in found[1]["error"]


def test_the_nearest_exemplars_are_those_of_the_smallest_angle(client: TestClient, model: Path) -> None:
    near = answer(client, "cat", nearest=4)["nearest"]
    likeness = [one["likeness"] for one in near]
    assert len(near) == 4
    assert likeness == sorted(likeness, reverse=True)
    exemplar = client.get(near[0]["exemplar"]).content
    same = client.post("/api/models/pets/predict", content=exemplar, params={"nearest": 1}).json()["predictions"][0]
    assert same["nearest"][0]["exemplar"] == near[0]["exemplar"]
    assert same["nearest"][0]["likeness"] == pytest.approx(1.0, abs=1e-5)


def test_photos_that_come_together_pass_through_the_network_together(client: TestClient) -> None:
    def count(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"treering_{name}_total"))

    answer(client, "cat")
    before = count("batches"), count("photos")
    files = [("photo", (str(number), photo("cat", number))) for number in range(64)]
    client.post("/api/models/pets/predict", files=files)
    assert count("photos") - before[1] == 64
    assert count("batches") - before[0] == 2


def test_what_cannot_be_answered_is_refused_in_one_line(client: TestClient) -> None:
    refused(client.post("/api/models/pets/predict", content=b"no photo"), 422, "not a JPEG")
    refused(client.post("/api/models/pets/predict"), 422, "empty")
    refused(client.post("/api/models/pets/predict", json={"url": "http://example.org/a.jpg"}), 415)
    refused(client.post("/api/models/pets/predict", content=photo("cat"), params={"top": 0}), 422, "top")
    refused(client.post("/api/models/pest/predict", content=photo("cat")), 404, "pest")
    refused(client.get("/api/models/pets/exemplars/0.png"), 404)
    refused(client.get("/api/jobs/0"), 404)
    refused(client.get("/nothing"), 404)
    refused(client.put("/api/models"), 405)


# Teaching


def test_a_new_class_is_put_into_the_tray_learnt_and_answered(client: TestClient, model: Path) -> None:
    before = client.get("/api/models/pets").json()["version"]
    added = put(client, "owl", 6)
    waits = client.get("/api/models/pets/tray").json()
    assert [(one["name"], one["known"], len(one["photos"])) for one in waits["classes"]] == [("owl", False, 6)]
    waiting = client.get(added["added"][0]["url"])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(waiting.content))), images_of(["owl"], 50, side=SIDE)[0])
    job = begin(client, "usual")
    with client.stream("GET", f"/api/jobs/{job['id']}/events") as stream:
        seen = [json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:")]
    last = seen[-1]
    assert last["state"] == "done"
    assert last["result"]["new"]["images"] > 0
    assert any(one["solved"] and one["state"] == "running" for one in seen)
    assert {one["epochs"] for one in seen} - {None}
    found = client.get("/api/models/pets").json()
    assert [one["name"] for one in found["classes"]] == ["cat", "dog", "owl"]
    assert found["version"] != before
    assert found["tray"]["photos"] == 0
    assert answer(client, "owl")["classes"][0]["name"] == "owl"
    assert treering.load(model).predict(images_of(["owl"], 7, side=SIDE)).tolist() == ["owl"]


def test_what_the_tray_holds_can_be_taken_out_and_outlives_the_server(model: Path) -> None:
    with served(model) as client:
        numbers = [one["id"] for one in put(client, "owl", 3)["added"]]
        put(client, "eel", 2)
        assert client.delete(f"/api/models/pets/tray/{numbers[1]}").json()["photos"] == 4
        refused(client.delete(f"/api/models/pets/tray/{numbers[1]}"), 404)
        refused(client.get(f"/api/models/pets/tray/{numbers[1]}.png"), 404)
    with served(model) as client:
        left = client.get("/api/models/pets/tray").json()
        assert {one["name"]: len(one["photos"]) for one in left["classes"]} == {"owl": 2, "eel": 2}
        assert client.delete("/api/models/pets/tray", params={"class": "eel"}).json()["photos"] == 2
        assert client.delete("/api/models/pets/tray").json()["photos"] == 0
        refused(client.post("/api/models/pets/jobs"), 409, "empty")
    assert not list((tray.place_of(model) / "tray").glob("*.png"))


def test_the_tray_has_room_for_a_bounded_number_of_photos(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tray, "MOST_PHOTOS", 3)
    assert put(client, "owl", 2)["room"] == 1
    files = [("photo", (str(number), photo("owl", number))) for number in range(2)]
    refused(client.post("/api/models/pets/tray", params={"class": "owl"}, files=files), 413, "1 more")
    assert client.get("/api/models/pets/tray").json()["photos"] == 2


def spoilt(model: Path) -> bytes:
    """Damage the weights of a model; return what they were."""
    weights = next(model.glob("weights-*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-9])
    return content


def test_photos_of_a_job_that_fails_go_back_into_the_tray(client: TestClient, model: Path) -> None:
    put(client, "owl", 3)
    weights = next(model.glob("weights-*.safetensors"))
    content = spoilt(model)
    found = ended(client, begin(client))
    assert found["state"] == "failed"
    assert "is damaged" in found["error"]
    assert client.get("/api/models/pets/tray").json()["photos"] == 3
    weights.write_bytes(content)
    assert ended(client, begin(client))["state"] == "done"


def test_a_job_waits_for_another_program_that_writes_to_the_model(client: TestClient, model: Path) -> None:
    put(client, "owl", 3)
    with lock.writing(model):
        job = begin(client)
        time.sleep(4.0)
        assert client.get(f"/api/jobs/{job['id']}").json()["state"] == "running"
    assert ended(client, job)["state"] == "done"
    put(client, "eel", 3)
    with lock.writing(model):
        found = client.delete(f"/api/jobs/{begin(client)['id']}").json()
    assert found["state"] == "cancelled"
    assert client.get("/api/models/pets/tray").json()["photos"] == 3


def test_photos_that_are_in_two_classes_or_twice_in_one_are_told_of(client: TestClient) -> None:
    put(client, "owl", 4)
    for name in ("eel", "eel", "owl"):
        client.post("/api/models/pets/tray", params={"class": name}, content=photo("owl", 50))
    put(client, "Cat", 2)
    said = " ".join(ended(client, begin(client))["warnings"])
    assert "two classes, eel and owl" in said
    assert "are left out" in said
    assert "Cat and cat are two classes with nearly the same name" in said


def test_jobs_wait_for_each_other_and_can_be_cancelled(client: TestClient, model: Path) -> None:
    put(client, "owl", 6)
    first = begin(client, "thorough")
    put(client, "eel", 2)
    second = begin(client)
    assert client.get(f"/api/jobs/{second['id']}").json()["ahead"] == 1
    refused(client.post("/api/models/pets/undo"), 409, "is being taught")
    refused(client.post("/api/models/pets/forget", json={"classes": ["cat"]}), 409)
    gone = client.delete(f"/api/jobs/{second['id']}").json()
    assert gone["state"] == "cancelled"
    assert client.get("/api/models/pets/tray").json()["photos"] == 2
    while client.get(f"/api/jobs/{first['id']}").json()["stage"] in ("waiting", "starting"):
        time.sleep(0.02)
    found = client.delete(f"/api/jobs/{first['id']}").json()
    assert found["state"] in ("cancelled", "done")
    learnt = found["state"] == "done" or found["solved"] is not None
    left = {one["name"]: len(one["photos"]) for one in client.get("/api/models/pets/tray").json()["classes"]}
    assert left == ({"eel": 2} if learnt else {"eel": 2, "owl": 6})
    assert ("owl" in treering.load(model).classes_) == learnt


def test_only_so_many_jobs_wait(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treering.server.service.MOST_QUEUED", 1)
    put(client, "owl", 4)
    first = begin(client)
    put(client, "eel", 2)
    refused(client.post("/api/models/pets/jobs"), 429)
    assert ended(client, first)["state"] == "done"
    assert ended(client, begin(client))["state"] == "done"


def test_a_job_that_the_server_left_is_learnt_when_it_starts_again(model: Path) -> None:
    with served(model) as client, lock.writing(model):
        put(client, "owl", 4)
        job = begin(client)
        record = tray.place_of(model) / f"job-{job['id']}" / jobs.RECORD
        copy = shutil.copytree(record.parent, model.parent / "copy")  # as a killed server leaves it
    shutil.rmtree(tray.place_of(model))
    tray.place_of(model).mkdir(tray.PRIVATE)
    shutil.copytree(copy, record.parent)
    with served(model) as client:
        assert ended(client, job)["state"] == "done"
        assert "owl" in [one["name"] for one in client.get("/api/models/pets").json()["classes"]]


def test_a_process_that_dies_is_started_again_and_a_job_that_kills_it_fails(client: TestClient, model: Path) -> None:
    service = client.app.application.state.service  # type: ignore[attr-defined]
    put(client, "owl", 6)
    job = begin(client, "thorough")
    while client.get(f"/api/jobs/{job['id']}").json()["stage"] in ("waiting", "starting"):
        time.sleep(0.02)
    first = service.jobs._process
    first.kill()
    assert ended(client, job)["state"] == "done"
    assert service.jobs._process is not first
    assert "owl" in treering.load(model).classes_


def test_a_server_that_is_told_to_end_answers_what_it_was_asked_first(model: Path) -> None:
    command = [sys.executable, "-m", "treering", "serve", str(model), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=SECONDS)
        content = photo("cat")
        connection.putrequest("POST", "/api/models/pets/predict")
        connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content[:-5])
        time.sleep(0.5)  # the request is being read
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        connection.send(content[-5:])
        answer = connection.getresponse()
        assert answer.status == 200
        assert json.loads(answer.read())["predictions"][0]["classes"][0]["name"] == "cat"
        connection.close()
        assert process.wait(SECONDS) in (0, -signal.SIGTERM)


def test_a_job_that_is_cancelled_at_once_is_never_learnt(client: TestClient, model: Path) -> None:
    for seed in range(3):  # while the process starts, when it has just begun, and when it waits for another
        put(client, "owl", 4)
        job = begin(client, "thorough")
        time.sleep(0.1 * seed)
        found = client.delete(f"/api/jobs/{job['id']}").json()
        assert found["state"] == "cancelled"
        if found["solved"] is None:
            assert client.get("/api/models/pets/tray").json()["photos"] == 4
            assert "owl" not in treering.load(model).classes_
            client.delete("/api/models/pets/tray")
        else:
            client.post("/api/models/pets/undo")
    assert 'treering_jobs_total{state="cancelled"} 3.0' in client.get("/metrics").text


def test_a_cancelled_job_does_not_begin_while_the_tray_is_busy(client: TestClient, model: Path) -> None:
    service = client.app.application.state.service  # type: ignore[attr-defined]
    served = service.models.find("pets")
    put(client, "owl", 6)
    first = begin(client, "thorough")
    put(client, "eel", 2)
    second = begin(client)

    async def busily() -> None:
        async with served.changing:
            cancelling = asyncio.create_task(service.jobs.cancel(service.jobs.entries[second["id"]]))
            await service.jobs._ends(service.jobs.entries[first["id"]], 0.5)
        await cancelling

    assert client.portal
    client.portal.call(busily)
    assert ended(client, second)["state"] == "cancelled"
    assert ended(client, first)["state"] == "done"
    assert treering.load(model).classes_.tolist() == ["cat", "dog", "owl"]
    assert client.get("/api/models/pets/tray").json()["photos"] == 2


def test_jobs_go_on_when_the_end_of_one_fails(client: TestClient, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    put(client, "owl", 3)
    weights = next(model.glob("weights-*.safetensors"))
    content = spoilt(model)
    with monkeypatch.context() as patch:
        patch.setattr(tray.Tray, "put_back", full)
        assert ended(client, begin(client))["state"] == "failed"
    weights.write_bytes(content)
    put(client, "eel", 3)
    assert ended(client, begin(client))["state"] == "done"
    until = time.monotonic() + SECONDS
    while client.get("/ready").status_code != 200:  # the new version is loaded soon
        assert time.monotonic() < until
        time.sleep(0.1)


def test_only_one_server_at_a_time_has_the_photos_of_a_model(model: Path) -> None:
    with served(model) as client:
        put(client, "owl", 1)
        result = subprocess.run(
            [sys.executable, "-m", "treering", "serve", str(model), "--port", "0"], capture_output=True, text=True
        )
        assert result.returncode == 2
        assert "serves pets already" in result.stderr
        assert result.stderr.count("\n") == 1


# Changing


def test_photos_that_wait_follow_their_class(client: TestClient) -> None:
    def waiting() -> dict[str, int]:
        classes = client.get("/api/models/pets/tray").json()["classes"]
        return {one["name"]: len(one["photos"]) for one in classes}

    put(client, "owl", 4)
    put(client, "eel", 4)
    ended(client, begin(client))
    for name in ("owl", "owl", "eel", "dog", "ant"):
        put(client, name, 1)
    client.post("/api/models/pets/rename", json={"old": "owl", "new": "bird"})
    assert waiting() == {"bird": 2, "eel": 1, "dog": 1, "ant": 1}
    client.post("/api/models/pets/merge", json={"kept": "cat", "gone": "dog"})
    assert waiting() == {"bird": 2, "eel": 1, "cat": 1, "ant": 1}
    client.post("/api/models/pets/forget", json={"classes": ["eel"]})
    assert waiting() == {"bird": 2, "cat": 1, "ant": 1}


def test_classes_are_renamed_merged_forgotten_and_steps_undone(client: TestClient, model: Path) -> None:
    put(client, "owl", 4)
    ended(client, begin(client))
    put(client, "eel", 4)
    ended(client, begin(client))

    def names(answer: Any) -> list[str]:
        assert answer.status_code == 200, answer.text
        found = [one["name"] for one in answer.json()["classes"]]
        assert sorted(treering.load(model).classes_.tolist()) == sorted(found)
        return found

    assert names(client.post("/api/models/pets/rename", json={"old": "eel", "new": "conger"}))[-1] == "conger"
    assert names(client.post("/api/models/pets/merge", json={"kept": "cat", "gone": "conger"})) == ["cat", "dog", "owl"]
    assert names(client.post("/api/models/pets/undo")) == ["cat", "dog", "owl"]
    assert names(client.post("/api/models/pets/forget", json={"classes": ["owl"]})) == ["cat", "dog"]
    assert [one["name"] for one in answer(client, "cat")["classes"]] == ["cat", "dog"]
    refused(client.post("/api/models/pets/forget", json={"classes": ["owl"]}), 404, "owl")
    refused(client.post("/api/models/pets/forget", json={"classes": ["cat"]}), 409, "two classes")
    refused(client.post("/api/models/pets/rename", json={"old": "cat", "new": "../cat"}), 422)
    refused(client.post("/api/models/pets/rename", json={"old": "cat", "new": "dog"}), 409, "already")


def test_a_version_that_another_program_makes_answers_soon(client: TestClient, model: Path, tmp_path: Path) -> None:
    answer(client, "cat")
    photos.learn(model, make_folder(tmp_path / "more", {"owl": 6}), effort="fast", device="cpu")
    until = time.monotonic() + SECONDS
    while answer(client, "owl")["classes"][0]["name"] != "owl":
        assert time.monotonic() < until
        time.sleep(0.05)


def test_predictions_go_on_while_versions_change(client: TestClient) -> None:
    answer(client, "cat")
    stop = threading.Event()

    def ask() -> list[int]:
        found = []
        while not stop.is_set():
            found.append(client.post("/api/models/pets/predict", content=photo("cat")).status_code)
        return found

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask) for _ in range(2)]
        put(client, "owl", 4)
        ended(client, begin(client))
        client.post("/api/models/pets/undo")
        stop.set()
        statuses = [status for one in asked for status in one.result()]
    assert len(statuses) > 10
    assert set(statuses) == {200}


# Models


def test_a_folder_of_models_is_served_and_takes_new_ones(model: Path) -> None:
    shutil.copytree(model, model.parent / "other")
    with served(model.parent) as client:
        found = client.get("/api/models").json()
        assert found["can_add"]
        assert [one["name"] for one in found["models"]] == ["other", "pets"]
        assert client.post("/api/models", json={"name": "new one"}).status_code == 201
        refused(client.post("/api/models", json={"name": "Pets"}), 409, "already")
        for bad in ("../x", ".x", "a/b", "", "x" * 65, "con\x00", " x", "\u202ex"):
            assert client.post("/api/models", json={"name": bad}).status_code in (409, 422), bad
        refused(client.post("/api/models/new%20one/predict", content=photo("cat")), 409, "learnt nothing")
        assert client.get("/api/models/new%20one").json()["version"] is None
        client.post("/api/models/new%20one/tray", params={"class": "cat"}, content=photo("cat"))
        refused(client.post("/api/models/new%20one/jobs"), 409, "only class")
        client.post("/api/models/new%20one/tray", params={"class": "dog"}, content=photo("dog"))
    (model.parent / "new one").mkdir()
    (model.parent / "new one" / ".lock").touch()  # a job that was killed leaves it so
    with served(model.parent) as client:  # its photos wait for it still
        assert [one["name"] for one in client.get("/api/models").json()["models"]] == ["new one", "other", "pets"]
    with served(model) as client:
        assert not client.get("/api/models").json()["can_add"]
        refused(client.post("/api/models", json={"name": "more"}), 409)


def test_an_empty_folder_of_models_takes_the_first_one(tmp_path: Path) -> None:
    guard, _ = app.make(Settings(tmp_path, Door(frozenset(LOOPBACK), True, None), "cpu", many=True))
    with TestClient(guard, base_url=ADDRESS) as client:
        assert client.get("/api/models").json() == {"models": [], "can_add": True}
        assert client.post("/api/models", json={"name": "pets"}).status_code == 201
        assert client.post("/api/models/pets/tray", params={"class": " cat "}, content=photo("cat")).status_code == 200
        assert [one["name"] for one in client.get("/api/models/pets/tray").json()["classes"]] == ["cat"]


def test_a_damaged_model_is_told_of_and_the_server_lives(model: Path) -> None:
    weights = next(model.glob("weights-*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])
    with served(model) as client:
        refused(client.post("/api/models/pets/predict", content=photo("cat")), 409)
        assert client.get("/health").json() == {"status": "UP"}
        assert client.get("/ready").status_code == 503


def test_the_page_and_its_parts_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in ("style.css", "app.js", "icon.svg"):
        assert f"/page/{name}" in page.text
        assert client.get(f"/page/{name}").status_code == 200
    assert client.get("/page/app.js").headers["content-type"].startswith("text/javascript")
    refused(client.get("/page/..%2f__init__.py"), 404)
    assert client.get("/api").status_code == 200
    assert client.get("/openapi.json").json()["info"]["title"] == "treering"
