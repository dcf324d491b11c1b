"""Logs on real servers: what is published is kept once, while topics move and agents die."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

import nearcast
from nearcast.core.model.logs import Log
from nearcast.core.model.names import LOGS
from nearcast.core.model.placement import Mode
from nearcast.core.wire.frames import HEADER
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster

pytestmark = pytest.mark.live

TOPICS = [f"order.{number}" for number in range(6)]
MESSAGES = 6000
MOVES = 12
LOG = Log("orders", 0, ("order.*",), 3600.0, 1 << 30)

Kept = dict[tuple[str, int], list[int]]  # (topic, publisher) -> numbers, in the order of one stream


async def kept_at(url: str) -> list[Kept]:
    """What the streams of one server have, one after another."""
    requester, found = Requester(url), []
    try:
        keys = await requester.ask("KEYS", LOGS + b"*")
        assert isinstance(keys, list)
        for key in keys:
            stream: Kept = defaultdict(list)
            counted = 0
            entries = await requester.ask("XRANGE", key, "-", "+")
            assert isinstance(entries, list)
            for _, fields in entries:
                for topic, batch in zip(fields[6::2], fields[7::2], strict=True):
                    _, _, publisher, first, count = HEADER.unpack_from(batch)
                    stream[topic.decode(), publisher] += range(first, first + count)
                    counted += count
                assert int(fields[5]) == counted, "an entry counts the messages up to it"
            found.append(stream)
    finally:
        await requester.close()
    return found


def test_messages_are_kept_once_while_topics_move_and_an_agent_dies() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=3) as cluster, await cluster.console() as console:
            publisher = await nearcast.connect(cluster.urls["b1"])
            reader = await nearcast.connect(cluster.urls["b2"])
            subscription = await reader.psubscribe("order.*")
            for topic in TOPICS:
                await publisher.publish(topic, b"before the log")
            await console.create_log(LOG)

            async def publish() -> None:
                for number in range(MESSAGES):
                    publisher.publish_nowait(TOPICS[number % len(TOPICS)], b"%06d" % number)
                    if number % 20 == 0:
                        await publisher.drain()
                        await asyncio.sleep(0.01)  # the load goes on while topics move
                await publisher.flush()

            async def move() -> None:
                brokers = ("b1", "b2", "b3")
                for number in range(MOVES):
                    mode = (Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)[number % 3]
                    where = (brokers[number // 3 % 3],) if mode is Mode.SINGLE else brokers
                    await console.move(TOPICS[number % len(TOPICS)], mode, where)
                    if number == MOVES // 2:
                        await cluster.kill_agent("b2")
                        await cluster.restart_agent("b2")

            await asyncio.gather(publish(), move())
            received: dict[str, list[int]] = defaultdict(list)
            for _ in range(MESSAGES + len(TOPICS)):
                message = await asyncio.wait_for(subscription.get(), 20)
                assert isinstance(message, nearcast.Message), message
                received[message.topic].append(message.sequence or 0)
            parts = [part for url in cluster.urls.values() for part in await kept_at(url)]
            await publisher.close()
            await reader.close()
        expected = list(range(2, MESSAGES // len(TOPICS) + 2))  # the first one was published before the log
        for topic in TOPICS:
            assert received[topic] == [1, *expected]
            runs = [numbers for part in parts for (name, _), numbers in part.items() if name == topic]
            assert all(numbers == sorted(numbers) for numbers in runs)
            assert sorted(number for numbers in runs for number in numbers) == expected
        assert sum(len(part) > 0 for part in parts) == 3, "every broker has kept something"

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_a_dropped_log_keeps_nothing_more_and_one_of_the_same_name_begins_empty() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1) as cluster, await cluster.console() as console:
            async with await nearcast.connect(cluster.urls["b1"]) as client:
                first = await console.create_log(LOG)
                await client.publish("order.1", b"kept")
                await console.drop_log("orders")
                await client.publish("order.1", b"not kept")
                second = await console.create_log(LOG)
                await client.publish("order.1", b"kept again")
            assert first.created < second.created
            parts = await kept_at(cluster.urls["b1"])
        assert sorted(numbers for part in parts for numbers in part.values()) == [[1], [3]]

    asyncio.run(asyncio.wait_for(scenario(), 60))
