"""A session over a WebSocket: one task reads frames, one writes what the outbox holds.

The reader stops while too many answers wait, so a subscriber that asks and never reads fills no memory. A subscriber
that takes nothing for `stall_s` is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from nearcast.errors import Refused
from nearcast.gateway.frames import Bye, Login, Logout, encode
from nearcast.gateway.service import Gateway
from nearcast.gateway.session import Session, State

log = logging.getLogger("nearcast.gateway")

NORMAL, POLICY, TOO_BIG = 1000, 1008, 1009  # close codes of RFC 6455
CUT_EXTENSION = "nearcast.cut"  # the server's way to end a connection whose peer takes nothing
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
            if reading.done() and not writing.done() and session.state is State.ENDED:
                await writing  # what waits, and the bye
        finally:
            timer.cancel()
            for task in (reading, writing):
                task.cancel()
            for outcome in await asyncio.gather(reading, writing, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, (WebSocketDisconnect, RuntimeError)):
                    log.error("a session of %s failed: %r", session.user or session.address, outcome)

    def _too_late(self, session: Session) -> None:
        if session.state in (State.NEW, State.LOGGING_IN):
            session.end(f"no login within {self._gateway.settings.login_s:g} s")

    async def _read(self, session: Session) -> None:
        while session.state is not State.ENDED:
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
        """Until everything is sent after the session's end, or the subscriber takes nothing."""
        stall_s = self._gateway.settings.stall_s
        while True:
            frame = session.take()
            if frame is not None:
                try:
                    async with asyncio.timeout(stall_s):
                        await self._socket.send_text(frame.decode())
                except TimeoutError:
                    self._cut(session, f"you took nothing for {stall_s:g} s")
                    return
                self._emptied.set()
            elif session.state is State.ENDED:
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
