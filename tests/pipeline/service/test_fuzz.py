"""Nobody outside can stop anything: a gateway and a data cluster with Spark under inputs drawn from a seed.

Frames, requests and raw bytes go to a gateway, requests to the REST API, while an honest user publishes through the
gateway to a feed and gets the answers of a channel. Nothing may fail with 5xx, no worker may end or fail, memory must
stay as it is, and the honest user gets every answer once. `NEARCAST_FUZZ_INPUTS` and `NEARCAST_FUZZ_SEED` make it
longer, or another: `make soak`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from hostile import Request, requests
from hostile_gateway import frames, gateway_requests, raw_bytes
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from nearcast.core.wire.gateway import Result
from nearcast.gateway.server import GatewayServer, listen
from nearcast.gateway.service import Gateway
from nearcast.gateway.settings import GatewaySettings
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.engine import SparkEngine
from nearcast.pipeline.service.process import Announcement
from nearcast.pipeline.service.state import ServiceSettings
from nearcast.subscriber.client import Subscriber
from nearcast.subscriber.transport import register
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

INPUTS = int(os.environ.get("NEARCAST_FUZZ_INPUTS", "2000"))
SEED = int(os.environ.get("NEARCAST_FUZZ_SEED", "1"))
MORE_MEMORY_BYTES = 64 << 20  # after a third of the inputs; what one of the faults this found cost in two seconds
ANSWER_S = 60.0  # for the honest user: Spark on a busy machine
CALLS = "CREATE CHANNEL calls_of(who STRING) PERIOD 1 SECOND AS SELECT number FROM NEW calls WHERE who = :who"

pytestmark = [pytest.mark.live, pytest.mark.timeout(300 + INPUTS // 10)]


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class World:
    """A broker, a gateway and a data cluster with Spark; the last two in this process."""

    def __init__(self, cluster: LocalCluster, spark: Any, folder: Path) -> None:
        self._cluster = cluster
        self.ended: list[BaseException | None] = []
        settings = ServiceSettings(telemetry=False)
        self.catalog = Catalog(folder)
        self.engine = SparkEngine(
            self.catalog, settings, lambda: contextlib.nullcontext(spark), cluster.store_url, self.ended.append
        )
        self.app = create_app(self.catalog, settings, self.engine)
        listening, self.url = listen("127.0.0.1:0")
        # One address is everybody here, and its limits are tested elsewhere.
        many = 10**9
        chosen = GatewaySettings(
            refused_logins_per_minute=many, registrations_per_minute=many, allow=("publish:*", "subscribe:*")
        )
        self.gateway = Gateway("b1", self.url, cluster.urls["b1"], cluster.store_url, settings=chosen)
        self._gateway_server = GatewayServer(self.gateway, listening)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        listening = socket.create_server(("127.0.0.1", 0))
        self.data_url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = _Uvicorn(uvicorn.Config(self.app, log_config=None, access_log=False, timeout_graceful_shutdown=2))
        serving = asyncio.create_task(server.serve([listening]))
        announcing = asyncio.create_task(Announcement(self._cluster.store_url, self.data_url).keep())
        self.engine.start()
        await self._gateway_server.start()
        try:
            yield
        finally:
            await self._gateway_server.stop()
            announcing.cancel()
            self.app.state.service.commits.close()
            server.should_exit = True
            await asyncio.to_thread(self.engine.stop)
            await asyncio.gather(serving, announcing, return_exceptions=True)
            self.catalog.close()

    async def prepare(self) -> None:
        """The feed and channel of the honest user, and the datasets that hostile requests name."""
        async with httpx.AsyncClient(base_url=self.data_url, timeout=ANSWER_S, trust_env=False) as http:
            await until(lambda: self.engine.state == "running")
            feed = {"name": "calls", "topic": "calls", "schema": "number INT, who STRING"}
            assert (await http.post("/feeds", json=feed)).status_code == 201
            assert (await http.post("/channels", json={"text": CALLS})).status_code == 201
        self.catalog.datasets.create("reports", "id INT NOT NULL, kind STRING")


class HonestUser:
    """Calls through the gateway, and hears of her calls from the channel."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._called = 0
        self.heard: list[int] = []

    async def live(self, enough: asyncio.Event, ready: asyncio.Event) -> None:
        async with Subscriber.connect(self._url, "ann") as ann:
            await ann.subscribe("calls_of", who="ann")
            listening = asyncio.create_task(self._listen(ann))
            await self._call(ann)
            await until(lambda: self.heard)
            ready.set()
            while not enough.is_set():
                await self._call(ann)
            last = self._called
            await until(lambda: self.heard[-1] >= last or listening.done())
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            assert self.heard == list(range(1, last + 1))

    async def _call(self, ann: Subscriber) -> None:
        self._called += 1
        await ann.publish("calls", json.dumps({"number": self._called, "who": "ann"}))
        await asyncio.sleep(0.2)  # paces the calls

    async def _listen(self, ann: Subscriber) -> None:
        async for event in ann.events():
            assert isinstance(event, Result), event
            self.heard += sorted(row["number"] for row in event.rows)


