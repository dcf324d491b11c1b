"""The gateway's server: its HTTP interface, run by uvicorn in the agent's process, which handles its own signals.

WebSocket at /ws, long polls at /session, and what comes before a login:

POST /register {"user"}                       -> {"user", "token"}
GET  /gateways                                -> {broker: URL}: which there are
GET  /broker?user=ann&lat=48.8&lon=2.3        -> {"broker", "url"}: where to log in
     &rtt=b1:0.0123&rtt=b2:0.0345             round trips to gateways, in seconds, if the user has measured some
GET  /health
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from nearcast.core.wire.gateway import Login, Number
from nearcast.core.wire.probes import LONGEST_S
from nearcast.errors import AccessDenied, ClusterError, NearcastError, Refused, UsageError
from nearcast.gateway.protocols import HttpProtocol, WebSocketProtocol
from nearcast.gateway.registrar import Applicant
from nearcast.gateway.service import Gateway
from nearcast.gateway.transports import WAIT_MAX_S, LongPoll, WebSocketSession

log = logging.getLogger("nearcast.gateway")

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]

ROUND_TRIPS_MAX = 64  # of one user that asks where to log in
_NO_SESSION = "no such session: log in again"


class _Register(msgspec.Struct):
    user: str
    token: str = ""


class _Credentials(msgspec.Struct):
    user: str
    token: str
    cursors: dict[str, Number] = {}


# --- the interface


def create_app(gateway: Gateway) -> Starlette:
    """The application for one gateway, which it neither starts nor stops."""
    doors = _Doors(gateway)
    routes = [
        WebSocketRoute("/ws", doors.ws),
        Route("/register", doors.guarded(doors.register), methods=["POST"]),
        Route("/gateways", doors.guarded(doors.gateways)),
        Route("/broker", doors.guarded(doors.broker)),
        Route("/session", doors.guarded(doors.login), methods=["POST"]),
        Route("/session/{session}/frames", doors.guarded(doors.fetch)),
        Route("/session/{session}/frames", doors.guarded(doors.send), methods=["POST"]),
        Route("/health", doors.guarded(doors.health)),
    ]
    # Browsers let a page of another host read an answer only if the answer allows it.
    cors = Middleware(
        CORSMiddleware, allow_origins=list(gateway.settings.origins), allow_methods=["*"], allow_headers=["*"]
    )
    return Starlette(routes=routes, middleware=[cors], lifespan=doors.lifespan)


class _Doors:
    """The entry points of one gateway."""

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
            return _problem(429, "too many registrations from this address: wait a minute")
        shown = request.headers.get("authorization", "").encode("latin-1")  # undoes how it was decoded
        applicant = Applicant(asked.user, address, _unambiguous(body, asked.user), shown)
        token = await self._gateway.register(applicant, asked.token)
        return JSONResponse({"user": asked.user, "token": token}, 201)

    async def gateways(self, request: Request) -> Response:
        return JSONResponse(await self._gateway.directory.gateways())

    async def broker(self, request: Request) -> Response:
        query = request.query_params
        latitude, longitude = (_number(query.get(name), name) for name in ("lat", "lon"))
        round_trips_s = _round_trips_s(query.getlist("rtt"))
        name, url = await self._gateway.request(query.get("user", ""), latitude, longitude, round_trips_s)
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
        return Response(status_code=400)  # never received: the connection is gone
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
        return _problem(500, "the gateway failed and has logged the error: try again later")


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
    """The body with one name in it, however it is parsed: some parsers take the first field, or ignore case."""
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


def _round_trips_s(given: list[str]) -> dict[str, float]:
    if len(given) > ROUND_TRIPS_MAX:
        raise UsageError(f"{len(given)} round trips: give at most {ROUND_TRIPS_MAX}, of the nearest gateways")
    found: dict[str, float] = {}
    for text in given:
        broker, _, seconds = text.rpartition(":")
        one_s = _number(seconds, "rtt")
        if not broker or one_s is None or not 0.0 < one_s <= LONGEST_S:
            raise UsageError(f"rtt={text[:40]!r}: give BROKER:SECONDS, such as b1:0.0123, at most {LONGEST_S:g} s")
        found[broker] = one_s
    return found


def _problem(status: int, problem: str) -> JSONResponse:
    return JSONResponse({"problem": problem}, status)


# --- the server


_STARTED_LOOK_S = 0.01
_STOP_S = 3  # for connections to end by themselves


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the agent's own process handles them


class GatewayServer:
    """Serves one gateway at one address, from `start` to `stop`: a part of the agent process."""

    def __init__(self, gateway: Gateway, listening: socket.socket) -> None:
        config = uvicorn.Config(
            create_app(gateway),
            lifespan="on",
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=gateway.settings.frame_bytes,
            ws_per_message_deflate=False,  # a shared frame would be compressed once per subscriber: too costly
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # see `Proxies` in access.py
            timeout_graceful_shutdown=_STOP_S,
        )
        self._gateway = gateway
        self._socket = listening
        self._server = _Uvicorn(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when subscribers can connect."""
        await self._gateway.start()
        self._serving = asyncio.create_task(self._server.serve([self._socket]))
        while not self._server.started:
            if self._serving.done():
                self._serving.result()
            await asyncio.sleep(_STARTED_LOOK_S)
        log.info("gateway of broker %s; subscribers connect to %s", self._gateway.broker, self._gateway.url)

    @property
    def problem(self) -> str:
        """What failed unexpectedly in the gateway a short while ago, in words; empty if nothing did."""
        return self._gateway.problem

    async def ended(self) -> None:
        """Returns when it no longer serves."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def stop(self) -> None:
        await self._gateway.stop()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()


def listen(address: str) -> tuple[socket.socket, str]:
    """A socket that listens at HOST:PORT, and the URL at which it answers; port 0 picks a free port."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise UsageError(f"bad gateway address {address!r}: use HOST:PORT, such as 127.0.0.1:8080")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))
        listening.listen()  # only now is the address taken: it may be long until the gateway serves
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(f"gateway address {address!r}: {error}: choose another") from None
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return listening, f"http://{shown}:{listening.getsockname()[1]}"
