"""Label Studio's protocol for machine-learning backends: it asks what tasks show, and tells of annotations.

A model's address there is `/label-studio/<model>`. Photos are fetched from the one Label Studio that the server was
started with, whatever a request says. An annotation puts its photo into the tray; once no other has come for a while,
or when Label Studio asks for training, the tray is learnt.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPMessage
from typing import IO, Annotated, Any
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

import numpy as np
from fastapi import Body, FastAPI
from starlette.exceptions import HTTPException

from treering import words
from treering.errors import TreeringError
from treering.server import schemas, uploads
from treering.server.routes import Asked
from treering.server.served import Served
from treering.server.service import Service
from treering.server.uploads import Upload

logger = words.logger(__name__)

QUIET = 10.0
"""The seconds without another annotation after which the tray is learnt."""
SECONDS = 10.0
"""The seconds that fetching one photo may take."""
AT_ONCE = 4
MOST_TASKS = 200
MOST_WAITING = 500
"""The most annotations whose photos are still to be fetched."""
LONGEST_CONFIG = 2**16
FRESH = 240.0
"""The seconds for which an access token is used; Label Studio's are good for five minutes."""
PLACES = ("/data/", "/storage-data/", "/tasks/", "/projects/")
"""Where Label Studio has the photos of tasks."""
LEARNS = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
UNTAUGHT = "untaught"
Payload = Annotated[dict[str, Any], Body()]


@dataclass(frozen=True)
class Config:
    """The part of a project's labelling configuration that classifies photos."""

    from_name: str
    to_name: str
    field: str
    """The name of the field of a task that holds the photo's address."""
    choices: frozenset[str]

    @classmethod
    def of(cls, text: Any) -> Config:
        """Read a configuration; raise HTTPException if it does not classify photos."""
        try:
            if not isinstance(text, str) or len(text) > LONGEST_CONFIG or "<!" in text.replace("<!--", ""):
                raise ValueError
            root = ElementTree.fromstring(text)
            choices = next(root.iter("Choices"))
            image = next(one for one in root.iter("Image") if one.get("name") == choices.get("toName"))
            values = frozenset(one.get("value", "") for one in choices.iter("Choice"))
            return cls(choices.attrib["name"], image.attrib["name"], image.attrib["value"].lstrip("$"), values)
        except (ValueError, KeyError, StopIteration, ElementTree.ParseError):
            what = "the labelling configuration needs an <Image> and <Choices> for it"
            raise HTTPException(422, f"{what}: take Label Studio's template for image classification") from None


class Photos:
    """Fetches photos from one Label Studio, and from nowhere else."""

    def __init__(self, address: str, key: str | None) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise TreeringError(f"{address} is no address of a Label Studio: give one such as http://127.0.0.1:8080")
        self.base, self.key = address.rstrip("/"), key
        self._access: tuple[float, str] | None = None
        self._opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))

    def content(self, address: Any) -> bytes:
        """Return the file at an address of a task; raise OSError or ValueError if it is not this Label Studio's."""
        if not isinstance(address, str) or len(address) > 4096 or any(ord(letter) < 33 for letter in address):
            raise ValueError("it has no address")
        full = urljoin(f"{self.base}/", address)
        mine, its = urlsplit(self.base), urlsplit(full)
        path = its.path.removeprefix(mine.path)
        if (its.scheme, its.netloc) != (mine.scheme, mine.netloc) or not path.startswith(PLACES) or ".." in path:
            raise ValueError("it is not a file of the Label Studio that this server was started with")
        headers = {"Authorization": self._authorization()} if self.key else {}
        return self._asked(urllib.request.Request(full, headers=headers), uploads.MOST_BYTES)

    def _authorization(self) -> str:
        """Return what proves who asks: Label Studio's older keys are sent as they are, its newer ones exchanged."""
        assert self.key
        if self.key.count(".") != 2:
            return f"Token {self.key}"
        if self._access is None or time.monotonic() - self._access[0] > FRESH:
            body = json.dumps({"refresh": self.key}).encode()
            headers = {"Content-Type": "application/json"}
            asked = urllib.request.Request(f"{self.base}/api/token/refresh", body, headers)
            self._access = time.monotonic(), str(json.loads(self._asked(asked, 2**16))["access"])
        return f"Bearer {self._access[1]}"

    def _asked(self, request: urllib.request.Request, most: int) -> bytes:
        begun, content = time.monotonic(), b""
        with self._opener.open(request, timeout=SECONDS) as answer:
            while piece := answer.read1(2**16):
                content += piece
                if len(content) > most or time.monotonic() - begun > SECONDS:
                    raise ValueError("it is too large, or comes too slowly")
        return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None


