"""Label Studio's protocol for machine-learning backends: it asks what tasks show, and tells of annotations.

A model's address there is `/label-studio/<model>`. Photos are fetched from the one Label Studio that the server was
started with, whatever a request says. An annotation puts its photo into the tray; once no other has come for a while,
or when Label Studio asks for training, the tray is learnt. Label Studio neither waits for what it tells of nor tells it
again, so each model's events are taken note of at once and dealt with in the order in which they came. A file beside
the tray tells a later server which photo is whose task's, and whether they are still to be learnt.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import string
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache, partial
from http.client import HTTPException as BrokenAnswer
from typing import Annotated, Any
from urllib.parse import quote, unquote, urljoin, urlsplit
from xml.etree import ElementTree

import numpy as np
from fastapi import APIRouter, Body, FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from treering import words
from treering.errors import TreeringError
from treering.runtime import files
from treering.server import schemas, tray, uploads
from treering.server.routes import Asked
from treering.server.served import Served
from treering.server.service import Service
from treering.server.uploads import Upload

logger = words.logger(__name__)

QUIET, TRIES = 10.0, 360
"""The seconds without another annotation after which the tray is learnt, and how often that is tried: for an hour."""
PAUSES = (1.0, 5.0, 25.0)
"""The seconds after which the photo of an annotation is fetched again, if Label Studio cannot be asked."""
SECONDS = 10.0
"""The seconds that fetching one photo may take."""
PATIENCE = 60.0
"""The seconds after which no more photos are fetched for one request; Label Studio waits 100 seconds for all."""
AT_ONCE, MOST_TASKS = 4, 500
MOST_WAITING = tray.MOST_PHOTOS
"""The most annotations and other events that are still to be dealt with."""
LONGEST_CONFIG, LONGEST_ADDRESS, LARGEST_NOTES = 2**16, 2**12, 2**22
NOTES = "label-studio.json"
FRESH = 240.0
"""The seconds for which an access token is used; Label Studio's are good for five minutes."""
PLACES = ("/data/", "/storage-data/", "/tasks/", "/projects/")
"""Where Label Studio has the photos of tasks."""
LEARNS = ("ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED")
UNTAUGHT = "untaught"
Payload = Annotated[dict[str, Any], Body()]
Doing = Callable[[], Coroutine[Any, Any, None]]


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
            images = {one.attrib["name"]: one for one in root.iter("Image")}
            whole = [one for one in root.iter("Choices") if one.get("perRegion", "false").lower() != "true"]
            choices = next(one for one in whole if one.get("toName") in images)
            image = images[choices.attrib["toName"]]
            values = frozenset(one.get("alias") or one.get("value") or "" for one in choices.iter("Choice"))
            return cls(choices.attrib["name"], image.attrib["name"], image.attrib["value"].lstrip("$"), values)
        except (ValueError, KeyError, StopIteration, ElementTree.ParseError):
            what = "the labelling configuration needs an <Image> and <Choices> for it"
            raise HTTPException(422, f"{what}: take Label Studio's template for image classification") from None


@dataclass(frozen=True)
class Said:
    """What an annotation says of a photo."""

    annotation: int
    task: int
    address: Any
    """Where the photo is, as its task has it."""
    name: str | None
    """The class; None if the task was skipped, or no class or several were chosen."""