class Attack:
    """Sends the inputs, and notes what must not happen."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: Counter[str] = Counter()
        self.failed: dict[tuple[str, ...], bytes] = {}

    async def run(self, inputs: int, seed: int) -> None:
        parts: list[tuple[Callable[[int, int], Coroutine[Any, Any, None]], float]] = [
            (self._frames, 0.5),
            (self._gateway_requests, 0.2),
            (self._raw, 0.2),
            (self._rest, 0.1),
        ]
        await asyncio.gather(*(part(int(share * inputs), seed) for part, share in parts))

    async def _frames(self, count: int, seed: int) -> None:
        """Over a WebSocket that is opened again whenever the gateway has closed it."""
        token = await register(self._world.url, f"mallory{seed}")
        login = json.dumps({"type": "login", "user": f"mallory{seed}", "token": token})
        connection: ClientConnection | None = None
        for number, frame in enumerate(itertools.islice(frames(seed), count)):
            try:
                if connection is None:
                    connection = await connect(self._world.url.replace("http", "ws", 1) + "/ws")
                    if number % 7:
                        await connection.send(login)
                await connection.send(frame, text=True)
                while await _answered(connection):
                    pass
            except WebSocketException:
                connection = None
            self.sent["frames"] += 1
        if connection is not None:
            await connection.close()

    async def _gateway_requests(self, count: int, seed: int) -> None:
        async with httpx.AsyncClient(base_url=self._world.url, timeout=ANSWER_S, trust_env=False) as http:
            user = f"poller{seed}"
            token = await register(self._world.url, user)
            live = (await http.post("/session", json={"user": user, "token": token})).json()["session"]
            for request in itertools.islice(gateway_requests(seed, live), count):
                await self._request(http, request)
                self.sent["gateway requests"] += 1

    async def _rest(self, count: int, seed: int) -> None:
        async with httpx.AsyncClient(base_url=self._world.data_url, timeout=ANSWER_S, trust_env=False) as http:
            openapi = (await http.get("/openapi.json")).json()
            for request in itertools.islice(requests(seed, openapi), count):
                await self._request(http, request)
                self.sent["REST requests"] += 1

    async def _request(self, http: httpx.AsyncClient, request: Request) -> None:
        answer = await http.request(request.method, request.url, headers=request.headers, content=request.content)
        if answer.status_code >= 500:
            self.failed[(request.method, request.url[:80], str(answer.status_code))] = request.content[:200]

    async def _raw(self, count: int, seed: int) -> None:
        host, _, port = self._world.url.removeprefix("http://").partition(":")
        for sent in itertools.islice(raw_bytes(seed), count):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            answer = b""
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(0.01):  # what is sent by halves is cut after seconds; that is another test
                    answer = await reader.read(100)
            writer.transport.abort()
            if answer.startswith(b"HTTP/1.1 5"):
                self.failed[("raw", answer[:40].decode("latin-1"))] = sent[:200]
            self.sent["raw bytes"] += 1


async def _answered(connection: ClientConnection) -> bool:
    """Whether something came at once."""
    try:
        async with asyncio.timeout(0.002):
            await connection.recv()
            return True
    except TimeoutError:
        return False


def _memory_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_no_input_from_outside_stops_anything(spark: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1) as cluster:
            world = World(cluster, spark, tmp_path)
            async with world.running():
                await world.prepare()
                enough, ready = asyncio.Event(), asyncio.Event()
                honest = asyncio.create_task(HonestUser(world.url).live(enough, ready))
                await asyncio.wait([honest, asyncio.create_task(ready.wait())], return_when=asyncio.FIRST_COMPLETED)
                attack, began_s = Attack(world), time.monotonic()
                await attack.run(INPUTS // 3, SEED)
                before = _memory_bytes()
                await attack.run(INPUTS - INPUTS // 3, SEED + 1)
                grown = _memory_bytes() - before
                print(f"{attack.sent} in {time.monotonic() - began_s:.1f} s, {grown >> 20} MB more")
                enough.set()
                await honest
                _check(world, attack, grown)

    asyncio.run(scenario())


def _check(world: World, attack: Attack, grown: int) -> None:
    assert attack.failed == {}, f"seed {SEED}"
    assert grown < MORE_MEMORY_BYTES, attack.sent
    health = world.gateway.health
    assert set(health["workers"].values()) <= {"running", "done"}
    assert (health["failed_operations"], health["data_cluster"]) == (0, "connected")
    assert (world.engine.state, world.ended) == ("running", [])
    assert world.catalog.damaged() == []
