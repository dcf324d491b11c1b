"""The transports of a session: long polls over plain HTTP, and WebSockets.

With long polls, frames are fetched by polling and stay until the next poll confirms them:

    POST /session {"user", "token", "cursors"}       -> {"session": ID}
    GET  /session/ID/frames?after=N&wait_s=20        -> {"frames": [...], "last": M}; then ask after=M
    POST /session/ID/frames FRAME or [FRAME, ...]    -> 202; answers come with the frames

A lost answer is asked for again with the same `after`. A session without polls ends after `poll_s`.

Over a WebSocket, one task reads frames, and one writes what the outbox holds. The reader stops while too many answers
wait, so a subscriber that asks and never reads fills no memory. A subscriber that reads nothing for `stall_s` is
disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque

import msgspec
from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from nearcast.core.wire.gateway import Bye, Login, Logout, Operation, encode
from nearcast.errors import Refused
from nearcast.gateway.service import Gateway
from nearcast.gateway.session import Session, SessionState

# --- long polls


FRAMES_MAX = 100  # in one answer
BYTES_MAX = 1 << 20  # in one answer, beyond the first frame
WAIT_MAX_S = 30.0
_LOOK_S = 1.0  # between two checks for sessions without polls


class Polled:
    """One session: frames fetched but not confirmed yet are in `_sent`, numbered."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self._gateway = gateway
        self._filled = asyncio.Event()
        self.session = gateway.open_session(address, self._filled.set)
        self._sent: deque[tuple[int, bytes]] = deque()
        self._last = 0
        self._polling = 0
        self._seen_s = self._now_s()

    @property
    def is_forgotten(self) -> bool:
        """Whether polling has stopped."""
        return not self._polling and self._now_s() - self._seen_s > self._gateway.settings.poll_s

    @property
    def is_over(self) -> bool:
        """Whether the session has ended and its last frame was confirmed."""
        return self.session.state is SessionState.ENDED and not self._sent and not len(self.session.outbox)

    async def receive(self, frames: list[msgspec.Raw]) -> None:
        self._seen_s = self._now_s()
        for frame in frames:
            if self.session.is_choked:
                raise Refused("too many frames are waiting for you: fetch them first")
            await self._carry_out(self.session.receive(bytes(frame)))

    async def _carry_out(self, asked: Login | Operation | Logout | None) -> None:
        if isinstance(asked, Logout):
            await self._gateway.logout(self.session)
            await self._gateway.close_session(self.session)  # what waits can still be fetched
        elif asked is not None and not isinstance(asked, Login):  # the login was the request that made the session
            self._gateway.perform(self.session, asked)

    async def frames(self, after: int, wait_s: float) -> tuple[list[bytes], int]:
        """Frames after a number, which confirms those up to it; waits for the first frame."""
        self._polling += 1
        try:
            while self._sent and self._sent[0][0] <= after:
                self._sent.popleft()
            if not self._sent:
                await self._fill(min(wait_s, WAIT_MAX_S))
            return [frame for _, frame in self._sent], self._last
        finally:
            self._polling -= 1
            self._seen_s = self._now_s()

    async def _fill(self, wait_s: float) -> None:
        deadline_s = self._now_s() + wait_s
        while not len(self.session.outbox) and self.session.state is not SessionState.ENDED:
            self._filled.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline_s - self._now_s())):
                    await self._filled.wait()
            except TimeoutError:
                return
        size = 0
        while len(self._sent) < FRAMES_MAX and size < BYTES_MAX and (frame := self.session.take()) is not None:
            self._last += 1
            self._sent.append((self._last, frame))
            size += len(frame)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


class LongPoll:
    """All long-poll sessions of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._polled: dict[str, Polled] = {}

    async def open(self, address: str, login: Login) -> tuple[str, Session]:
        """A new session; it has already ended if the login was refused."""
        polled = Polled(self._gateway, address)
        asked = polled.session.receive(msgspec.json.encode(login))
        assert isinstance(asked, Login)
        if not await self._gateway.login(polled.session, asked):
            await self._gateway.close_session(polled.session)
            return "", polled.session
        name = secrets.token_urlsafe(24)
        self._polled[name] = polled
        return name, polled.session

    def find(self, name: str) -> Polled | None:
        return self._polled.get(name)

    async def watch(self) -> None:
        """Close the sessions that have ended or are no longer polled; runs until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for name, polled in list(self._polled.items()):
                if polled.is_forgotten or polled.is_over:
                    del self._polled[name]
                if polled.session.state is SessionState.ENDED or polled.is_forgotten:
                    await self._gateway.close_session(polled.session)