class Backend:
    """What the server does for Label Studio."""

    def __init__(self, service: Service, photos: Photos) -> None:
        self.service, self.photos = service, photos
        self.waiting: dict[Served, float] = {}
        """When the last annotation for a model came."""
        self.fetching = 0
        self.photo_of: dict[tuple[str, Any], str] = {}
        """The photo in the tray of each annotation."""
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def pixels(self, address: Any, size: int) -> np.ndarray | str:
        """Fetch and decode the photo of a task; return why, if it cannot be."""
        async with self._at_once:
            try:
                content = await asyncio.to_thread(self.photos.content, address)
            except (OSError, ValueError, KeyError) as error:
                reason = str(error.strerror or error) if isinstance(error, OSError) else str(error)
                logger.warning("a photo of Label Studio cannot be fetched: %s", reason)
                return reason or "it cannot be fetched"
            return await self.service.decoder.decoded(content, size)

    async def predict(self, served: Served, asked: dict[str, Any]) -> dict[str, Any]:
        """Say what tasks show, in the terms of their project."""
        tasks = asked.get("tasks")
        if not isinstance(tasks, list) or len(tasks) > MOST_TASKS:
            raise HTTPException(422, f"tasks must be a list of at most {MOST_TASKS}")
        config = Config.of(asked.get("label_config"))
        if served.version is None:
            return {"results": [{"result": [], "score": 0.0} for _ in tasks], "model_version": UNTAUGHT}
        loaded = await self.service.loaded(served)
        photos = await asyncio.gather(
            *(self.pixels(_address(task, config.field), loaded.teller.size) for task in tasks)
        )
        found = await self.service.predictions(
            served, [Upload(None, photo) for photo in photos], len(loaded.teller.names)
        )
        results = [_result(one, config) | {"model_version": found.version} for one in found.predictions]
        return {"results": results, "model_version": found.version}

    def heard(self, served: Served, told: dict[str, Any]) -> None:
        """Take note of an event of a project; what it asks for is done later, since Label Studio does not wait."""
        action = told.get("action")
        if action in LEARNS:
            if self.fetching >= MOST_WAITING:
                raise HTTPException(429, "too many annotations wait: send this one again in a moment")
            self.fetching += 1
            self.service.later(self._annotated(served, told))
        elif action == "ANNOTATIONS_DELETED":
            gone = [one.get("id") for one in told.get("annotations") or [] if isinstance(one, dict)]
            self.service.later(self._deleted(served, gone))
        elif action == "START_TRAINING":
            self.train(served)

    def train(self, served: Served) -> None:
        """Learn the tray now."""
        self.waiting.pop(served, None)
        self.service.later(self._learn(served, "usual"))

    async def _annotated(self, served: Served, told: dict[str, Any]) -> None:
        try:
            annotation, task = told.get("annotation"), told.get("task")
            config = (told.get("project") or {}).get("label_config")
            chosen = _chosen(annotation, Config.of(config) if config else None)
            if chosen is None or not isinstance(annotation, dict):
                return
            field, name = chosen
            size = await asyncio.to_thread(served.size)
            photo = await self.pixels(_address(task, field), size)
            await self._deleted(served, [annotation.get("id")])
            added = await self.service.put_into_tray(served, uploads.require_name(name), [Upload(None, photo)])
            self.photo_of[served.name, annotation.get("id")] = added.added[0].id
            self.waiting[served] = came = time.monotonic()
            self.service.later(self._learn_after(served, came))
        except HTTPException as error:
            logger.warning("an annotation is left out: %s", error.detail)
        finally:
            self.fetching -= 1

    async def _deleted(self, served: Served, annotations: Iterable[Any]) -> None:
        """Take the photos of annotations out of the tray, if they are still there."""
        keys = [(served.name, one) for one in annotations if isinstance(one, int | str)]
        gone = [self.photo_of.pop(key) for key in keys if key in self.photo_of]
        async with served.changing:
            await asyncio.to_thread(served.tray.remove, [one for one in gone if one in served.tray.photos])

    async def _learn_after(self, served: Served, came: float) -> None:
        await asyncio.sleep(QUIET)
        if self.waiting.get(served) == came:
            del self.waiting[served]
            await self._learn(served, "fast")

    async def _learn(self, served: Served, effort: schemas.Effort) -> None:
        try:
            await self.service.begin_job(served, effort)
        except HTTPException as error:
            logger.warning("%s is not taught yet: %s", served.name, error.detail)


