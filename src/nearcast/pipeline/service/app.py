"""The REST API of the data cluster, as an ASGI application behind a request guard.

Each refusal is JSON with a `problem` and a `hint`. Handlers are ordinary functions, which run in threads: the catalogue
answers from a file, and Spark may take seconds. Only the long poll is a coroutine.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import version
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from nearcast.errors import NearcastError, UsageError
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.database import CatalogFull, CatalogRefusal, Conflict, Damaged, NoLongerKept, Unknown
from nearcast.pipeline.channels.language import InvalidChannel
from nearcast.pipeline.service import admin_routes, gateway_routes
from nearcast.pipeline.service.state import CatalogOnly, Engine, EngineNotReady, Service, ServiceSettings

# --- the request guard


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KINDS = (b"application/json", b"application/octet-stream", b"text/csv")
_WITH_BODY = ("POST", "PUT", "PATCH")
_OPEN_PATHS = ("/health",)  # a load balancer asks without a token
_GATEWAY_PARTS = ("brokers", "subscriptions", "results", "rates")  # the beginnings of the paths that gateways use


class RequestGuard:
    """ASGI middleware that checks the token, and the content type and size of the body.

    It answers 401 without a valid token, 403 if the gateways' token is not enough, 415 for a body of an unknown type,
    and 413 for one above the limit, even if it does not declare its length.

    There are two tokens. The operator's allows everything. The gateways' token allows what gateways, which run close to
    users, need: to hold subscriptions and to fetch results.

    The content type matters because any web page can make a browser send forms and plain text to an address that only
    the browser can reach, such as 127.0.0.1. For other types the browser asks the server for permission first, and this
    one never gives it.
    """

    def __init__(self, app: App, token: str, gateway_token: str, body_bytes: Callable[[str], int]) -> None:
        self._app = app
        self._token = token.encode()
        self._gateway_token = gateway_token.encode()
        self._body_bytes = body_bytes  # path -> limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        if scope["method"] in _WITH_BODY and not _is_of_known_kind(headers):
            known = ", ".join(kind.decode() for kind in _KINDS)
            await _refuse(send, 415, "the body has an unknown type", f"send the header Content-Type: one of {known}")
            return
        most = self._body_bytes(scope["path"])
        if _length(headers) > most:
            await _refuse(send, 413, *_too_large(most))
            return
        await self._measured(scope, receive, send, most)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if not self._token or path in _OPEN_PATHS:
            return None
        if self._shows(headers, self._token):
            return None
        if not self._shows(headers, self._gateway_token):
            hint = "send the header Authorization: Bearer TOKEN with the data cluster's token"
            return 401, "no valid token", hint
        if path.lstrip("/").partition("/")[0] in _GATEWAY_PARTS:
            return None
        return 403, "the gateways' token does not allow this", "use the operator's: NEARCAST_DATA_TOKEN"

    @staticmethod
    def _shows(headers: dict[bytes, bytes], token: bytes) -> bool:
        """Whether the request has this token. The time this takes does not reveal how much of a wrong one is right."""
        kind, _, shown = headers.get(b"authorization", b"").partition(b" ")
        return bool(token) and kind.lower() == b"bearer" and hmac.compare_digest(shown.strip(), token)

    async def _measured(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """Count the body as it arrives: one sent in chunks has no length in its header."""
        received = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, _too_large(most)[0])
            return message

        await self._app(scope, counted, send)


def _is_of_known_kind(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in _KINDS


def _length(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _too_large(most: int) -> tuple[str, str]:
    return f"the body is larger than {most} bytes", "send less at once"


async def _refuse(send: Send, status: int, problem: str, hint: str) -> None:
    body = msgspec.json.encode({"problem": problem, "hint": hint})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# --- the application


_ROUTES = (
    gateway_routes.broker_routes,
    admin_routes.channel_routes,
    gateway_routes.subscription_routes,
    gateway_routes.result_routes,
    admin_routes.feed_routes,
    admin_routes.dataset_routes,
    admin_routes.health_routes,
)
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
    """The API of a catalogue. Without an engine nothing runs, and it serves what is stored and committed."""
    chosen = settings or ServiceSettings()
    app = FastAPI(
        title="nearcast data cluster",
        version=version("nearcast"),
        description="Feeds, channels, backend subscriptions, and the results of executions.",
    )
    app.state.service = Service(catalog, chosen, engine or CatalogOnly())
    for routes in _ROUTES:
        app.include_router(routes)
    app.add_middleware(
        RequestGuard,
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
    """A problem may quote the request, so make it sendable."""
    return text[:_QUOTED_MOST].encode("utf-8", "backslashreplace").decode()
