"""Uvicorn's protocols, extended with limits, and with a way to measure how far a peer is."""

from __future__ import annotations

import asyncio
import secrets

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from nearcast.core.wire.gateway import Bye, encode
from nearcast.gateway.distances import Answered
from nearcast.gateway.transports import CUT_EXTENSION, PING_EXTENSION, TOO_BIG

HEAD_S = 5.0  # for the line and headers of a request: from the connection, or from its first byte on a used one
BODY_S = 10.0  # for its body, which is at most one frame
SOCKETS = 20_000  # connections in all, logged in or not; more are cut at once
PING_BYTES = 16
FRAGMENTS = 1000  # of one message: empty ones do not count towards its size
_CUT_S = 10.0  # after this long, output for a subscriber that reads nothing is thrown away


class HttpProtocol(H11Protocol):
    """Limits the number of connections, and the time for a request.

    Uvicorn sets no deadline for a request, so silent connections, half a request or a body sent in tiny pieces would
    stay forever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._owed: tuple[object, str] | None = None  # what is due from the peer: after which request, head or body
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
        """Set the deadline for the part that the peer has begun and owes us; each part gets a new deadline."""
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
    """Limits what a peer that reads nothing can cost.

    Uvicorn writes nothing to such a peer, so the last frame, which says why, would never be sent. It also answers every
    ping and keeps every fragment of a message, so a peer that only sends could fill the memory.

    It also measures round trips.
    """

    _measuring: tuple[bytes, float, Answered] | None = None  # the newest ping: its payload, and when it was sent

    async def run_asgi(self) -> None:
        self.scope["extensions"] |= {CUT_EXTENSION: {"cut": self.cut}, PING_EXTENSION: {"ping": self.ping}}
        await super().run_asgi()

    def ping(self, answered: Answered) -> None:
        """Measure a round trip, unless what waits here would be measured too.

        Nor while uvicorn waits for a pong: RFC 6455 lets a peer answer only the newest ping, and uvicorn would end the
        connection. The payload cannot be guessed, so no pong comes sooner than the ping.
        """
        unclear = self.pending_ping_payload is not None or self.transport.get_write_buffer_size() > 0
        if unclear or self.transport.is_closing() or self.conn.state is not State.OPEN:
            return
        payload = secrets.token_bytes(PING_BYTES)
        self.conn.send_ping(payload)
        self._measuring = (payload, self.loop.time(), answered)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def handle_pong(self, event: Frame) -> None:
        """Only the newest ping counts, and only once."""
        if self._measuring is None or bytes(event.data) != self._measuring[0]:
            super().handle_pong(event)
            return
        _, sent_s, answered = self._measuring
        self._measuring = None
        answered(self.loop.time() - sent_s)

    def handle_ping(self) -> None:
        """RFC 6455 allows us to skip pongs: those for a peer that reads nothing would pile up here."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < FRAGMENTS:
            super().handle_cont(event)
        else:
            self.frames = []
            reason = f"a message has more than {FRAGMENTS} fragments: send larger ones"
            self.cut(encode(Bye(reason)), TOO_BIG, reason)

    def cut(self, last_frame: bytes, code: int, reason: str) -> None:
        """Write the last frame whether there is room or not, close, and do not wait long."""
        if not self.close_sent and not self.transport.is_closing():
            self.conn.send_text(last_frame)
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
        self.loop.call_later(_CUT_S, self.transport.abort)