class UnreachableError(ValueError):
    """Label Studio cannot be asked just now."""


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
        """Return the file at an address of a task; raise ValueError if it is not this Label Studio's, or not to be had.

        Letters that have no place in an address are written as the rules for addresses want it.
        """
        if not isinstance(address, str) or not 0 < len(address) <= LONGEST_ADDRESS:
            raise ValueError("its task has no address of a photo")
        full = urljoin(f"{self.base}/", quote(address, safe=string.punctuation))
        mine, its = urlsplit(self.base), urlsplit(full)
        path = its.path.removeprefix(mine.path)
        is_own = (its.scheme, its.netloc) == (mine.scheme, mine.netloc) and path.startswith(PLACES)
        if not is_own or ".." in unquote(path):
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
            asked = urllib.request.Request(f"{self.base}/api/token/refresh/", body, headers)
            try:
                self._access = time.monotonic(), str(json.loads(self._asked(asked, 2**16))["access"])
            except (KeyError, TypeError, RecursionError):
                raise ValueError("Label Studio gives no access token for the key") from None
        return f"Bearer {self._access[1]}"

    def _asked(self, request: urllib.request.Request, most: int) -> bytes:
        begun, content = time.monotonic(), bytearray()
        try:
            with self._opener.open(request, timeout=SECONDS) as answer:
                while piece := answer.read1(2**16):
                    content += piece
                    if len(content) > most:
                        raise ValueError("it is too large")
                    if time.monotonic() - begun > SECONDS:
                        raise UnreachableError("it comes too slowly")
        except urllib.error.HTTPError as error:
            error.close()
            hint = ": is LABEL_STUDIO_API_KEY right?" if error.code in (401, 403) else ""
            kind = UnreachableError if error.code >= 500 or error.code in (408, 429) else ValueError
            raise kind(f"Label Studio answers with status {error.code}{hint}") from None
        except (OSError, BrokenAnswer) as error:
            why = getattr(error, "strerror", None) or error
            raise UnreachableError(f"Label Studio cannot be asked: {why}") from None
        return bytes(content)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Notes(BaseModel):
    """What a file beside a model's tray tells a later server."""

    photo_of: dict[int, tuple[int, str]] = {}
    """For a task, the annotation that put the task's photo into the tray, and the photo."""
    waits: bool = False
    """Whether the tray is still to be learnt."""

    @classmethod
    def of(cls, served: Served) -> Notes:
        """Read the notes of a model; there are none if the file is damaged."""
        place = tray.place_of(served.path) / NOTES
        with contextlib.suppress(OSError, ValueError):
            return cls.model_validate_json(files.read(place, LARGEST_NOTES, through_links=False))
        return cls()


