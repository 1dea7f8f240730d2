"""What can be asked of the models, of the photos that wait, and of the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Body, Depends, FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from treering import changes, model, words
from treering.server import schemas
from treering.server.jobs import Entry
from treering.server.served import Served
from treering.server.service import Service, known
from treering.server.uploads import require_name

BEAT = 15.0
"""The seconds after which a silent stream of events says that it is alive."""
MOST_TOP, MOST_NEAREST = 100, 12
NOT_IN_TRAY = "the tray has no such photo any more"
PHOTO_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "one photo as it is, or a form with any number of files",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"photo": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
        },
    }
}
PNG: dict[int | str, dict[str, Any]] = {200: {"content": {"image/png": {}}, "description": "the photo"}}


async def asked_for(request: Request, model: str) -> Served:
    """Return the model that a path names; names are looked up, and never made into paths."""
    models = request.app.state.service.models
    served: Served | None = models.known(model) or await asyncio.to_thread(models.find, model)
    if served is None:
        raise HTTPException(404, f"no model is called {words.shown(model)}: ask /api/models for their names")
    return served


Asked = Annotated[Served, Depends(asked_for)]


def add_models(app: FastAPI, service: Service) -> None:
    """Add what can be asked of models."""

    @app.get("/api/models", tags=["models"])
    async def models() -> schemas.Models:
        """List the models that are served."""
        found = [await service.brief(served) for served in await asyncio.to_thread(service.models.all)]
        return schemas.Models(models=found, can_add=service.models.can_add)

    @app.post("/api/models", status_code=201, tags=["models"])
    async def add_model(asked: schemas.NewModel) -> schemas.Model:
        """Serve a new model, which begins with the first job."""
        return await service.described(await asyncio.to_thread(service.models.add, asked.name))

    @app.get("/api/models/{model}", tags=["models"])
    async def describe(served: Asked) -> schemas.Model:
        """Tell all about a model."""
        return await service.described(served)

    @app.post("/api/models/{model}/predict", tags=["models"], openapi_extra=PHOTO_BODY)
    async def predict(
        request: Request,
        served: Asked,
        top: Annotated[int, Query(ge=1, le=MOST_TOP, description="how many classes to name")] = 5,
        unknown: Annotated[
            float | None, Query(ge=0, le=1, description="the share of known photos that may be called unknown")
        ] = None,
        nearest: Annotated[int, Query(ge=0, le=MOST_NEAREST, description="how many kept photos to name")] = 0,
    ) -> schemas.Predictions:
        """Say what photos show."""
        loaded = await service.loaded(served)
        sent = await service.decoder.photos(request, loaded.teller.size)
        if len(sent) == 1 and isinstance(sent[0].pixels, str):
            raise HTTPException(422, f"the photo cannot be read: {sent[0].pixels}")
        return await service.predictions(served, loaded, sent, top, unknown, nearest)

    @app.get("/api/models/{model}/exemplars/{digest}.png", tags=["models"], responses=PNG, response_class=Response)
    async def exemplar(served: Asked, digest: str) -> Response:
        """Return a photo that the model keeps."""
        content = await asyncio.to_thread(served.exemplar, digest)
        if content is None:
            raise HTTPException(404, "the model keeps no such photo any more")
        return Response(content, media_type="image/png", headers={"cache-control": "private, max-age=86400"})

    @app.post("/api/models/{model}/undo", tags=["models"])
    async def undo(served: Asked) -> schemas.Model:
        """Go back to the model before its last step."""
        return await service.change(served, model.undo)

    @app.post("/api/models/{model}/forget", tags=["models"])
    async def forget(served: Asked, asked: schemas.Forget) -> schemas.Model:
        """Take classes out of the model and all of its earlier versions."""
        change = changes.Forget([known(served, name) for name in dict.fromkeys(asked.classes)])
        becomes = dict.fromkeys(asked.classes)
        return await service.change(served, lambda path: changes.in_folder(path, change), becomes)

    @app.post("/api/models/{model}/rename", tags=["models"])
    async def rename(served: Asked, asked: schemas.Rename) -> schemas.Model:
        """Give a class another name."""
        change = changes.Rename(known(served, asked.old), require_name(asked.new))
        becomes = {asked.old: str(change.new)}
        return await service.change(served, lambda path: changes.in_folder(path, change), becomes)

    @app.post("/api/models/{model}/merge", tags=["models"])
    async def merge(served: Asked, asked: schemas.Merge) -> schemas.Model:
        """Make the photos of one class photos of another."""
        change = changes.Merge(known(served, asked.kept), known(served, asked.gone))
        becomes = {asked.gone: asked.kept}
        return await service.change(served, lambda path: changes.in_folder(path, change), becomes)


def add_tray(app: FastAPI, service: Service) -> None:
    """Add what can be done with the photos that wait to be learnt."""

    @app.get("/api/models/{model}/tray", tags=["teaching"])
    async def tray(served: Asked) -> schemas.Tray:
        """List the photos that wait to be learnt."""
        return await service.tray(served)

    @app.post("/api/models/{model}/tray", tags=["teaching"], openapi_extra=PHOTO_BODY)
    async def add_photos(
        request: Request,
        served: Asked,
        class_name: Annotated[
            str, Query(alias="class", min_length=1, max_length=schemas.LONGEST_NAME, description="what they show")
        ],
    ) -> schemas.AddedPhotos:
        """Put photos of a class into the tray, to be learnt with the next job."""
        name = require_name(class_name)
        size = await asyncio.to_thread(served.size)
        sent = await service.decoder.photos(request, size)
        return await service.put_into_tray(served, name, sent)

    @app.delete("/api/models/{model}/tray", tags=["teaching"])
    async def empty_tray(
        served: Asked,
        class_name: Annotated[str | None, Query(alias="class", max_length=schemas.LONGEST_NAME)] = None,
    ) -> schemas.Tray:
        """Take all photos out of the tray, or those of a class."""
        async with served.changing:
            waiting = served.tray
            gone = [number for number, name in waiting.photos.items() if class_name in (None, name)]
            await asyncio.to_thread(waiting.remove, gone)
        return await service.tray(served)

    @app.delete("/api/models/{model}/tray/{number}", tags=["teaching"])
    async def remove_photo(served: Asked, number: str) -> schemas.Tray:
        """Take a photo out of the tray."""
        async with served.changing:
            if number not in served.tray.photos:
                raise HTTPException(404, NOT_IN_TRAY)
            await asyncio.to_thread(served.tray.remove, [number])
        return await service.tray(served)

    @app.get("/api/models/{model}/tray/{number}.png", tags=["teaching"], responses=PNG, response_class=Response)
    async def waiting_photo(served: Asked, number: str) -> Response:
        """Return a photo of the tray."""
        content = await asyncio.to_thread(served.tray.read, number)
        if content is None:
            raise HTTPException(404, NOT_IN_TRAY)
        return Response(content, media_type="image/png")


def add_jobs(app: FastAPI, service: Service) -> None:
    """Add what can be asked of jobs."""

    def found(job: str) -> Entry:
        if job not in service.jobs.entries:
            raise HTTPException(404, "there is no such job any more")
        return service.jobs.entries[job]

    @app.post("/api/models/{model}/jobs", status_code=202, tags=["teaching"])
    async def begin(served: Asked, asked: Annotated[schemas.Learn, Body()] = schemas.Learn()) -> schemas.Job:  # noqa: B008
        """Learn all photos of the tray."""
        return await service.begin_job(served, asked.effort)

    @app.get("/api/jobs", tags=["teaching"])
    async def jobs() -> schemas.Jobs:
        """List the jobs, the newest first."""
        return schemas.Jobs(jobs=[service.jobs.told(entry) for entry in reversed(service.jobs.entries.values())])

    @app.get("/api/jobs/{job}", tags=["teaching"])
    async def one_job(job: str) -> schemas.Job:
        """Tell how far a job is."""
        return service.jobs.told(found(job))

    @app.delete("/api/jobs/{job}", tags=["teaching"])
    async def cancel(job: str) -> schemas.Job:
        """End a job; what was solved already stays."""
        entry = found(job)
        await service.jobs.cancel(entry)
        return service.jobs.told(entry)

    events = {200: {"content": {"text/event-stream": {}}, "description": "a job whenever it changes, as `data: {…}`"}}

    @app.get("/api/jobs/{job}/events", tags=["teaching"], responses=events, response_class=StreamingResponse)  # type: ignore[arg-type]
    async def watch(job: str) -> StreamingResponse:
        """Send the job whenever something about it changes, until it has ended."""
        return StreamingResponse(_events(service, found(job)), media_type="text/event-stream")


async def _events(service: Service, entry: Entry) -> AsyncIterator[str]:
    """Yield each change of a job, and a sign of life now and then."""
    changes_of_job = service.jobs.watch(entry)
    following = asyncio.ensure_future(anext(changes_of_job, None))
    try:
        while True:
            done, _ = await asyncio.wait([following], timeout=BEAT)
            if not done:
                yield ": alive\n\n"
                continue
            job = following.result()
            if job is None:
                return
            yield f"data: {job.model_dump_json(by_alias=True)}\n\n"
            following = asyncio.ensure_future(anext(changes_of_job, None))
    finally:
        following.cancel()
