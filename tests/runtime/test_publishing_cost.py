"""What publishing costs, counted in steps and not in seconds: it does not grow with the topics a client uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import nearcast
from nearcast import Limits
from nearcast.core.client.publisher import TopicPublisher
from nearcast.runtime.client import Client
from nearcast.runtime.driver import WRITE_FIRST, WRITE_MOST, Connection
from nearcast.testing.cluster import LocalCluster

pytestmark = pytest.mark.live

TEST_S = 30.0
TOPICS = [f"t{number}" for number in range(300)]


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[Callable[[Client], Coroutine[Any, Any, None]]], None]]:
    """Runs a scenario with a client that has used all topics; four messages may be in flight on each."""
    with asyncio.Runner() as runner:
        cluster = runner.run(LocalCluster.start(brokers=1))

        async def with_client(scenario: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
            async with asyncio.timeout(TEST_S), nearcast.connect(cluster.urls["b1"], limits=Limits(window=4)) as client:
                for topic in TOPICS:
                    client.publish_nowait(topic, b"")
                await client.flush()
                await scenario(client)

        yield lambda scenario: runner.run(with_client(scenario))
        runner.run(cluster.stop())


def test_drain_looks_at_full_topics_alone(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client) -> None:
        for topic in TOPICS:
            client.publish_nowait(topic, b"in flight")
        for _ in range(3):
            client.publish_nowait("t7", b"and full")
        looked_at: list[TopicPublisher] = []
        has_room = TopicPublisher.has_room.fget
        assert has_room is not None
        monkeypatch.setattr(TopicPublisher, "has_room", property(lambda self: looked_at.append(self) or has_room(self)))
        await client.drain()
        assert {topic_publisher.topic for topic_publisher in looked_at} == {b"t7"}

    run(scenario)


def test_drain_waits_for_every_topic_that_is_full(run: Any) -> None:
    async def scenario(client: Client) -> None:
        for topic in TOPICS[:20]:
            for _ in range(4):
                client.publish_nowait(topic, b"full")
        await client.drain()
        for topic in TOPICS[:20]:
            client.publish_nowait(topic, b"there is room")
        await client.flush()
        await client.drain()  # what was full once is not waited for again

    run(scenario)


def test_a_sync_waits_behind_what_was_published_before_it(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client) -> None:
        written: list[bytes] = []
        write = Connection.write
        monkeypatch.setattr(Connection, "write", lambda self, data: written.append(data) or write(self, data))
        client.publish_nowait("t1", b"before")
        await client.sync()
        sent = b"".join(written)
        assert sent.index(b"before") < sent.index(b"PING")
        assert not client._machine.in_flight

    run(scenario)


def test_the_more_there_is_to_write_the_longer_are_the_writes(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: Client) -> None:
        written: list[int] = []
        write = Connection.write

        def counted(self: Connection, data: bytes) -> None:
            written.append(data.count(b"at once"))
            write(self, data)

        monkeypatch.setattr(Connection, "write", counted)
        for topic in TOPICS:
            client.publish_nowait(topic, b"at once")
        assert sorted(written) == [WRITE_FIRST, 2 * WRITE_FIRST, WRITE_MOST]
        await client.flush()
        assert sum(written) == len(TOPICS)

    run(scenario)