class Backend:
    """What the server does for Label Studio."""

    def __init__(self, service: Service, photos: Photos) -> None:
        self.service, self.photos = service, photos
        self.to_do = 0
        """How much of what Label Studio has told is still to be done."""
        self._notes = cache(Notes.of)
        self._timers: dict[Served, asyncio.TimerHandle] = {}
        """Those that have a tray learnt after a quiet while."""
        self._turns: defaultdict[Served, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._predicted, self._annotating = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(1)
        """Held while a photo is fetched for a prediction, and for an annotation, which does not wait for those."""
        self._ending = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, _: FastAPI) -> AsyncIterator[None]:
        """Learn what an earlier server has not come to; when this one ends, make no more pauses."""
        for served in self.service.models.all():
            with contextlib.suppress(OSError, TreeringError):  # whoever asks for the tray is told
                notes = self._notes(served)
                if notes.waits and any(photo in served.tray.photos for _, photo in notes.photo_of.values()):
                    self._learn_later(served)
        yield
        self._ending.set()

    async def pixels(
        self, address: Any, size: int, lane: asyncio.Semaphore, until: float, pauses: Sequence[float] = ()
    ) -> np.ndarray | str:
        """Fetch and decode a photo, if need be again after pauses; return why, if it cannot be, or not in time."""
        for pause in (*pauses, None):
            async with lane:
                if time.monotonic() > until:
                    break
                try:
                    content = await asyncio.to_thread(self.photos.content, address)
                    return await self.service.decoder.decoded(content, size)
                except ValueError as error:
                    if pause is None or self._ending.is_set() or not isinstance(error, UnreachableError):
                        return str(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), pause)
        return "Label Studio does not wait so long: ask again for the rest"

    async def predict(self, served: Served, asked: dict[str, Any]) -> dict[str, Any]:
        """Say what tasks show, in the terms of their project."""
        tasks = asked.get("tasks")
        if not isinstance(tasks, list) or len(tasks) > MOST_TASKS:
            raise HTTPException(422, f"tasks must be a list of at most {MOST_TASKS}")
        config = Config.of(asked.get("label_config"))
        if served.version is None:
            return {"results": [{"result": [], "score": 0.0} for _ in tasks], "model_version": UNTAUGHT}
        loaded, until = await self.service.loaded(served), time.monotonic() + PATIENCE
        fetching = (self.pixels(_address(task, config), loaded.teller.size, self._predicted, until) for task in tasks)
        photos = await asyncio.gather(*fetching)
        found = await self.service.predictions(served, loaded, [Upload(None, photo) for photo in photos], top=1)
        missing = [one.error for one in found.predictions if one.error]
        if missing:
            logger.warning("%d of %d photos have no prediction: %s", len(missing), len(tasks), missing[0])
        results = [_result(one, config) | {"model_version": found.version} for one in found.predictions]
        return {"results": results, "model_version": found.version}

    def heard(self, served: Served, told: dict[str, Any]) -> None:
        """Take note of an event of a project, and do in turn what it asks for."""
        doing = self._asked_for(served, told)
        if self.to_do + len(doing) > MOST_WAITING:
            raise HTTPException(429, "too much of what Label Studio has told waits: send this again in a moment")
        for one in doing:
            self._in_turn(served, one)

    def _asked_for(self, served: Served, told: dict[str, Any]) -> list[Doing]:
        action = told.get("action")
        if action in LEARNS:
            return [partial(self._annotated, served, one) for one in _said(told)]
        if action == "ANNOTATIONS_DELETED":
            return [partial(self._deleted, served, _ids(told.get("annotations")))]
        if action == "TASKS_DELETED":
            return [partial(self._take_out, served, _ids(told.get("tasks")))]
        return [partial(self._learn, served, "usual")] if action == "START_TRAINING" else []

    def _in_turn(self, served: Served, doing: Doing) -> None:
        """Do something when all that came before it for this model is done."""
        self.to_do += 1
        self.service.later(self._done(served, doing))

    async def _done(self, served: Served, doing: Doing) -> None:
        try:
            async with self._turns[served]:
                await doing()
        except (HTTPException, OSError, TreeringError) as error:
            logger.warning("%s cannot do what Label Studio tells: %s", served.name, getattr(error, "detail", error))
        finally:
            self.to_do -= 1

    async def _annotated(self, served: Served, said: Said) -> None:
        """Have the tray hold the photo of a task once, as what was said of it last."""
        if said.name is None:
            await self._deleted(served, {said.annotation})
            return
        size = await asyncio.to_thread(served.size)
        photo = await self.pixels(said.address, size, self._annotating, math.inf, PAUSES)
        await self._take_out(served, {said.task})  # also if there is no new photo: its class is not that any more
        try:
            name = uploads.require_name(said.name)
            added = await self.service.put_into_tray(served, name, [Upload(None, photo)])
        except HTTPException as error:
            raise HTTPException(error.status_code, f"task {said.task} is not learnt: {error.detail}") from None
        notes = self._notes(served)
        notes.photo_of[said.task], notes.waits = (said.annotation, added.added[0].id), True
        if len(notes.photo_of) > tray.MOST_PHOTOS:
            del notes.photo_of[next(iter(notes.photo_of))]
        self._learn_later(served)
        await self._keep(served)

    async def _deleted(self, served: Served, annotations: Set[int]) -> None:
        """Take what annotations have put into the tray out of it."""
        photo_of = self._notes(served).photo_of
        await self._take_out(served, {task for task, (one, _) in photo_of.items() if one in annotations})

    async def _take_out(self, served: Served, tasks: Set[int]) -> None:
        """Take the photos of tasks out of the tray, if they are still there."""
        photo_of = self._notes(served).photo_of
        gone = [photo_of.pop(task)[1] for task in tasks if task in photo_of]
        async with served.changing:
            if there := [one for one in gone if one in served.tray.photos]:
                await asyncio.to_thread(served.tray.remove, there)
        if gone:
            await self._keep(served)

    async def _keep(self, served: Served) -> None:
        """Write down what a later server has to know."""
        content = self._notes(served).model_dump_json().encode()
        await asyncio.to_thread(files.write, tray.place_of(served.path) / NOTES, content)

    def _learn_later(self, served: Served, effort: schemas.Effort = "fast", attempt: int = 1) -> None:
        """Have the tray learnt when nothing else was told for a while."""
        if timer := self._timers.pop(served, None):
            timer.cancel()
        learn = partial(self._learn, served, effort, attempt)
        self._timers[served] = asyncio.get_running_loop().call_later(QUIET, self._in_turn, served, learn)

    async def _learn(self, served: Served, effort: schemas.Effort, attempt: int = 1) -> None:
        """Learn the tray; if too much is learnt already, try again after a while."""
        if timer := self._timers.pop(served, None):
            timer.cancel()
        try:
            await self.service.begin_job(served, effort)
        except HTTPException as error:
            too_much = error.status_code == 429 or (served.tray.photos and self.service.jobs.of(served))
            if attempt >= TRIES or not too_much:
                raise
            self._learn_later(served, effort, attempt + 1)
        else:
            self._notes(served).waits = False
            await self._keep(served)


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list, or an object alone."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, dict)]


