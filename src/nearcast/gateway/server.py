"""The gateway's server: uvicorn inside the process of the agent, which keeps its signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from nearcast.errors import UsageError
from nearcast.gateway.app import create_app
from nearcast.gateway.protocols import HttpProtocol, WebSocketProtocol
from nearcast.gateway.service import Gateway

_STARTED_LOOK_S = 0.01
_STOP_S = 3  # for connections to end by themselves


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # whoever runs the agent handles them


class GatewayServer:
    """Serves one gateway at one address, from `start` to `stop`."""

    def __init__(self, gateway: Gateway, listening: socket.socket) -> None:
        config = uvicorn.Config(
            create_app(gateway),
            lifespan="on",
            http=HttpProtocol,
            ws=WebSocketProtocol,
            ws_max_size=gateway.settings.frame_bytes,
            ws_per_message_deflate=False,  # a shared frame is compressed once for each subscriber, which costs too much
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,  # see addresses.py
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

    async def ended(self) -> None:
        """Returns when it serves no longer."""
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def stop(self) -> None:
        await self._gateway.stop()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        self._socket.close()


def listen(address: str) -> tuple[socket.socket, str]:
    """A socket that listens at HOST:PORT, and the URL of what answers there; port 0 takes a free one."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise UsageError(f"bad gateway address {address!r}: use HOST:PORT, such as 127.0.0.1:8080")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, int(port)))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(f"gateway address {address!r}: {error}: choose another") from None
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return listening, f"http://{shown}:{listening.getsockname()[1]}"
