"""Uvicorn's protocols, with an end to what they would wait for: a first request, and a peer that takes nothing.

Uvicorn asks for no request in time, so silent connections would stay for ever; and it writes nothing to a peer that
takes nothing, so the last frame, which says why, would never be sent.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from nearcast.gateway.websocket import CUT_EXTENSION

REQUEST_S = 5.0  # for the first request of a connection, all its headers
SOCKETS = 20_000  # connections in all, logged in or not; more are cut at once
_CUT_S = 10.0  # what was written to a subscriber that takes nothing is thrown away after so long


class HttpProtocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > SOCKETS:
            transport.abort()
        self.loop.call_later(REQUEST_S, self._too_late)

    def _too_late(self) -> None:
        became_websocket = self.transport.get_protocol() is not self
        request = cast(object, self.cycle)  # None before the first
        if request is None and not became_websocket:
            self.transport.abort()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    async def run_asgi(self) -> None:
        self.scope["extensions"][CUT_EXTENSION] = {"cut": self.cut}
        await super().run_asgi()

    def cut(self, last_frame: bytes, code: int, reason: str) -> None:
        """Write the last frame whether there is room or not, close, and do not wait for long."""
        if not self.close_sent and not self.transport.is_closing():
            self.conn.send_text(last_frame)
            self.conn.send_close(code, reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
        self.loop.call_later(_CUT_S, self.transport.abort)
