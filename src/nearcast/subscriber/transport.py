"""How a subscriber's client talks to gateways: carriers of frames, lines over them, and progress across lines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Protocol

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import InvalidStatus, WebSocketException

from nearcast.core.wire.gateway import (
    LOGGED_OUT,
    Ack,
    Bye,
    Done,
    FromGateway,
    Login,
    Logout,
    Missed,
    Operation,
    Result,
    ToGateway,
    TopicMessage,
    Welcome,
    decode_for_subscriber,
    encode,
)
from nearcast.core.wire.gateway import Refused as RefusedFrame
from nearcast.errors import AuthenticationFailed, ConnectFailed, ProtocolError, Refused
from nearcast.runtime.http import HttpClient

# --- carriers


OPEN_S = 10.0
ANSWER_S = 20.0
POLL_WAIT_S = 20.0
REQUESTS_AT_ONCE = 8  # of a client that polls: one waits for frames, the others bring some
FRAME_BYTES_MAX = 64 << 20  # of one frame of a gateway
CLOSE_S = 1.0


class Carrier(Protocol):
    """Carries frames between a client and a gateway, over a WebSocket or by long polls over plain HTTP.

    It opens with a login, returns what the gateway sends in order, and raises ConnectFailed once it is broken. Frames
    of unknown types are skipped, because a newer gateway may send them.
    """

    async def open(self, login: Login) -> None: ...

    async def send(self, frame: ToGateway) -> None: ...

    async def receive(self) -> FromGateway: ...

    async def close(self) -> None: ...


class WebSocketCarrier:
    """Carries frames over a WebSocket."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._socket: ClientConnection | None = None

    async def open(self, login: Login) -> None:
        address = "ws" + self._url.removeprefix("http").rstrip("/") + "/ws"
        try:
            self._socket = await connect_websocket(
                address,
                max_size=FRAME_BYTES_MAX,
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                compression=None,
                proxy=None,
            )
            await self.send(login)
        except InvalidStatus as error:
            body = (error.response.body or b"")[:200].decode("utf-8", "replace")
            raise ConnectFailed(f"{self._url}: {error.response.status_code} {body}") from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise ConnectFailed(f"{self._url}: {error}") from None

    async def send(self, frame: ToGateway) -> None:
        assert self._socket is not None
        try:
            await self._socket.send(encode(frame), text=True)
        except (OSError, WebSocketException) as error:
            raise ConnectFailed(f"{self._url}: {error}") from None

    async def receive(self) -> FromGateway:
        assert self._socket is not None
        try:
            while (frame := decode_for_subscriber(await self._socket.recv(decode=False))) is None:
                pass
            return frame
        except (OSError, WebSocketException) as error:
            raise ConnectFailed(f"{self._url}: {error}") from None

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()


class _Opened(msgspec.Struct):
    session: str


class _Fetched(msgspec.Struct):
    frames: list[msgspec.Raw]
    last: int


