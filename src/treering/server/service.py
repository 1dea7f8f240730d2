"""What the server holds while it runs, and what it does with it for whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.exceptions import HTTPException

from treering import words
from treering.errors import TreeringError
from treering.prediction import SHARE
from treering.server import schemas
from treering.server.batches import Batches
from treering.server.guard import Door, Metrics
from treering.server.jobs import MOST_QUEUED, Jobs
from treering.server.served import Loaded, Models, Served
from treering.server.uploads import Decoder, Upload

logger = words.logger(__name__)

LOOK_EVERY = 1.0
"""The seconds between two looks for new versions that other programs have made."""
DRAIN = 10.0
"""The seconds that what goes on beside the answers has when the server ends."""
CLASSES_COMPARED, MOST_COMPARED = 3, 8
"""With how many of its most probable classes' exemplars a photo is compared, and how many photos of a request are."""


@dataclass(frozen=True)
class Settings:
    """What the server serves, and to whom."""

    path: Path
    """The folder of a model, or of models."""
    door: Door
    device: str = "auto"
    many: bool = False
    """Whether the folder is one of models, even if it has none yet."""
    label_studio: str | None = None
    """The address of the Label Studio whose photos are fetched."""
    label_studio_key: str | None = None


class Service:
    """All that the server holds while it runs."""

    def __init__(self, settings: Settings) -> None:
        self.metrics = Metrics()
        self.models = Models(settings.path, settings.device, settings.many)
        self.decoder = Decoder()
        self.compute = ThreadPoolExecutor(1, "compute")
        self.batches = Batches(self.compute, self.metrics)
        self.jobs = Jobs(settings.device, self.metrics, self._learnt)
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take up what an earlier server has left, and look after models and jobs until the server ends."""
        for served in self.models.all():
            self.jobs.restore(served)
        await self.jobs.start()
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=DRAIN)
            await self.jobs.close()
            self.decoder.close()
            self.compute.shutdown(wait=False, cancel_futures=True)
            self.models.close()

    async def _watch(self) -> None:
        """Load new versions of models that are in use, whoever has made them."""
        while True:
            for served in await asyncio.to_thread(self.models.all):
                if served.ready or (not self.models.can_add and served.version):
                    await self._load(served)
            await asyncio.sleep(LOOK_EVERY)

    async def _learnt(self, served: Served) -> None:
        """Have a version that a job has just made answer, if the one before it did."""
        if served.ready:
            await self._load(served)

    async def _load(self, served: Served) -> None:
        try:
            await asyncio.to_thread(served.current)
        except TreeringError:  # whoever asks the model is told
            pass
        except Exception as error:  # too little memory, perhaps: the next look may have more
            logger.warning("%s cannot be loaded: %s", served.name, error)

    def later(self, doing: Coroutine[Any, Any, None]) -> None:
        """Do something beside the answers."""
        task = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def loaded(self, served: Served) -> Loaded:
        """Return what answers by a model; raise HTTPException if it has learnt nothing yet."""
        self.models.used(served)
        found = served.ready or await asyncio.to_thread(served.current)
        if found is None:
            raise HTTPException(409, f"{served.name} has learnt nothing yet: teach it two classes or more")
        return found

    async def brief(self, served: Served) -> schemas.ModelBrief:
        """Return what a list tells of a model, which for a damaged one is nothing."""
        facts, job = None, self.jobs.of(served)
        with contextlib.suppress(TreeringError, OSError):
            facts = await asyncio.to_thread(served.facts)
        classes, steps = (len(facts.classes), len(facts.steps)) if facts else (0, 0)
        return schemas.ModelBrief(name=served.name, classes=classes, steps=steps, job=job.id if job else None)

    async def described(self, served: Served) -> schemas.Model:
        """Return all that is told of a model."""
        facts = await asyncio.to_thread(served.facts)
        size = facts.size if facts else await asyncio.to_thread(served.size)
        unknown = facts is not None and (await self.loaded(served)).limit(SHARE) is not None
        place = address(served)
        classes = [
            one.model_copy(update={"exemplars": [f"{place}/exemplars/{digest}.png" for digest in one.exemplars]})
            for one in (facts.classes if facts else [])
        ]
        return schemas.Model(
            name=served.name,
            backbone=facts.backbone if facts else None,
            size=size,
            version=facts.version if facts else None,
            classes=classes,
            steps=facts.steps if facts else [],
            memory={"photos": facts.photos if facts else 0},
            bytes=facts.bytes if facts else 0,
            undo=facts.undo if facts else 0,
            unknown=unknown,
            tray=await self.tray(served),
            job=self.jobs.of(served),
        )

    async def tray(self, served: Served) -> schemas.Tray:
        """Return the photos that wait for a model."""
        known, found = set(map(str, await asyncio.to_thread(served.labels))), dict[str, list[schemas.TrayPhoto]]()
        for number, name in served.tray.photos.items():
            url = f"{address(served)}/tray/{number}.png"
            found.setdefault(name, []).append(schemas.TrayPhoto(id=number, url=url))
        classes = [schemas.TrayClass(name=name, known=name in known, photos=part) for name, part in found.items()]
        return schemas.Tray(classes=classes, photos=len(served.tray.photos), room=served.tray.room)

    async def change(
        self, served: Served, doing: Callable[[Path], object], becomes: Mapping[str, str | None] | None = None
    ) -> schemas.Model:
        """Change a model by a function, while no job does; photos that wait get the class that theirs `becomes`."""
        async with served.changing:
            if self.jobs.of(served):
                raise HTTPException(409, f"{served.name} is being taught: wait until the job has ended, or cancel it")
            if served.version is None:
                raise HTTPException(409, f"{served.name} has learnt nothing yet: teach it two classes or more")
            await asyncio.to_thread(doing, served.path)
            if becomes:
                await asyncio.to_thread(served.tray.relabel, becomes)
                await self.jobs.forget(served, [name for name, other in becomes.items() if other is None])
            await asyncio.to_thread(served.current)
        return await self.described(served)

    async def predictions(
        self,
        served: Served,
        loaded: Loaded,
        photos: Sequence[Upload],
        top: int,
        share: float | None = None,
        nearest: int = 0,
    ) -> schemas.Predictions:
        """Return the `top` classes of photos, whether they are unknown, and the `nearest` of the kept photos."""
        readable = [photo.pixels for photo in photos if not isinstance(photo.pixels, str)]
        if nearest and len(readable) > MOST_COMPARED:
            raise HTTPException(422, f"nearest is for {MOST_COMPARED} photos at most: send fewer, or leave it out")
        answers = iter(await self.batches.answers(loaded, readable))
        limit, found = loaded.limit(share), []
        for photo in photos:
            if isinstance(photo.pixels, str):
                found.append(schemas.Prediction(name=photo.name, classes=[], unknown=None, error=photo.pixels))
                continue
            row, distance = next(answers)
            best = np.argsort(-row, kind="stable")[:top]
            classes = [schemas.Probability(name=loaded.teller.names[one], probability=float(row[one])) for one in best]
            unknown = None if limit is None or distance is None else distance > limit
            near = (await self._nearest(served, loaded, photo.pixels, row))[:nearest] if nearest else []
            found.append(schemas.Prediction(name=photo.name, classes=classes, unknown=unknown, nearest=near))
        return schemas.Predictions(version=loaded.name, predictions=found)

    async def _nearest(self, served: Served, loaded: Loaded, pixels: np.ndarray, row: np.ndarray) -> list[schemas.Near]:
        """Return the kept photos of the most probable classes, those that are most like a photo first."""
        names = [loaded.teller.names[one] for one in np.argsort(-row)[:CLASSES_COMPARED]]
        found = await asyncio.get_running_loop().run_in_executor(self.compute, loaded.likeness, pixels, names)
        place = f"{address(served)}/exemplars"
        return [
            schemas.Near(name=name, exemplar=f"{place}/{digest}.png", likeness=value) for name, digest, value in found
        ]

    async def put_into_tray(self, served: Served, name: str, photos: Sequence[Upload]) -> schemas.AddedPhotos:
        """Put the readable ones of some photos into the tray; raise HTTPException if there are none, or no room."""
        good = [photo.pixels for photo in photos if not isinstance(photo.pixels, str)]
        refused = [schemas.RefusedPhoto(name=p.name, error=p.pixels) for p in photos if isinstance(p.pixels, str)]
        if not good:
            raise HTTPException(422, f"no photo can be read: {refused[0].error}")
        async with served.changing:
            room = served.tray.room
            if len(good) > room:
                raise HTTPException(413, f"the tray has room for {room} more photos: learn what it holds first")
            numbers = await asyncio.to_thread(served.tray.add, name, good)
        place = f"{address(served)}/tray"
        added = [schemas.Added(id=number, url=f"{place}/{number}.png", name=name) for number in numbers]
        return schemas.AddedPhotos(added=added, refused=refused, room=served.tray.room)

    async def begin_job(self, served: Served, effort: schemas.Effort) -> schemas.Job:
        """Begin to learn the photos of a tray; raise HTTPException if they are too few or too much waits already."""
        if len(self.jobs.waiting()) >= MOST_QUEUED:
            raise HTTPException(429, f"{MOST_QUEUED} jobs wait already: try again when one of them has ended")
        async with served.changing:
            waiting = served.tray.photos.values()
            if not waiting:
                raise HTTPException(409, "the tray is empty: put photos into it first")
            if len({*map(str, served.labels()), *waiting}) < 2:
                only = words.shown(next(iter(waiting)))
                raise HTTPException(409, f"{only} is the only class: a model needs two or more, add another")
            return await self.jobs.begin(served, effort)


def address(served: Served) -> str:
    """Return where a model is found."""
    return f"/api/models/{quote(served.name, safe='')}"


def known(served: Served, name: str) -> Hashable:
    """Return the class of a model that is written so; raise if it knows none."""
    label = next((label for label in served.labels() if str(label) == name), None)
    if label is None:
        raise HTTPException(404, f"{served.name} knows no class called {words.shown(name)}")
    return label
