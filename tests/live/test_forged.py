"""What a client with the documented rights may write of nearcast's own, on real servers: nobody else is harmed.

Such a client may write a record where there is none, and publish counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

import nearcast
from nearcast.core.names import COUNTERS, MEMBERS, RECORDS
from nearcast.core.placement import Mode
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.runtime.requester import Requester
from nearcast.testbed.cluster import LocalCluster

pytestmark = pytest.mark.live

TOPICS = [f"honest{number}" for number in range(10)]
JOIN_S = 15.0
FLOOD_S = 8.0  # several times as long as a broker may be without a grant
DEEP = "[" * 1500 + "]" * 1500


def record(brokers: tuple[str, ...] = ("b1",), mode: str = "single", epoch: int = 1, term: int = 1) -> str:
    return json.dumps({"version": 4 * epoch + 1, "term": term, "placement": [epoch, mode, brokers, 1]})


FORGED = {
    "rubbish": "rubbish",
    "another mode": record(mode="unheard"),
    "too deep": f'{{"x":{DEEP}}}',
    "no broker": record(()),
    "many brokers": record(tuple(f"b{number}" for number in range(20_000))),
    "a late epoch": record(epoch=1 << 40),
}


@contextlib.asynccontextmanager
async def an_honest_client(cluster: LocalCluster) -> AsyncIterator[Counter[str]]:
    """Publishes and subscribes; counts its events by type."""
    heard: Counter[str] = Counter()

    async def read(subscription: nearcast.Subscription) -> None:
        async for event in subscription:
            heard[type(event).__name__] += 1

    async def publish(client: nearcast.Client) -> None:
        while True:
            for topic in TOPICS:
                await client.publish(topic, b"x", timeout_s=5.0)
            await asyncio.sleep(0.05)

    async with await nearcast.connect(cluster.urls["b1"]) as client:
        tasks = [asyncio.create_task(read(await client.subscribe(*TOPICS))), asyncio.create_task(publish(client))]
        yield heard
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError)


async def on_all(cluster: LocalCluster, *command: str | bytes) -> None:
    for url in cluster.urls.values():
        requester = Requester(url)
        await requester.ask(*command)
        await requester.close()


async def until_open(cluster: LocalCluster, broker: str) -> None:
    """Return when the ring has the broker, and all topics may be used."""
    requester = Requester(cluster.urls["b1"])
    async with asyncio.timeout(JOIN_S):
        while True:
            document = json.loads(await requester.ask("HGET", MEMBERS, "document") or "{}")  # type: ignore[arg-type]
            if broker in document.get("ring", ()) and not document.get("previous_ring"):
                break
            await asyncio.sleep(0.05)
    await requester.close()


def test_a_broker_joins_and_nobody_notices_whatever_records_a_client_has_written() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster, an_honest_client(cluster) as heard:
            for name, forged in FORGED.items():
                for number in range(20):  # some of them change their directory
                    await on_all(cluster, "HSETNX", RECORDS, f"{name}{number}", forged)
            for number in range(20):
                await on_all(cluster, "HSETNX", RECORDS, b"\xff%d" % number, record())
            await cluster.start_broker("b3")
            await until_open(cluster, "b3")
            assert set(heard) == {"Message"}

    asyncio.run(scenario())


def test_a_topic_moves_to_a_broker_where_a_client_has_written_rubbish_before() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster, an_honest_client(cluster) as heard:
            console = await cluster.console()
            await asyncio.sleep(1.0)  # all topics have been used
            for topic in TOPICS:
                await on_all(cluster, "HSETNX", RECORDS, topic, "rubbish")
            for broker in ("b1", "b2"):
                await console.move_all(dict.fromkeys(TOPICS, (Mode.SINGLE, (broker,))), timeout_s=JOIN_S)
            assert set(heard) == {"Message"}

    asyncio.run(scenario())


def test_an_agent_works_on_whatever_clients_say_they_have_counted() -> None:
    async def scenario() -> None:
        forged = [
            f'{{"client":1,"seconds":1,"topics":{{}},"x":{DEEP}}}',
            json.dumps({"client": 1, "seconds": 1, "topics": {"t": {"received": 10**400}}}),
        ]
        async with await LocalCluster.start(brokers=2) as cluster, an_honest_client(cluster) as heard:
            enough_s = time.monotonic() + FLOOD_S
            while time.monotonic() < enough_s:
                for payload in forged:
                    await on_all(cluster, "PUBLISH", COUNTERS, payload)
            assert set(heard) == {"Message"}
            before = heard["Message"]
            await asyncio.sleep(1.0)
            assert heard["Message"] > before + len(TOPICS)

    asyncio.run(scenario())


def test_a_store_that_comes_back_empty_does_not_go_by_records_no_leader_has_written() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster:
            await on_all(cluster, "HSETNX", RECORDS, "epoch", record(epoch=2**32 - 2))
            await on_all(cluster, "HSETNX", RECORDS, "term", record(term=2**31 - 1))
            await cluster.lose_store()
            async with asyncio.timeout(JOIN_S), nearcast.connect(cluster.urls["b1"]) as client:
                while not await loss_is_dealt_with(cluster):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                for topic in TOPICS:
                    await client.publish(topic, b"x")

    asyncio.run(scenario())


async def loss_is_dealt_with(cluster: LocalCluster) -> bool:
    try:
        async with Console(cluster.store_url) as console:
            loss = (await console.state(timeout_s=1.0)).loss
    except ClusterError:
        return False
    return loss is not None and loss.verified


def test_a_broker_leaves_whatever_term_a_client_has_written() -> None:
    """No leader has a higher term than the one that leads: nothing could be installed in the place of such a record."""

    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster, an_honest_client(cluster) as heard:
            for number in range(20):
                await on_all(cluster, "HSETNX", RECORDS, f"evil{number}", record(term=1000))
            console = await cluster.console()
            assert (await console.drain("b1", timeout_s=JOIN_S)).state == "left"
            assert set(heard) == {"Message"}

    asyncio.run(scenario())