class LongPollCarrier:
    """Carries frames by long polls over plain HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._http = HttpClient(REQUESTS_AT_ONCE, verify=trust())
        self._session = ""
        self._frames: deque[FromGateway] = deque()
        self._last = 0

    async def open(self, login: Login) -> None:
        body = {"user": login.user, "token": login.token, "cursors": login.cursors}
        answer = await self._request("POST", "/session", msgspec.json.encode(body))
        self._session = msgspec.json.decode(answer, type=_Opened).session

    async def send(self, frame: ToGateway) -> None:
        await self._request("POST", f"/session/{self._session}/frames", encode(frame))

    async def receive(self) -> FromGateway:
        while not self._frames:
            path = f"/session/{self._session}/frames?after={self._last}&wait_s={POLL_WAIT_S}"
            fetched = msgspec.json.decode(await self._request("GET", path), type=_Fetched)
            self._last = fetched.last
            frames = map(decode_for_subscriber, fetched.frames)
            self._frames.extend(frame for frame in frames if frame is not None)
        return self._frames.popleft()

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError):
            await self._http.close()

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            answer = await self._http.request(method, self._url + path, content=body, timeout=ANSWER_S + POLL_WAIT_S)
        except httpx.HTTPError as error:
            raise ConnectFailed(f"{self._url}: {str(error) or type(error).__name__}") from None
        if answer.status_code == 401:
            raise AuthenticationFailed(f"{self._url}: {answer.json().get('problem', 'login refused')}")
        if answer.status_code >= 400:
            raise ConnectFailed(f"{self._url}: {answer.status_code} {answer.text[:200]}")
        return answer.content


@cache
def trust() -> ssl.SSLContext:
    """Made once: reading all certificates takes longer than a login."""
    return ssl.create_default_context()


async def register(url: str, user: str, token: str = "", secret: str = "") -> str:
    """registeruser: a token for a new user, or a new token for the bearer of a valid one."""
    headers = {"Authorization": f"Bearer {secret}".encode()} if secret else {}
    answer = await _ask("POST", f"{url}/register", json={"user": user, "token": token}, headers=headers)
    return str(answer["token"])


async def gateways(url: str) -> dict[str, str]:
    """The cluster's gateways by broker, as one of them knows them."""
    return {broker: str(found) for broker, found in (await _ask("GET", f"{url}/gateways")).items()}


async def request_broker(
    url: str,
    user: str,
    latitude: float | None = None,
    longitude: float | None = None,
    round_trips_s: Mapping[str, float] | None = None,
) -> tuple[str, str]:
    """requestbroker: the broker and the gateway where the user should log in. `round_trips_s`: measured, by broker."""
    where = {"lat": latitude, "lon": longitude}
    query: dict[str, Any] = {"user": user, **{name: value for name, value in where.items() if value is not None}}
    query["rtt"] = [f"{broker}:{one_s:.6f}" for broker, one_s in (round_trips_s or {}).items()]
    answer = await _ask("GET", f"{url}/broker", params=query)
    return str(answer["broker"]), str(answer["url"])


async def _ask(method: str, url: str, **request: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, verify=trust()) as http:
        try:
            answer = await http.request(method, url, **request)
        except httpx.HTTPError as error:
            raise ConnectFailed(f"{url}: {str(error) or type(error).__name__}") from None
    if answer.status_code >= 500:
        raise ConnectFailed(f"{url}: {answer.status_code} {answer.text[:200]}")
    body: dict[str, Any] = answer.json()
    if answer.status_code >= 400:
        raise Refused(str(body.get("problem", answer.status_code)))
    return body


# --- lines


log = logging.getLogger("nearcast.subscriber")

WELCOME_S = 15.0  # the gateway may wait for the data cluster
LEAVE_S = 5.0  # for the answers and frames that are still in flight


