"""One Spark session for all tests of the pipeline, and one of several processes for those marked `cluster`.

It interprets its queries, each of which runs once over a few rows: compiling them takes far longer. A test asks for the
fixture `compiled` if that matters to it, and the tests of whole processes have Spark as it is.

And a real server, with a connection to it to fill streams with.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.spark import SessionSettings, open_session
from nearcast.runtime.servers import LocalServer

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


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """Of a server that a loop in another thread looks after: Spark's tests have none."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        server = asyncio.run_coroutine_threadsafe(LocalServer.start(), loop).result(timeout=30)
        yield server.url
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(timeout=30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def valkey(server_url: str) -> Iterator[RespConnection]:
    """A connection to the server, emptied."""
    with RespConnection(server_url) as connection:
        connection.ask("FLUSHALL")
        yield connection
