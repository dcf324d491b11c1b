"""What a client with the documented rights may write of nearcast's own, on real servers: nobody else is harmed.

Such a client may write a first use where there is none, and publish counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import nearcast
from nearcast.core.model.names import COUNTERS, FIRST_USES, MEMBERS, RECORDS
from nearcast.core.model.placement import Mode
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

sys.path.insert(0, str(Path(__file__).parent))

from rights import guarded_cluster, url

pytestmark = pytest.mark.live

TOPICS = [f"honest{number}" for number in range(10)]
JOIN_S = 15.0
HEARD_S = 5.0
FLOOD_S = 8.0  # several times as long as a broker may be without a grant
DEEP = "[" * 1500 + "]" * 1500


def record(term: int) -> str:
    return json.dumps({"version": 5, "term": term, "placement": [1, "single", ["b1"], 1]})


FORGED = {
    "rubbish": "rubbish",
    "nothing": "",
    "an old one": "1",
    "a late one": str(2**32 - 2),
    "too late": str(10**400),
    "a long one": "0" * 100_000 + "1",
    "no whole number": "1.5",
    "a record": record(term=1000),
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
            await asyncio.sleep(0.05)  # paces it

    async with await nearcast.connect(cluster.urls["b1"]) as client:
        tasks = [asyncio.create_task(read(await client.subscribe(*TOPICS))), asyncio.create_task(publish(client))]
        yield heard
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError)


async def on_all(cluster: LocalCluster, *command: str | bytes) -> None:
    for address in cluster.urls.values():
        requester = Requester(address)
        await requester.ask(*command)
        await requester.close()


async def until_open(cluster: LocalCluster, broker: str) -> None:
    """Return when the ring has the broker, and all topics may be used."""
    requester = Requester(cluster.urls["b1"])

    async def is_open() -> bool:
        document = json.loads(await requester.ask("HGET", MEMBERS, "document") or "{}")  # type: ignore[arg-type]
        return broker in document.get("ring", ()) and not document.get("previous_ring")

    await until(is_open, f"the ring has {broker}", JOIN_S)
    await requester.close()


def test_a_broker_joins_and_nobody_notices_whatever_first_uses_a_client_has_written() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster, an_honest_client(cluster) as heard:
            for name, forged in FORGED.items():
                for number in range(20):  # some of them change their directory
                    await on_all(cluster, "HSETNX", FIRST_USES, f"{name}{number}", forged)
            for number in range(20):
                await on_all(cluster, "HSETNX", FIRST_USES, b"\xff%d" % number, "1")
            await cluster.start_broker("b3")
            await until_open(cluster, "b3")
            assert set(heard) == {"Message"}

    asyncio.run(scenario())


@pytest.mark.parametrize("forged", ["rubbish", "the newest version"])
def test_a_topic_moves_to_brokers_where_a_client_has_written_a_first_use_before(forged: str) -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster, an_honest_client(cluster) as heard:
            console = await cluster.console()
            await until(lambda: heard["Message"] > len(TOPICS), "all topics have been used")
            await cluster.start_broker("b3")  # the membership goes on
            await until_open(cluster, "b3")
            written = forged if forged == "rubbish" else str(await members_version(cluster))
            for topic in TOPICS:
                await on_all(cluster, "HSETNX", FIRST_USES, topic, written)
            for broker in ("b1", "b2", "b3"):
                await console.move_all(dict.fromkeys(TOPICS, (Mode.SINGLE, (broker,))), timeout_s=JOIN_S)
                assert await topics_heard(cluster) == set(TOPICS)
            assert set(heard) == {"Message"}

    asyncio.run(scenario())


async def topics_heard(cluster: LocalCluster) -> set[str]:
    """By a client that comes now, and goes where the leader has put the topics."""
    heard: set[str] = set()
    async with await nearcast.connect(cluster.urls["b1"]) as client:
        subscription = await client.subscribe(*TOPICS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARD_S):
                while heard < set(TOPICS):
                    event = await subscription.get()
                    heard.add(event.topic)
    return heard


async def members_version(cluster: LocalCluster) -> int:
    requester = Requester(cluster.urls["b1"])
    version = await requester.ask("HGET", MEMBERS, "version")
    await requester.close()
    assert isinstance(version, bytes)
    return int(version)


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
            await until(lambda: heard["Message"] > before + len(TOPICS), "messages flow on", 5.0)

    asyncio.run(scenario())


def test_a_store_that_comes_back_empty_does_not_go_by_first_uses_that_clients_have_written() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster:
            for name, forged in FORGED.items():
                await on_all(cluster, "HSETNX", FIRST_USES, name, forged)
            await cluster.lose_store()
            async with asyncio.timeout(JOIN_S), nearcast.connect(cluster.urls["b1"]) as client:
                await until(lambda: loss_is_dealt_with(cluster), "the loss is dealt with")
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


def test_moves_end_and_a_broker_leaves_whatever_a_client_with_the_documented_rights_has_written() -> None:
    """With a record whose term is above the leader's, neither would: nothing could be installed in its place."""

    async def scenario() -> None:
        names = {f"game:{name}{number}".replace(" ", "-"): name for name in FORGED for number in range(5)}
        async with guarded_cluster() as cluster:
            hostile = [Requester(url(server, "app")) for server in cluster.brokers.values()]
            for requester in hostile:
                for topic, name in names.items():
                    answer = await requester.ask("HSETNX", RECORDS, topic, record(term=1000))
                    assert "NOPERM" in str(answer)
                    assert await requester.ask("HSETNX", FIRST_USES, topic, FORGED[name]) == 1
                await requester.close()
            operator = url(cluster.store, "operator")
            addresses = [url(server, "app") for server in cluster.brokers.values()]
            async with Console(operator) as console, nearcast.connect(*addresses) as client:
                for broker in ("b1", "b2"):
                    await console.move_all(dict.fromkeys(names, (Mode.SINGLE, (broker,))), timeout_s=JOIN_S)
                    for topic in names:
                        await client.publish(topic, b"x", timeout_s=5.0)
                assert (await console.drain("b2", timeout_s=JOIN_S)).state == "left"
                for topic in names:
                    await client.publish(topic, b"x", timeout_s=5.0)

    asyncio.run(scenario())
