"""The REST API of the data cluster, as an ASGI application.

Each refusal is JSON with a `problem` and a `hint`. Handlers are ordinary functions, which run in threads: the catalogue
answers from a file, and Spark may take seconds. Only the long poll is a coroutine.
"""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from nearcast.errors import NearcastError, UsageError
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.refusals import CatalogFull, CatalogRefusal, Conflict, Damaged, NoLongerKept, Unknown
from nearcast.pipeline.channels.refusal import InvalidChannel
from nearcast.pipeline.service.door import Door
from nearcast.pipeline.service.routes import brokers, channels, datasets, feeds, health, results, subscriptions
from nearcast.pipeline.service.settings import ServiceSettings
from nearcast.pipeline.service.state import CatalogOnly, Engine, EngineNotReady, Service

_ROUTES = (brokers, channels, subscriptions, results, feeds, datasets, health)
_STATUS: dict[type[CatalogRefusal], int] = {
    Unknown: 404,
    Conflict: 409,
    Damaged: 409,
    NoLongerKept: 410,
    CatalogFull: 429,
}
_RETRY_S = 2
_QUOTED_MOST = 2000  # characters of a problem: a request may be long


def create_app(catalog: Catalog, settings: ServiceSettings | None = None, engine: Engine | None = None) -> FastAPI:
    """The API over a catalogue. Without an engine nothing runs: it serves what is stored and what is committed."""
    chosen = settings or ServiceSettings()
    app = FastAPI(
        title="nearcast data cluster",
        version=version("nearcast"),
        description="Feeds, channels, backend subscriptions, and the results of executions.",
    )
    app.state.service = Service(catalog, chosen, engine or CatalogOnly())
    for route in _ROUTES:
        app.include_router(route.router)
    app.add_middleware(
        Door,
        token=chosen.token,
        gateway_token=chosen.gateway_token,
        body_bytes=lambda path: (
            chosen.limits.dataset_bytes if path.startswith("/datasets/") else chosen.limits.json_bytes
        ),
    )
    app.add_exception_handler(RequestValidationError, _wrong_form)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(NearcastError, _refused)
    app.add_exception_handler(EngineNotReady, _not_ready)
    return app


def _refused(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, InvalidChannel):
        where = {"line": error.line, "column": error.column}
        return JSONResponse({"problem": _sendable(error.problem), "hint": _sendable(error.hint), **where}, 422)
    if isinstance(error, CatalogRefusal):
        return _problem(_STATUS.get(type(error), 422), error.problem, error.hint)
    problem, _, hint = str(error).partition(": ")
    return _problem(422 if isinstance(error, UsageError) else 503, problem, hint)


def _wrong_form(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return _problem(422, f"{where}: {first['msg']}", f"the form is at {request.base_url}docs")


def _http_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, error.detail, f"see {request.base_url}docs")


def _not_ready(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EngineNotReady)
    if not error.starting:
        return _problem(503, str(error), "start the data cluster again")
    answer = _problem(503, str(error), "try again in a moment")
    answer.headers["retry-after"] = str(_RETRY_S)
    return answer


def _problem(status: int, problem: str, hint: str) -> JSONResponse:
    return JSONResponse({"problem": _sendable(problem), "hint": _sendable(hint)}, status)


def _sendable(text: str) -> str:
    """What is wrong with a request may quote it."""
    return text[:_QUOTED_MOST].encode("utf-8", "backslashreplace").decode()