class Line:
    """A client's session at one gateway. During a move a client has two.

    `receive(line, frame)` gets every frame that does not answer an operation.
    """

    def __init__(self, url: str, carrier: Carrier, receive: Callable[[Line, FromGateway], Awaitable[None]]) -> None:
        self.url = url
        self.goodbye = ""  # the reason of the gateway's bye
        self.final = False  # whether it said not to come back
        self.reading: asyncio.Task[None] | None = None  # done when the line has ended
        self._carrier = carrier
        self._receive = receive
        self._unanswered: dict[int, asyncio.Future[Done]] = {}

    async def open(self, login: Login) -> Welcome:
        """Log in. AuthenticationFailed: our token is not valid. ConnectFailed: not now, or no answer."""
        try:
            async with asyncio.timeout(WELCOME_S):
                await self._carrier.open(login)
                answer = await self._carrier.receive()
        except TimeoutError:
            await self.close()
            raise ConnectFailed(f"{self.url}: no welcome within {WELCOME_S:g} s") from None
        except BaseException:
            await self.close()
            raise
        if isinstance(answer, Welcome):
            return answer
        await self.close()
        if isinstance(answer, RefusedFrame) and answer.final:
            raise AuthenticationFailed(f"{self.url}: {answer.problem}")
        raise ConnectFailed(f"{self.url}: {answer}")

    def start(self) -> asyncio.Task[None]:
        """Begin to read."""
        self.reading = asyncio.create_task(self._read())
        return self.reading

    async def ask(self, operation: Operation) -> Done:
        """The answer to an operation. ConnectFailed: the line ended before it came."""
        if self.reading is None or self.reading.done():
            raise ConnectFailed(f"{self.url}: the session has ended")
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._unanswered[operation.ref] = future
        try:
            await self._carrier.send(operation)
            return await future
        finally:
            self._unanswered.pop(operation.ref, None)

    async def acknowledge(self, subscription: str, execution: int) -> None:
        await self._carrier.send(Ack(subscription, execution))

    async def answered(self) -> bool:
        """Whether all operations have their answers; waits a while for them."""
        if not self._unanswered:
            return True
        _, pending = await asyncio.wait(list(self._unanswered.values()), timeout=LEAVE_S)
        return not pending

    async def leave(self) -> bool:
        """Log out. Returns whether everything that was in flight has arrived."""
        await self.answered()
        with contextlib.suppress(ConnectFailed):
            await self._carrier.send(Logout())
            if self.reading is not None:
                await asyncio.wait([self.reading], timeout=LEAVE_S)
        await self.close()
        return self.goodbye == LOGGED_OUT

    async def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
        await self._carrier.close()

    async def _read(self) -> None:
        try:
            while not self.goodbye:
                await self._handle(await self._carrier.receive())
        except (ConnectFailed, ProtocolError, AuthenticationFailed) as error:
            self.goodbye = str(error)
        except Exception as error:
            log.exception("the session at %s failed", self.url)
            self.goodbye = f"an unexpected error: {error!r}"
        finally:
            for future in self._unanswered.values():
                if not future.done():
                    future.set_exception(ConnectFailed(f"{self.url}: {self.goodbye or 'closed'}"))

    async def _handle(self, frame: FromGateway) -> None:
        if isinstance(frame, Bye):
            self.goodbye, self.final = frame.reason, frame.final
        elif isinstance(frame, (Done, RefusedFrame)) and frame.ref is not None:
            future = self._unanswered.get(frame.ref)
            if future is not None and not future.done():
                if isinstance(frame, Done):
                    future.set_result(frame)
                else:
                    future.set_exception(Refused(frame.problem))
        else:
            await self._receive(self, frame)


# --- progress


_PUBLISHERS = 10_000  # remembered over all topics; the one not heard for longest is forgotten


class Progress:
    """What one client has received over all its connections, so that it receives each thing once.

    For results that is the last execution of each subscription; for topic messages, the last number of each publisher
    on each topic. Everything comes in order from each gateway, so what is at or below the last number is a repeat.
    """

    def __init__(self) -> None:
        self.cursors: dict[str, int] = {}
        self.repeats = 0
        self._heard: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_new(self, frame: FromGateway) -> bool:
        """Whether the frame is not a repeat; a new one then counts as received."""
        match frame:
            case Result():
                new = self._advance(frame.subscription, frame.execution)
            case Missed():
                new = self._advance(frame.subscription, frame.upto)
            case TopicMessage():
                new = self._hear((frame.topic, frame.publisher), frame.sequence)
            case _:
                return True
        self.repeats += not new
        return new

    def forget(self, subscription: str) -> None:
        """It was unsubscribed; a later subscription with the same parameters starts from scratch."""
        self.cursors.pop(subscription, None)

    def _advance(self, subscription: str, execution: int) -> bool:
        new = execution > self.cursors.get(subscription, 0)
        if new:
            self.cursors[subscription] = execution
        return new

    def _hear(self, line: tuple[str, str], sequence: int) -> bool:
        last = self._heard.pop(line, 0)
        self._heard[line] = max(sequence, last)
        if len(self._heard) > _PUBLISHERS:
            self._heard.popitem(last=False)
        return sequence > last
