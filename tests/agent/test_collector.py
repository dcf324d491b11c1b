"""Collectors in real agents: what was acknowledged is in the stream once, though the collecting agent is killed."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

import nearcast
from nearcast.agent.collector import CLAIM_S, DOUBT_S
from nearcast.core.model.names import FEEDS, feed_keys
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

KEYS = feed_keys("reports")


async def holder(store: Requester, key: str) -> str:
    found = await store.ask("GET", key)
    return found.decode().partition(":")[0] if isinstance(found, bytes) else ""


async def list_feed(store: Requester, topic: str) -> None:
    """What the data cluster does; returns when one agent collects."""
    await store.ask("HSET", FEEDS, "reports", json.dumps({"topic": topic, "stream": KEYS.stream}))
    await until(lambda: store.ask("HEXISTS", KEYS.state, "until"))


async def whole_ms(store: Requester) -> int:
    """Up to when all is in the stream, by the server's clock; 0 before anybody has said so."""
    found = await store.ask("HGET", KEYS.state, "until")
    return int(found) if isinstance(found, bytes) else 0


async def stream(store: Requester) -> tuple[list[bytes], list[str]]:
    """Payloads, and what was said to be missing."""
    reply = await store.ask("XRANGE", KEYS.stream, "-", "+")
    assert isinstance(reply, list)
    records = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in reply]
    payloads = [record[b"payload"] for record in records if b"payload" in record]
    return payloads, [record[b"text"].decode() for record in records if b"text" in record]


class Publisher:
    """Publishes numbers to a few topics, and knows which were acknowledged."""

    def __init__(self, client: nearcast.Client) -> None:
        self._client = client
        self._sent = 0
        self.acknowledged: set[bytes] = set()
        self._tasks = [asyncio.create_task(self._publish(f"emergency.{k % 3}")) for k in range(10)]

    async def _publish(self, topic: str) -> None:
        while True:
            self._sent += 1
            payload = b"%d" % self._sent
            await self._client.publish(topic, payload)
            self.acknowledged.add(payload)
            await asyncio.sleep(0.01)  # paces the load

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        assert {type(one) for one in ended} == {asyncio.CancelledError}, "nobody's publishing has failed"


def test_a_feed_is_collected_until_it_is_dropped() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(1) as cluster:
            store = Requester(cluster.store_url)
            await list_feed(store, "one.topic")
            client = await nearcast.connect(*cluster.urls.values())
            await client.publish("one.topic", b"first")
            await client.publish("other.topic", b"not for us")
            await client.publish("one.topic", b"second")
            await until(lambda: _has(store, {b"second"}))
            assert await stream(store) == ([b"first", b"second"], [])
            await store.ask("HDEL", FEEDS, "reports")  # as if the server had lost its memory
            await asyncio.sleep(1.0)  # missing for a while, and not so long that it counts as dropped
            await client.publish("one.topic", b"third")
            await list_feed(store, "one.topic")
            await until(lambda: _has(store, {b"third"}))

            await store.ask("HDEL", FEEDS, "reports")
            await until(lambda: _is_free(store))
            await client.publish("one.topic", b"fourth")
            await asyncio.sleep(0.5)  # nothing is collected in it
            assert await stream(store) == ([b"first", b"second", b"third"], [])
            await client.close()
            await store.close()

    asyncio.run(scenario())


async def _is_free(store: Requester) -> bool:
    return not await store.ask("EXISTS", KEYS.lease)


def test_a_killed_collector_loses_and_repeats_nothing() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(3) as cluster:
            store = Requester(cluster.store_url)
            await list_feed(store, "emergency.*")
            await until(lambda: store.ask("EXISTS", KEYS.standby))
            await until(lambda: _two_listen(cluster), "the standby has attached")
            attached_ms = await whole_ms(store)
            client = await nearcast.connect(*cluster.urls.values())
            publisher = Publisher(client)
            await until(lambda: _whole_after(store, attached_ms + (2 * CLAIM_S + DOUBT_S) * 1000))
            await until(lambda: len(publisher.acknowledged) > 300)
            killed, standby = await holder(store, KEYS.lease), await holder(store, KEYS.standby)
            await cluster.kill_agent(killed)
            await until(lambda: _holds(store, standby))
            before = len(publisher.acknowledged)
            await until(lambda: len(publisher.acknowledged) > before + 300)
            await publisher.stop()
            await until(lambda: _has(store, publisher.acknowledged))
            payloads, told = await stream(store)
            assert len(payloads) == len(set(payloads))
            assert not [text for text in told if "no agent collected" in text or "never reached" in text]
            await client.close()
            await store.close()

    asyncio.run(scenario())


async def _two_listen(cluster: LocalCluster) -> bool:
    """Whether two agents are subscribed to the feed's pattern, at every broker."""
    for url in cluster.urls.values():
        broker = Requester(url)
        listed = await broker.ask("CLIENT", "LIST")
        await broker.close()
        assert isinstance(listed, bytes)
        if len(re.findall(rb" psub=[1-9]", listed)) < 2:
            return False
    return True


async def _whole_after(store: Requester, wanted_ms: float) -> bool:
    return await whole_ms(store) > wanted_ms


async def _holds(store: Requester, broker: str) -> bool:
    return await holder(store, KEYS.lease) == broker


async def _has(store: Requester, wanted: set[bytes]) -> bool:
    payloads, _ = await stream(store)
    return wanted <= set(payloads)


def test_without_a_standby_the_time_without_a_collector_is_told() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(1) as cluster:
            store = Requester(cluster.store_url)
            await list_feed(store, "emergency.*")
            client = await nearcast.connect(*cluster.urls.values())
            await client.publish("emergency.1", b"before")
            await until(lambda: _has(store, {b"before"}))
            await until(lambda: whole_ms(store), "the collector has said that all is in the stream")
            await cluster.restart_agent("b1")
            await until(lambda: _said(store, "no agent collected them"))
            await client.publish("emergency.1", b"after")
            await until(lambda: _has(store, {b"after"}))
            payloads, _ = await stream(store)
            assert payloads == [b"before", b"after"]
            await client.close()
            await store.close()

    asyncio.run(scenario())


async def _said(store: Requester, words: str) -> bool:
    _, told = await stream(store)
    return any(words in text for text in told)
