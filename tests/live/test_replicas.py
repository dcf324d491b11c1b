"""Logs with a quorum on real servers: what was acknowledged survives the death of a server, once and in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import nearcast
from nearcast.core.controller.replicas import SEAL_S
from nearcast.core.model.logs import Log
from nearcast.core.wire.replication import lines_of
from nearcast.errors import Refused, TimedOut
from nearcast.runtime.console import Console
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

LOG = Log("orders", 0, ("order.*",), 3600.0, 1 << 28, quorum=2)
TOPICS = [f"order.{number}" for number in range(6)]
MESSAGES = 6000

Scenario = Callable[[LocalCluster, Console], Coroutine[Any, Any, None]]


def run(scenario: Scenario, *, brokers: int = 3, replicas: int = 1, limit_s: float = 100.0) -> None:
    async def whole() -> None:
        async with (
            await LocalCluster.start(brokers=brokers, replicas=replicas) as cluster,
            await cluster.console() as console,
        ):
            await scenario(cluster, console)

    asyncio.run(asyncio.wait_for(whole(), limit_s))


async def read(client: nearcast.Client, count: int) -> dict[str, list[int]]:
    """The numbers of the next messages by topic; nothing may be lost."""
    reader, numbers = await client.read("orders", from_="earliest"), defaultdict(list)
    for _ in range(count):
        event = await asyncio.wait_for(reader.get(), 30)
        assert isinstance(event, nearcast.Message), event
        numbers[event.topic].append(event.sequence or 0)
    return numbers


async def publish(client: nearcast.Client) -> None:
    for number in range(MESSAGES):
        client.publish_nowait(TOPICS[number % len(TOPICS)], b"%06d" % number)
        if number % 20 == 0:
            await client.drain()
            await asyncio.sleep(0.01)  # the load goes on while servers die
    await client.flush()


def test_nothing_acknowledged_is_lost_or_repeated_when_servers_are_killed_under_load() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        await console.create_log(LOG)

        async def kill() -> None:
            for broker in ("b1", "b2"):
                await asyncio.sleep(1.5)  # in the middle of the load
                await cluster.kill_server(broker)

        async with nearcast.connect(cluster.urls["b3"]) as client, nearcast.connect(cluster.urls["b3"]) as other:
            live = asyncio.create_task(read(other, MESSAGES))
            await asyncio.gather(publish(client), kill())
            expected = {topic: list(range(1, MESSAGES // len(TOPICS) + 1)) for topic in TOPICS}
            assert await live == expected
            assert await read(other, MESSAGES) == expected

    run(scenario)


def test_a_server_that_restarts_empty_does_not_wipe_its_replica() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        await console.create_log(LOG)
        async with nearcast.connect(cluster.urls["b1"]) as client:
            for number in range(100):
                await client.publish(TOPICS[0], b"%d" % number)
        await cluster.restart_server("b1")
        await cluster.until_members()
        async with nearcast.connect(cluster.urls["b1"]) as client:
            assert (await read(client, 100))[TOPICS[0]] == list(range(1, 101))

    run(scenario, brokers=1)


def test_with_too_few_replicas_publishing_fails_and_says_why_and_the_broker_lives_on() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        with pytest.raises(Refused, match="a quorum of 3 takes 2 replicas of a broker, and no broker has more than 1"):
            await console.create_log(Log("orders", 0, ("order.*",), 3600.0, 1 << 28, quorum=3))
        await console.create_log(LOG)
        replica = cluster.pids["replica-b1-1"]
        async with nearcast.connect(cluster.urls["b1"]) as client:
            await client.publish(TOPICS[0], b"kept")
            os.kill(replica, signal.SIGKILL)
            with pytest.raises(TimedOut, match="b1: 0 of the 1 replicas that must have it are in step"):
                await client.publish(TOPICS[0], b"not acknowledged", timeout_s=2.0)
            await client.publish("other", b"no log covers this")

    run(scenario, brokers=1)


def test_no_other_replica_can_attach() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        async with nearcast.connect(cluster.urls["b1"]):
            pass
        port = cluster.urls["b1"].rpartition(":")[2]
        stray = Requester(cluster.urls["b2"])  # a server that the agent of b1 does not know as a replica
        primary = Requester(cluster.urls["b1"])
        try:
            await stray.ask("REPLICAOF", "127.0.0.1", port)
            refused = "master_link_down_since_seconds"

            async def tried() -> bool:
                return refused in lines_of(await stray.ask("INFO", "replication"))

            await until(tried, "the stray replica was refused", 10)
            assert lines_of(await primary.ask("INFO", "replication"))["connected_slaves"] == "1"
        finally:
            await stray.ask("REPLICAOF", "NO", "ONE")
            await stray.close()
            await primary.close()

    run(scenario, brokers=2)


async def one_that_waits(cluster: LocalCluster, console: Console, *gone: str) -> str:
    """Keep 20 messages at b1, and kill its server and some of its replicas. Returns the life that is being sealed."""
    await console.create_log(LOG)
    await console.move(TOPICS[0], nearcast.Mode.SINGLE, ["b1"])
    async with nearcast.connect(cluster.urls["b1"]) as client:
        for number in range(20):
            await client.publish(TOPICS[0], b"%d" % number)
    for name in ("server-b1", *gone):
        os.kill(cluster.pids[name], signal.SIGKILL)

    async def waits() -> bool:
        return [former.state for former in (await console.logs()).former] == ["sealing"]

    await until(waits, "the life of b1 is being sealed", 15)
    return (await console.logs()).former[0].life


def test_what_nobody_will_ever_have_again_can_be_given_up() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        life = await one_that_waits(cluster, console, "replica-b1-1")
        with pytest.raises(Refused, match="its replicas were asked a moment ago: try again in"):
            await console.abandon_part(life)
        async with nearcast.connect(cluster.urls["b2"]) as client:
            hint = f"{life} has ended, .* `nearcast log abandon {life}`"
            with pytest.raises(TimedOut, match=hint):
                await client.read("orders", timeout_s=1.0)
            reader = client.read("orders")

            await asyncio.sleep(SEAL_S)  # replicas have that long to answer
            await console.abandon_part(life)
            event = await asyncio.wait_for(reader.get(), 10)
            assert isinstance(event, nearcast.Lost)
            assert (event.part, event.count) == (life, None)
            await client.publish(TOPICS[0], b"on")
            message = await asyncio.wait_for(reader.get(), 10)
            assert isinstance(message, nearcast.Message)
        with pytest.raises(Refused, match=f"{life} is lost already"):
            await console.abandon_part(life)
        with pytest.raises(Refused, match="no part 'b7@1' has ended"):
            await console.abandon_part("b7@1")

    run(scenario, brokers=2)


def test_what_a_replica_still_has_is_read_when_the_other_is_given_up() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        life = await one_that_waits(cluster, console, "replica-b1-2")
        await asyncio.sleep(SEAL_S)  # replicas have that long to answer
        await console.abandon_part(life)
        async with nearcast.connect(cluster.urls["b2"]) as client:
            reader = await client.read("orders")
            events = [await asyncio.wait_for(reader.get(), 10) for _ in range(21)]
        (lost,) = (event for event in events if isinstance(event, nearcast.Lost))
        assert (lost.part, lost.count) == (life.replace("@", "+replicas@"), None)
        assert [event.payload for event in events if isinstance(event, nearcast.Message)] == [
            b"%d" % number for number in range(20)
        ]

    run(scenario, brokers=2, replicas=2)


def test_a_holder_that_is_given_up_follows_again() -> None:
    async def scenario(cluster: LocalCluster, console: Console) -> None:
        await console.create_log(LOG)
        async with nearcast.connect(cluster.urls["b1"]) as client:
            await client.publish(TOPICS[0], b"kept")
            await cluster.restart_server("b1")
            await cluster.until_members()
            with pytest.raises(TimedOut, match=r"b1: its replicas hold .*: .* `nearcast log abandon b1@\d+`") as found:
                await client.publish(TOPICS[0], b"waits", timeout_s=5.0)
            await console.abandon_part(str(found.value).partition("`nearcast log abandon ")[2].partition("`")[0])
            await client.publish(TOPICS[0], b"on")

    run(scenario, brokers=1)