def _ids(value: Any) -> set[int]:
    """Return the numbers of the objects in a list."""
    return {one["id"] for one in _objects(value) if isinstance(one.get("id"), int)}


def _address(task: Any, config: Config) -> Any:
    data = task.get("data") if isinstance(task, dict) else None
    return data.get(config.field) if isinstance(data, dict) else None


def _said(told: dict[str, Any]) -> Iterator[Said]:
    """Yield what the annotations of an event say; raise HTTPException if their project does not classify photos."""
    project = told.get("project")
    config = Config.of(project.get("label_config") if isinstance(project, dict) else None)
    tasks = {task["id"]: task for task in _objects(told.get("task")) if isinstance(task.get("id"), int)}
    for one in _objects(told.get("annotation")):
        number, task = one.get("id"), one.get("task")
        if isinstance(number, int) and isinstance(task, int) and task in tasks:
            yield Said(int(number), int(task), _address(tasks[task], config), _chosen(one, config))


def _chosen(annotation: dict[str, Any], config: Config) -> str | None:
    """Return the one class that an annotation gives the photo; None if the task was skipped, or there is no such."""
    if annotation.get("was_cancelled"):
        return None
    found: list[Any] = []
    for one in _objects(annotation.get("result")):
        value = one.get("value")
        if one.get("type") == "choices" and one.get("from_name") == config.from_name and isinstance(value, dict):
            found += value["choices"] if isinstance(value.get("choices"), list) else []
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


def _result(found: schemas.Prediction, config: Config) -> dict[str, Any]:
    """Return a prediction as Label Studio shows it: nothing if the photo is unknown or of no class of the project.

    Without a `result`, Label Studio writes the error into its log, and asks again another time.
    """
    if found.error:
        return {"error": found.error}
    best = found.classes[0]
    if found.unknown or best.name not in config.choices:
        return {"result": [], "score": 0.0}
    names = {"from_name": config.from_name, "to_name": config.to_name, "type": "choices"}
    return {"result": [names | {"value": {"choices": [best.name]}}], "score": round(best.probability, 6)}


def add_to(application: FastAPI, service: Service, address: str, key: str | None) -> None:
    """Add the protocol to the server."""
    backend = Backend(service, Photos(address, key))
    routes = APIRouter(prefix="/label-studio/{model}", tags=["Label Studio"], lifespan=backend.running)

    def version(served: Served) -> str:
        facts = served.facts()
        return facts.version if facts else UNTAUGHT

    @routes.get("/health")
    async def health(served: Asked) -> dict[str, Any]:
        """Say that the backend runs."""
        return {"status": "UP", "model_class": "treering"}

    @routes.post("/setup")
    async def setup(served: Asked, asked: Payload) -> dict[str, Any]:
        """Look at a project's configuration."""
        Config.of(asked.get("schema"))
        return {"model_version": await asyncio.to_thread(version, served)}

    @routes.get("/versions")
    async def versions(served: Asked) -> dict[str, Any]:
        """Name the version that answers."""
        return {"versions": [await asyncio.to_thread(version, served)]}

    @routes.post("/predict")
    async def predict(served: Asked, asked: Payload) -> dict[str, Any]:
        """Say what tasks show."""
        return await backend.predict(served, asked)

    @routes.post("/webhook")
    async def webhook(served: Asked, told: Payload) -> dict[str, Any]:
        """Hear of annotations."""
        backend.heard(served, told)
        return {}

    @routes.post("/train")
    async def train(served: Asked, asked: Payload) -> dict[str, Any]:
        """Learn what was annotated."""
        backend.heard(served, {"action": "START_TRAINING"})
        return {}

    application.include_router(routes)
