"""Carriers: what brings a client's frames to a gateway and back. A WebSocket, or long polls over plain HTTP.

A carrier opens with a login, gives what the gateway sends in order, and raises ConnectFailed once it is broken. Frames
of types that it does not know are left out: a newer gateway may send them.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import deque
from functools import cache
from typing import Any, Protocol

import httpx
import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import InvalidStatus, WebSocketException

from nearcast.errors import AuthenticationFailed, ConnectFailed, Refused
from nearcast.gateway.frames import FromGateway, Login, ToGateway, decode_for_subscriber, encode

OPEN_S = 10.0
ANSWER_S = 20.0
POLL_WAIT_S = 20.0
FRAME_BYTES_MAX = 64 << 20  # of one frame of a gateway
CLOSE_S = 1.0


class Carrier(Protocol):
    async def open(self, login: Login) -> None: ...

    async def send(self, frame: ToGateway) -> None: ...

    async def receive(self) -> FromGateway: ...

    async def close(self) -> None: ...


class WebSocketCarrier:
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
    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._http = httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, verify=_trust())
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
            await self._http.aclose()

    async def _request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            answer = await self._http.request(method, self._url + path, content=body, timeout=ANSWER_S + POLL_WAIT_S)
        except httpx.HTTPError as error:
            raise ConnectFailed(f"{self._url}: {error or type(error).__name__}") from None
        if answer.status_code == 401:
            raise AuthenticationFailed(f"{self._url}: {answer.json().get('problem', 'login refused')}")
        if answer.status_code >= 400:
            raise ConnectFailed(f"{self._url}: {answer.status_code} {answer.text[:200]}")
        return answer.content


@cache
def _trust() -> ssl.SSLContext:
    """Made once: reading all certificates takes longer than a login."""
    return ssl.create_default_context()


async def register(url: str, user: str, token: str = "", secret: str = "") -> str:
    """registeruser: a token for a new user, or a new one for the bearer of a good one."""
    headers = {"Authorization": f"Bearer {secret}".encode()} if secret else {}
    answer = await _ask("POST", f"{url}/register", json={"user": user, "token": token}, headers=headers)
    return str(answer["token"])


async def request_broker(
    url: str, user: str, latitude: float | None = None, longitude: float | None = None
) -> tuple[str, str]:
    """requestbroker: the broker and the gateway where the user should log in."""
    where = {"lat": latitude, "lon": longitude}
    query = {"user": user, **{name: value for name, value in where.items() if value is not None}}
    answer = await _ask("GET", f"{url}/broker", params=query)
    return str(answer["broker"]), str(answer["url"])


async def _ask(method: str, url: str, **request: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False, verify=_trust()) as http:
        try:
            answer = await http.request(method, url, **request)
        except httpx.HTTPError as error:
            raise ConnectFailed(f"{url}: {error or type(error).__name__}") from None
    if answer.status_code >= 500:
        raise ConnectFailed(f"{url}: {answer.status_code} {answer.text[:200]}")
    body: dict[str, Any] = answer.json()
    if answer.status_code >= 400:
        raise Refused(str(body.get("problem", answer.status_code)))
    return body
