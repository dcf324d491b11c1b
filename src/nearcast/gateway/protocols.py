"""Uvicorn's protocols, with an end to what they would wait for: bytes of a request, and a peer that takes nothing.

Uvicorn asks for no request in time, so silent connections, half of a request, or a body in small drops would stay for
ever; and it writes nothing to a peer that takes nothing, so the last frame, which says why, would never be sent. Beside
that it answers each ping and keeps each fragment of a message, so a peer that only sends could fill the memory.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from nearcast.gateway.frames import Bye, encode
from nearcast.gateway.websocket import CUT_EXTENSION, TOO_BIG

HEAD_S = 5.0  # for the line and headers of a request: from the connection, or from its first byte on a used one
BODY_S = 10.0  # for its body, which is at most one frame
SOCKETS = 20_000  # connections in all, logged in or not; more are cut at once
FRAGMENTS = 1000  # of one message: empty ones count for no size
_CUT_S = 10.0  # what was written to a subscriber that takes nothing is thrown away after so long


class HttpProtocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._owed: tuple[object, str] | None = None  # the part of a request that has begun: after which, and what
        self._deadline: asyncio.TimerHandle | None = None
        if len(self.connections) > SOCKETS:
            transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._await(None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Set the deadline of what the peer has begun and owes us; a part that came in time has a new one."""
        state, begun = self.conn.their_state, bool(self.conn.trailing_data[0])
        if state is h11.SEND_BODY:
            self._await((self.cycle, "body"))
        elif state is h11.IDLE and (begun or self.cycle is None):
            self._await((self.cycle, "head"))
        else:
            self._await(None)

    def _await(self, owed: tuple[object, str] | None) -> None:
        if owed == self._owed:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._owed = owed
        if owed is None:
            self._deadline = None
        else:
            self._deadline = self.loop.call_later(BODY_S if owed[1] == "body" else HEAD_S, self._too_late)

    def _too_late(self) -> None:
        became_websocket = self.transport.get_protocol() is not self
        if not became_websocket:
            self.transport.abort()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    async def run_asgi(self) -> None:
        self.scope["extensions"][CUT_EXTENSION] = {"cut": self.cut}
        await super().run_asgi()

    def handle_ping(self) -> None:
        """RFC 6455 lets us leave out pongs: those for a peer that takes none would wait here without end."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < FRAGMENTS:
            super().handle_cont(event)
        else:
            self.frames = []
            reason = f"a message of more than {FRAGMENTS} fragments: send larger ones"
            self.cut(encode(Bye(reason)), TOO_BIG, reason)

    def cut(self, last_frame: bytes, code: int, reason: str) -> None:
        """Write the last frame whether there is room or not, close, and do not wait for long."""
        if not self.close_sent and not self.transport.is_closing():
            self.conn.send_text(last_frame)
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
        self.loop.call_later(_CUT_S, self.transport.abort)
