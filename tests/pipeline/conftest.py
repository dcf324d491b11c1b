"""One Spark session for all tests of the pipeline, and one of several processes for those marked `cluster`.

It interprets its queries, each of which runs once over a few rows: compiling them takes far longer. A test asks for the
fixture `compiled` if that matters to it, and the tests of whole processes have Spark as it is.

And real servers: one alone, with a connection to it to fill streams with, and those of a small cluster, whose clients
publish to logs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import nearcast
from nearcast.core.model.logs import Log
from nearcast.core.model.placement import Mode
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.spark import SessionSettings, open_session
from nearcast.runtime.servers import LocalServer
from nearcast.testing.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[2]"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"  # two workers, each a process with one core and 1024 MB

# Tests run each piece of Spark's code a few times: compiling it well costs more than it saves.
QUICK = {f"spark.{who}.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" for who in ("driver", "executor")}
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.adaptive.enabled": "true",
}
CLUSTER_TIMEOUT_S = 300  # three Java processes have to start


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spark" in metafunc.fixturenames:
        on_a_cluster = pytest.param(LOCAL_CLUSTER, marks=[pytest.mark.slow, pytest.mark.timeout(CLUSTER_TIMEOUT_S)])
        masters = [LOCAL, on_a_cluster] if metafunc.definition.get_closest_marker("cluster") else [LOCAL]
        # Parameters of one fixture, so that pytest runs all tests of a master together: there is one session at a time.
        metafunc.parametrize("spark", masters, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several test processes, all tests with a session go to one of them: sessions are large and slow to start."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    settings = SessionSettings(
        master=request.param,
        app_name="nearcast-tests",
        shuffle_partitions=1,
        conf=QUICK | INTERPRETED | ({"spark.executor.memory": "512m"} if request.param == LOCAL_CLUSTER else {}),
    )
    with open_session(settings) as session:
        yield session


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Spark as it is by default."""
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


T = TypeVar("T")


class Loop:
    """An event loop in another thread: Spark's tests have none."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], within_s: float = 60.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(within_s)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture(scope="session")
def server_url(loop: Loop) -> Iterator[str]:
    server = loop.run(LocalServer.start())
    yield server.url
    loop.run(server.stop())


@pytest.fixture
def valkey(server_url: str) -> Iterator[RespConnection]:
    """A connection to the server, emptied."""
    with RespConnection(server_url) as connection:
        connection.ask("FLUSHALL")
        yield connection


# --- a cluster


class Brokers:
    """A cluster of two brokers, b1 and b2, and a client that publishes."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.cluster = loop.run(LocalCluster.start(brokers=2))
        self.store_url = self.cluster.store_url
        self._client = loop.run(self._connected())

    async def _connected(self) -> nearcast.Client:
        return await nearcast.connect(self.cluster.urls["b1"])

    def publish(self, topic: str, *payloads: bytes) -> None:
        """Returns when all are acknowledged."""

        async def publish() -> None:
            for payload in payloads:
                await self._client.publish(topic, payload)

        self.loop.run(publish())

    def move(self, topic: str, broker: str) -> None:
        async def move() -> None:
            await (await self.cluster.console()).move(topic, Mode.SINGLE, (broker,))

        self.loop.run(move())

    def create_log(self, name: str, topic: str) -> Log:
        async def create() -> Log:
            return await (await self.cluster.console()).create_log(Log(name, 0, (topic,), 3600.0, 1 << 30))

        return self.loop.run(create())

    def drop_logs(self) -> None:
        """A data folder that is thrown away leaves its feeds' logs behind, and the next one may want their names."""

        async def drop() -> None:
            console = await self.cluster.console()
            for log in (await console.logs()).logs:
                await console.drop_log(log.name)

        self.loop.run(drop())

    def server(self, broker: str) -> RespConnection:
        return RespConnection(self.cluster.urls[broker])

    def stop(self) -> None:
        self.loop.run(self._client.close())
        self.loop.run(self.cluster.stop())


@contextmanager
def running_brokers(loop: Loop) -> Iterator[Brokers]:
    made = Brokers(loop)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def shared_brokers(loop: Loop) -> Iterator[Brokers]:
    with running_brokers(loop) as made:
        yield made


@pytest.fixture
def brokers(shared_brokers: Brokers) -> Iterator[Brokers]:
    """One cluster for all tests that leave it whole; each begins without logs."""
    yield shared_brokers
    shared_brokers.drop_logs()


@pytest.fixture
def own_brokers(loop: Loop) -> Iterator[Brokers]:
    """For a test that breaks something."""
    with running_brokers(loop) as made:
        yield made
