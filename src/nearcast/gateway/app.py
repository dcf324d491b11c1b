"""The gateway's HTTP interface: WebSocket at /ws, long polls at /session, and what comes before a login.

POST /register {"user"}                       -> {"user", "token"}
GET  /broker?user=ann&lat=48.8&lon=2.3        -> {"broker", "url"}: where to log in
GET  /health
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from nearcast.errors import AccessDenied, ClusterError, NearcastError, Refused, UsageError
from nearcast.gateway.frames import Login, Number
from nearcast.gateway.long_poll import WAIT_MAX_S, LongPoll
from nearcast.gateway.registering import Applicant
from nearcast.gateway.service import Gateway
from nearcast.gateway.websocket import WebSocketSession

log = logging.getLogger("nearcast.gateway")

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]

_NO_SESSION = "no such session: log in again"


class _Register(msgspec.Struct):
    user: str
    token: str = ""


class _Credentials(msgspec.Struct):
    user: str
    token: str
    cursors: dict[str, Number] = {}


def create_app(gateway: Gateway) -> Starlette:
    """The application for one gateway, which it does not start or stop."""
    doors = _Doors(gateway)
    routes = [
        WebSocketRoute("/ws", doors.ws),
        Route("/register", doors.guarded(doors.register), methods=["POST"]),
        Route("/broker", doors.guarded(doors.broker)),
        Route("/session", doors.guarded(doors.login), methods=["POST"]),
        Route("/session/{session}/frames", doors.guarded(doors.fetch)),
        Route("/session/{session}/frames", doors.guarded(doors.send), methods=["POST"]),
        Route("/health", doors.guarded(doors.health)),
    ]
    # Browsers read an answer to a page of another host only if it says that the page may.
    cors = Middleware(
        CORSMiddleware, allow_origins=list(gateway.settings.origins), allow_methods=["*"], allow_headers=["*"]
    )
    return Starlette(routes=routes, middleware=[cors], lifespan=doors.lifespan)


class _Doors:
    """The ways into one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._long_poll = LongPoll(gateway)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._gateway.workers.start("long polls", self._long_poll.watch)
        yield

    def guarded(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
            return await _answer(self._gateway, handler, request)

        return answer

    async def ws(self, socket: WebSocket) -> None:
        await WebSocketSession(self._gateway, socket).serve()

    async def register(self, request: Request) -> Response:
        body = await self._body(request, msgspec.Raw)
        asked = _decoded(body, _Register)
        address = self._gateway.admission.address_of(request)
        if not self._gateway.admission.may_register(address, time.monotonic()):
            return _problem(429, "too many registrations of this address: wait a minute")
        shown = request.headers.get("authorization", "").encode("latin-1")  # as it was decoded
        applicant = Applicant(asked.user, address, _unambiguous(body, asked.user), shown)
        token = await self._gateway.register(applicant, asked.token)
        return JSONResponse({"user": asked.user, "token": token}, 201)

    async def broker(self, request: Request) -> Response:
        query = request.query_params
        latitude, longitude = (_number(query.get(name), name) for name in ("lat", "lon"))
        name, url = await self._gateway.request(query.get("user", ""), latitude, longitude)
        return JSONResponse({"broker": name, "url": url})

    async def health(self, request: Request) -> Response:
        return JSONResponse(self._gateway.health)

    # --- long polls

    async def login(self, request: Request) -> Response:
        asked = await self._body(request, _Credentials)
        login = Login(asked.user, asked.token, asked.cursors)
        try:
            name, session = await self._long_poll.open(self._gateway.admission.address_of(request), login)
        except Refused as refused:
            return _problem(429, str(refused))
        if name:
            return JSONResponse({"session": name}, 201)
        frame = msgspec.json.decode(session.take() or b"{}", type=dict)
        return _problem(401 if frame.get("final") else 503, str(frame.get("problem", session.ending)))

    async def fetch(self, request: Request) -> Response:
        query = request.query_params
        after = int(_number(query.get("after"), "after") or 0)
        wait_s = _number(query.get("wait_s"), "wait_s")
        polled = self._long_poll.find(request.path_params["session"])
        if polled is None:
            return _problem(404, _NO_SESSION)
        frames, last = await polled.frames(after, WAIT_MAX_S if wait_s is None else wait_s)
        body = b'{"frames":[' + b",".join(frames) + b'],"last":' + str(last).encode() + b"}"
        return Response(body, media_type="application/json")

    async def send(self, request: Request) -> Response:
        polled = self._long_poll.find(request.path_params["session"])
        if polled is None:
            return _problem(404, _NO_SESSION)
        sent = await self._body(request, msgspec.Raw)
        frames = msgspec.json.decode(sent, type=list[msgspec.Raw]) if bytes(sent).lstrip()[:1] == b"[" else [sent]
        await polled.receive(frames)
        return Response(status_code=202)

    async def _body(self, request: Request, kind: type[T]) -> T:
        return await _read_body(request, kind, self._gateway.settings.frame_bytes)


async def _answer(gateway: Gateway, handler: Handler, request: Request) -> Response:
    """The handler's answer, or the problem as JSON."""
    if not gateway.admission.origin_allowed(request.headers.get("origin"), request.headers.get("host", "")):
        return _problem(403, "this origin may not connect")
    try:
        return await handler(request)
    except ClientDisconnect:
        return Response(status_code=400)  # to nobody: the connection is gone
    except UsageError as error:
        return _problem(422, str(error))
    except Refused as error:
        return _problem(409, str(error))
    except AccessDenied as error:
        return _problem(403, str(error))
    except ClusterError as error:
        return _problem(503, str(error))
    except NearcastError as error:
        return _problem(400, str(error))
    except Exception:
        log.exception("%s %.200s failed", request.method, request.url.path)
        return _problem(500, "the gateway failed, which its operator can see: try again later")


async def _read_body(request: Request, kind: type[T], limit_bytes: int) -> T:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise UsageError(f"the body has more than {limit_bytes} bytes: send less")
    return _decoded(body, kind)


def _decoded(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise UsageError(f"bad body: {error}") from None


def _unambiguous(body: msgspec.Raw, user: str) -> bytes:
    """The body with one name in it, however somebody reads JSON: some take the first field, or do not look at case."""
    fields = _decoded(body, dict[str, msgspec.Raw])
    others = {name: value for name, value in fields.items() if name.casefold() != "user"}
    return msgspec.json.encode({"user": user} | others)


def _number(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{name}={text[:40]!r} is not a number") from None
    if number != number or abs(number) > 1e15:
        raise UsageError(f"{name}={text[:40]!r} is out of range")
    return number


def _problem(status: int, problem: str) -> JSONResponse:
    return JSONResponse({"problem": problem}, status)
