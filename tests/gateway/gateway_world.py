"""A data cluster without Spark, whose executions a test commits by hand, and gateways in this process.

Everything else is real: HTTP, WebSockets, and a Valkey server as store.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import uvicorn
from starlette.responses import PlainTextResponse

from nearcast.core.wire.gateway import Result
from nearcast.gateway.server import GatewayServer, listen
from nearcast.gateway.service import Gateway
from nearcast.gateway.settings import GatewaySettings
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.datasets import Segment
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.results import measured
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.subscriber.client import Event, Subscriber
from nearcast.testing.waiting import until

REPORTS = "id INT NOT NULL, kind STRING, lat DOUBLE, lon DOUBLE, message STRING"
BY_KIND = (
    "CREATE CHANNEL by_kind(kind STRING) PERIOD 10 SECONDS AS SELECT id, message FROM NEW reports WHERE kind = :kind"
)
WAIT_S = 30.0

Rows = list[dict[str, Any]]
ROW = {"id": 1, "message": "smoke"}


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class DataCluster:
    """The real REST application over a real catalogue; a test plays the part of Spark."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self.requests: Counter[str] = Counter()
        self.poison: tuple[bytes, int] | None = None  # a body that holds it is answered with this status
        self._folder = folder
        self._store = Requester(store_url)
        self._port = 0
        self._server: uvicorn.Server | None = None

    async def start(self) -> None:
        self.catalog = Catalog(self._folder)
        if "reports" not in self.catalog.datasets.names():
            self.catalog.datasets.create("reports", REPORTS)
        self._app = create_app(self.catalog)
        config = uvicorn.Config(
            self._counted(self._app), log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        self._port = listening.getsockname()[1]
        self._listening = listening
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve([listening]))
        server = self._server
        await until(lambda: server.started)
        await self._store.ask("SET", "nc:data", json.dumps({"url": f"http://127.0.0.1:{self._port}"}))

    async def stop(self) -> None:
        if self._server is not None:
            self._app.state.service.commits.close()
            self._server.should_exit = True
            await self._serving
            self._server = None
            self._listening.close()
            self.catalog.close()

    async def close(self) -> None:
        await self.stop()
        await self._store.close()

    def _counted(self, app: Any) -> Any:
        async def counting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.requests[f"{scope['method']} {scope['path'].split('/')[1]}"] += 1
            if self.poison is None or scope["type"] != "http" or scope["method"] != "POST":
                await app(scope, receive, send)
                return
            message = await receive()
            if self.poison[0] in message["body"]:
                await PlainTextResponse("cannot take this", self.poison[1])(scope, receive, send)
                return
            waiting = iter([message])

            async def received() -> Any:
                return next(waiting, None) or await receive()

            await app(scope, received, send)

        return counting

    async def create_channel(self, text: str = BY_KIND) -> None:
        import httpx

        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"http://127.0.0.1:{self._port}/channels", json={"text": text})
        assert answer.status_code in (200, 201), answer.text

    async def execute(self, results: Mapping[str, Rows], channel: str = "by_kind") -> int:
        """One execution over a new batch that gives these rows; its number."""
        return await asyncio.to_thread(self._execute, results, channel)

    def _execute(self, results: Mapping[str, Rows], channel: str) -> int:
        number = self.catalog.datasets.position("reports") + 1
        segment = Segment(first=number, last=number, rows=1, bytes=100, made_s=self.catalog.clock())
        self.catalog.datasets.commit("reports", segment)
        execution = self.catalog.next_execution(self.catalog.channels.get(channel))
        assert execution is not None
        folder = self.catalog.warehouse.results(channel, execution.number)
        folder.mkdir(parents=True)
        rows = [{"subscription_id": name, **row} for name, of_one in results.items() for row in of_one]
        if rows:
            pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
        assert self.catalog.executions.commit(execution, measured(folder))
        return execution.number

    def held(self) -> dict[str, int]:
        """How many backend subscriptions each broker holds."""
        return {name: len(self.catalog.subscriptions.held_by(name)) for name in self.catalog.brokers.all()}


class World:
    """A store, a data cluster, and gateways by broker."""

    def __init__(self, store: LocalServer, data: DataCluster) -> None:
        self.store = store
        self.data = data
        self.servers: dict[str, GatewayServer] = {}
        self.gateways: dict[str, Gateway] = {}

    async def start_gateway(self, broker: str = "b1", port: int = 0, **settings: Any) -> str:
        listening, url = listen(f"127.0.0.1:{port}")
        gateway = Gateway(broker, url, self.store.url, self.store.url, settings=GatewaySettings(**settings))
        self.servers[broker] = GatewayServer(gateway, listening)
        self.gateways[broker] = gateway
        await self.servers[broker].start()
        return url

    async def stop_gateway(self, broker: str) -> None:
        await self.servers.pop(broker).stop()
        del self.gateways[broker]

    async def until_notified(self, broker: str = "b1") -> None:
        """The gateway's long poll has its first cursor."""
        await until(lambda: self.gateways[broker].health["data_cluster"] == "connected")


@contextlib.asynccontextmanager
async def a_world(folder: Path) -> AsyncIterator[World]:
    store = await LocalServer.start(name="store")
    data = DataCluster(folder / "data", store.url)
    world = World(store, data)
    try:
        await data.start()
        await data.create_channel()
        yield world
    finally:
        for broker in list(world.servers):
            await world.stop_gateway(broker)
        await data.close()
        await store.stop()


async def take(subscriber: Subscriber, count: int) -> list[Event]:
    async with asyncio.timeout(WAIT_S):
        return [await subscriber.get() for _ in range(count)]


async def take_results(subscriber: Subscriber, count: int) -> list[int]:
    """The executions of the next results; nothing else may come."""
    events = await take(subscriber, count)
    assert all(isinstance(event, Result) for event in events), events
    return [event.execution for event in events if isinstance(event, Result)]


def no_more(subscriber: Subscriber) -> bool:
    return subscriber._events.empty()


Worlds = Callable[[], contextlib.AbstractAsyncContextManager[World]]
