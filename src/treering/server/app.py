"""The application: the page, the health of the server, the routes, and how errors are told."""

from __future__ import annotations

import contextlib
import mimetypes
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from treering import words
from treering.errors import TreeringError, is_out_of_memory
from treering.server import label_studio, routes, schemas
from treering.server.guard import Guard
from treering.server.service import Service, Settings
from treering.version import __version__

logger = words.logger(__name__)

REASONS = {
    400: "the request cannot be read",
    401: "the token is missing",
    403: "a page of another site asks",
    404: "there is no such thing",
    408: "the request came too slowly",
    409: "this cannot be done just now",
    413: "too much was sent",
    415: "this is no photo",
    421: "the server does not go by that name",
    422: "a value makes no sense",
    429: "too much waits already",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.Error, "description": reason} for status, reason in REASONS.items()
}


def make(settings: Settings) -> tuple[Guard, Service]:
    """Return the application behind its guard, and what it holds."""
    service = Service(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="treering",
        version=__version__,
        description="Teach image classifiers new classes over time, and ask them what photos show.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.service = service
    _tell_errors(app)
    _add_page(app)
    _add_health(app, service)
    routes.add_models(app, service)
    routes.add_tray(app, service)
    routes.add_jobs(app, service)
    if settings.label_studio:
        label_studio.add_to(app, service, settings.label_studio, settings.label_studio_key)
    return Guard(app, settings.door, service.metrics), service


def _tell_errors(app: FastAPI) -> None:
    """Have every error answered in one form."""

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": words.shown(error.detail, words.MESSAGE)}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        return JSONResponse({"error": words.shown(f"{where}: {first['msg']}", words.MESSAGE)}, 422)

    @app.exception_handler(TreeringError)
    async def impossible(request: Request, error: TreeringError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 409)

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> JSONResponse:
        logger.warning("%s", error)
        return JSONResponse({"error": f"the server cannot use its disk: {error.strerror or type(error).__name__}"}, 507)

    @app.exception_handler(ClientDisconnect)
    async def broken_off(request: Request, error: ClientDisconnect) -> JSONResponse:
        return JSONResponse({"error": "the request was broken off: send it again"}, 400)

    @app.exception_handler(Exception)
    async def own(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "an error of the server's own: its log tells more"}, 500)

    @app.exception_handler(RuntimeError)
    async def memory(request: Request, error: RuntimeError) -> JSONResponse:
        if not is_out_of_memory(error):
            raise error
        return JSONResponse({"error": "the server is out of memory: send less, or close other programs"}, 507)


def _add_page(app: FastAPI) -> None:
    """Serve the page from memory: no request's path ever reaches the file system."""
    files = {
        item.name: item.read_bytes()
        for item in (resources.files("treering.server") / "page").iterdir()
        if item.is_file() and not item.name.startswith(".")
    }
    kinds = {name: mimetypes.guess_type(name)[0] or "application/octet-stream" for name in files}
    kinds |= {name: "text/javascript" for name in files if name.endswith(".js")}  # some systems know another one

    def page(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such page")
        text = kinds[name].startswith("text/")
        return Response(files[name], media_type=kinds[name] + ("; charset=utf-8" if text else ""))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return page("index.html")

    @app.get("/api", include_in_schema=False)
    async def reference() -> Response:
        return page("api.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return page(name)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return page("icon.svg")


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["server"])
    async def health() -> schemas.Status:
        """Say that the server runs."""
        return schemas.Status()

    @app.get("/ready", tags=["server"], responses={503: {"model": schemas.Ready, "description": "not yet"}})
    async def ready(response: Response) -> schemas.Ready:
        """Say whether jobs are learnt and, where one model is served, whether it is loaded or knows nothing yet."""
        models = [] if service.models.can_add else service.models.all()
        good = service.jobs.is_well and all(one.ready or one.version is None for one in models)
        response.status_code = 200 if good else 503
        return schemas.Ready(ready=good)

    @app.get("/metrics", tags=["server"], response_class=Response)
    async def metrics() -> Response:
        """Tell what the server has done, for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)