def _address(task: Any, field: str) -> Any:
    data = task.get("data") if isinstance(task, dict) else None
    return data.get(field) if isinstance(data, dict) else None


def _chosen(annotation: Any, config: Config | None) -> tuple[str, str] | None:
    """Return the field of the task that holds the photo, and the class that was chosen for it."""
    results = annotation.get("result") if isinstance(annotation, dict) else None
    for one in results if isinstance(results, list) else ():
        if not isinstance(one, dict) or one.get("type") != "choices":
            continue
        if config and one.get("from_name") != config.from_name:
            continue
        value = one.get("value")
        choices = value.get("choices") if isinstance(value, dict) else None
        if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], str):
            return config.field if config else str(one.get("to_name")), choices[0]
    return None


def _result(found: schemas.Prediction, config: Config) -> dict[str, Any]:
    """Return a prediction as Label Studio shows it: nothing if the photo is unknown or of no class of the project."""
    best = next((one for one in found.classes if one.name in config.choices), None)
    if best is None or found.unknown:
        return {"result": [], "score": 0.0}
    names = {"from_name": config.from_name, "to_name": config.to_name, "type": "choices"}
    return {"result": [names | {"value": {"choices": [best.name]}}], "score": round(best.probability, 6)}


def add_to(application: FastAPI, service: Service, address: str, key: str | None) -> None:
    """Add the protocol to the server."""
    backend = Backend(service, Photos(address, key))
    tags: list[Any] = ["Label Studio"]

    def version(served: Served) -> str:
        facts = served.facts()
        return facts.version if facts else UNTAUGHT

    @application.get("/label-studio/{model}/health", tags=tags)
    async def health(served: Asked) -> dict[str, Any]:
        """Say that the backend runs."""
        return {"status": "UP", "model_class": "treering"}

    @application.post("/label-studio/{model}/setup", tags=tags)
    async def setup(served: Asked, asked: Payload) -> dict[str, Any]:
        """Look at a project's configuration."""
        Config.of(asked.get("schema"))
        return {"model_version": await asyncio.to_thread(version, served)}

    @application.get("/label-studio/{model}/versions", tags=tags)
    async def versions(served: Asked) -> dict[str, Any]:
        """Name the version that answers."""
        return {"versions": [await asyncio.to_thread(version, served)]}

    @application.post("/label-studio/{model}/predict", tags=tags)
    async def predict(served: Asked, asked: Payload) -> dict[str, Any]:
        """Say what tasks show."""
        return await backend.predict(served, asked)

    @application.post("/label-studio/{model}/webhook", tags=tags)
    async def webhook(served: Asked, told: Payload) -> dict[str, Any]:
        """Hear of annotations."""
        backend.heard(served, told)
        return {}

    @application.post("/label-studio/{model}/train", tags=tags)
    async def train(served: Asked, asked: Payload) -> dict[str, Any]:
        """Learn what was annotated."""
        backend.train(served)
        return {}