# --- WebSockets


log = logging.getLogger("nearcast.gateway")

NORMAL, POLICY, TOO_BIG = 1000, 1008, 1009  # close codes of RFC 6455
PING_EXTENSION = "nearcast.ping"  # the server's way to measure a round trip
CUT_EXTENSION = "nearcast.cut"  # the server's way to end a connection whose peer reads nothing
_CLOSE_S = 1.0


class WebSocketSession:
    """One connection, from its request to its end."""

    def __init__(self, gateway: Gateway, socket: WebSocket) -> None:
        self._gateway = gateway
        self._socket = socket
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()

    async def serve(self) -> None:
        socket, admission = self._socket, self._gateway.admission
        if not admission.origin_allowed(socket.headers.get("origin"), socket.headers.get("host", "")):
            await socket.send_denial_response(JSONResponse({"problem": "this origin may not connect"}, 403))
            return
        try:
            session = self._gateway.open_session(admission.address_of(socket), self._filled.set)
        except Refused as refused:
            await socket.send_denial_response(JSONResponse({"problem": str(refused)}, 429))
            return
        try:
            await socket.accept()
            self._gateway.pings.add(session, socket.scope["extensions"][PING_EXTENSION]["ping"], time.monotonic())
            await self._run(session)
        except WebSocketDisconnect:
            pass
        finally:
            await self._gateway.close_session(session)

    async def _run(self, session: Session) -> None:
        login_s = self._gateway.settings.login_s
        timer = asyncio.get_running_loop().call_later(login_s, self._too_late, session)
        reading = asyncio.create_task(self._read(session))
        writing = asyncio.create_task(self._write(session))
        try:
            await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not writing.done() and session.state is SessionState.ENDED:
                await writing  # what waits, and the bye
        finally:
            timer.cancel()
            for task in (reading, writing):
                task.cancel()
            for outcome in await asyncio.gather(reading, writing, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, (WebSocketDisconnect, RuntimeError)):
                    log.error("a session of %s failed: %r", session.user or session.address, outcome)

    def _too_late(self, session: Session) -> None:
        if session.state in (SessionState.NEW, SessionState.LOGGING_IN):
            session.end(f"no login within {self._gateway.settings.login_s:g} s")

    async def _read(self, session: Session) -> None:
        while session.state is not SessionState.ENDED:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            asked = session.receive(message.get("text") or message.get("bytes") or b"")
            if isinstance(asked, Login):
                await self._gateway.login(session, asked)
            elif isinstance(asked, Logout):
                await self._gateway.logout(session)
            elif asked is not None:
                self._gateway.perform(session, asked)
            while session.is_choked:
                self._emptied.clear()
                await self._emptied.wait()

    async def _write(self, session: Session) -> None:
        """Write until everything is sent after the session's end, or the subscriber reads nothing."""
        stall_s = self._gateway.settings.stall_s
        while True:
            frame = session.take()
            if frame is not None:
                try:
                    async with asyncio.timeout(stall_s):
                        await self._socket.send_text(frame.decode())
                except TimeoutError:
                    self._cut(session, f"you read nothing for {stall_s:g} s")
                    return
                self._emptied.set()
            elif session.state is SessionState.ENDED:
                await self._close(NORMAL, session.ending)
                return
            else:
                self._filled.clear()
                await self._filled.wait()

    def _cut(self, session: Session, reason: str) -> None:
        session.end(reason)
        cut = self._socket.scope["extensions"][CUT_EXTENSION]["cut"]
        cut(encode(Bye(reason)), POLICY, reason)

    async def _close(self, code: int, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._socket.close(code, reason[:100])  # a close frame holds 123 bytes
