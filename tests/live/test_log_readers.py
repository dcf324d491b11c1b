"""Readers of logs on real servers: order across moves, groups that share and resume, what is lost is reported."""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

import nearcast
from nearcast.core.model.logs import Log
from nearcast.core.model.names import LOGS
from nearcast.errors import UsageError
from nearcast.runtime.console import Console
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

LOG = Log("orders", 0, ("order.*",), 3600.0, 1 << 28)
TOPICS = [f"order.{number}" for number in range(4)]

Scenario = Callable[[LocalCluster, Console, nearcast.Client], Coroutine[Any, Any, None]]


def run(scenario: Scenario, brokers: int = 3, limit_s: float = 100.0) -> None:
    async def whole() -> None:
        async with (
            await LocalCluster.start(brokers=brokers) as cluster,
            await cluster.console() as console,
            await nearcast.connect(cluster.urls["b1"]) as client,
        ):
            await console.create_log(LOG)
            await scenario(cluster, console, client)

    asyncio.run(asyncio.wait_for(whole(), limit_s))


async def some(reader: nearcast.Reader, count: int, limit_s: float = 30.0) -> list[nearcast.Message]:
    """The next messages; nothing may be lost."""
    found = []
    for _ in range(count):
        event = await asyncio.wait_for(reader.get(), limit_s)
        assert isinstance(event, nearcast.Message), event
        found.append(event)
    return found


def by_line(messages: list[nearcast.Message]) -> dict[tuple[str, int | None], list[int]]:
    lines: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for message in messages:
        lines[message.topic, message.publisher].append(message.sequence or 0)
    return lines


async def publish(client: nearcast.Client, count: int, pause_s: float = 0.0) -> None:
    for number in range(count):
        client.publish_nowait(TOPICS[number % len(TOPICS)], b"%06d" % number)
        if number % 50 == 0:
            await client.drain()
            await asyncio.sleep(pause_s)  # the load goes on while topics move
    await client.flush()


def test_a_reader_gets_everything_once_and_in_order_while_topics_move() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        async def move() -> None:
            brokers = ("b1", "b2", "b3")
            for number in range(18):
                mode = (nearcast.Mode.SINGLE, nearcast.Mode.ALL_SUBSCRIBERS, nearcast.Mode.ALL_PUBLISHERS)[number % 3]
                where = (brokers[number // 3 % 3],) if mode is nearcast.Mode.SINGLE else brokers
                await console.move(TOPICS[number % len(TOPICS)], mode, where)

        async with await nearcast.connect(cluster.urls["b2"]) as other, other.read("orders") as reader:
            async with nearcast.connect(cluster.urls["b3"]) as second:
                _, _, _, live = await asyncio.gather(
                    publish(client, 4000, 0.01), publish(second, 4000, 0.01), move(), some(reader, 8000)
                )
            late = await some(await other.read("orders", from_="earliest"), 8000)
        for messages in (live, late):
            assert all(numbers == list(range(1, 1001)) for numbers in by_line(messages).values())
            assert len(by_line(messages)) == 2 * len(TOPICS)

    run(scenario)


def test_a_reader_begins_where_it_is_told() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        await publish(client, 100)
        await asyncio.sleep(0.05)  # the servers' clocks count milliseconds
        between = datetime.now(UTC)
        await asyncio.sleep(0.05)  # for the same reason
        latest = await client.read("orders", from_="latest")
        since = await client.read("orders", from_=between)
        await publish(client, 40)
        assert sorted(by_line(await some(latest, 40))) == sorted(by_line(await some(since, 40)))
        assert {message.payload for message in await some(client.read("orders"), 140)} == {
            b"%06d" % number for number in range(100)
        }

    run(scenario, brokers=2)


def test_a_group_shares_the_parts_and_continues_behind_what_was_committed() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        for number, topic in enumerate(TOPICS):
            await console.move(topic, nearcast.Mode.SINGLE, [f"b{number % 3 + 1}"])
        await publish(client, 300)
        async with nearcast.connect(cluster.urls["b1"]) as one:
            first = await one.read("orders", group="billing")
            taken = await some(first, 120)
            await first.commit()
            uncommitted = await some(first, 30)
        async with nearcast.connect(cluster.urls["b1"]) as one, nearcast.connect(cluster.urls["b2"]) as two:
            readers = [await one.read("orders", group="billing"), await two.read("orders", group="billing")]
            rest: list[list[nearcast.Message]] = [[], []]

            async def consume(index: int) -> None:
                while True:
                    rest[index] += await some(readers[index], 1)
                    await readers[index].commit()

            published = 300

            async def both_read() -> bool:
                nonlocal published
                await publish(client, 30)
                published += 30
                return all(rest)

            async def all_read() -> bool:
                return sum(map(len, rest)) >= published - 120

            tasks = [asyncio.create_task(consume(index)) for index in range(2)]
            try:
                await until(both_read, "the second member gets parts", 30)
                await until(all_read, "everything is read", 30)
            finally:
                for task in tasks:
                    task.cancel()
        seen = [(message.topic, message.sequence) for message in taken]
        again = [(message.topic, message.sequence) for messages in rest for message in messages]
        assert len(set(again)) == len(again) == published - 120, "each message once"
        assert not set(seen) & set(again), "nothing that was committed"
        assert {(message.topic, message.sequence) for message in uncommitted} <= set(again), "and all that was not"

    run(scenario)


def test_what_a_killed_server_had_kept_is_reported_as_lost() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        await console.move(TOPICS[0], nearcast.Mode.SINGLE, ["b2"])
        await client.publish(TOPICS[0], b"before")
        reader = await client.read("orders")
        await some(reader, 1)
        await cluster.kill_server("b2")
        event = await asyncio.wait_for(reader.get(), 20)
        assert isinstance(event, nearcast.Lost)
        assert (event.log, event.part.partition("@")[0], event.count) == ("orders", "b2", None)
        await client.publish(TOPICS[0], b"after", timeout_s=30)
        (message,) = await some(reader, 1)
        assert message.payload == b"after"
        other = await client.read("orders")
        assert isinstance(await asyncio.wait_for(other.get(), 20), nearcast.Lost), "late readers hear of it too"
        assert (await some(other, 1))[0].payload == b"after"

    run(scenario)


def test_a_reader_that_its_program_has_dropped_leaves() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        await publish(client, 10)

        async def first() -> bytes:
            async for event in client.read("orders"):
                assert isinstance(event, nearcast.Message)
                return event.payload
            raise AssertionError

        async def followed() -> bool:
            requester = Requester(cluster.urls["b1"])
            try:
                return bool(await requester.ask("PUBSUB", "CHANNELS", LOGS + b"*"))
            finally:
                await requester.close()

        kept = await client.read("orders")
        assert await first()
        assert await followed()
        kept.close()
        del kept

        async def left() -> bool:
            gc.collect()
            return not await followed()

        await until(left, "nothing is followed any more", 20)

    run(scenario, brokers=1)


def test_large_messages_are_read_and_a_program_that_takes_none_holds_few() -> None:
    """A server closes a connection that owes 32 MB, and a page is one answer."""

    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        for _ in range(60):
            await client.publish(TOPICS[0], b"small")
        for number in range(60):
            await client.publish(TOPICS[0], b"%02d" % number + bytes(10**6))
        reader = await client.read("orders")
        await asyncio.sleep(2)  # it could read everything meanwhile
        ready = [delivery.event for delivery in reader._reader.ready] if reader._reader is not None else []
        assert len(ready) > 60
        assert sum(len(event.payload) for event in ready if isinstance(event, nearcast.Message)) < 12 << 20
        found = await some(reader, 120)
        assert [message.payload[:2] for message in found[60:]] == [b"%02d" % number for number in range(60)]

    run(scenario, brokers=1, limit_s=40)


def test_what_a_member_costs_the_server_does_not_grow_with_the_number_of_groups() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        requester = Requester(cluster.urls["b1"])

        async def spent(groups: int) -> float:
            """The time that scripts take while some groups have nothing to do, for each of them."""
            readers = [await client.read("orders", group=f"group{number}") for number in range(groups)]
            before = await script_us(requester)
            await asyncio.sleep(2)  # some beats of each
            used = await script_us(requester) - before
            for reader in readers:
                reader.close()
            return used / groups

        try:
            few, many = await spent(10), await spent(400)
        finally:
            await requester.close()
        assert many < 4 * few, (few, many)

    run(scenario, brokers=1)


async def script_us(requester: Requester) -> int:
    """How much of the server's time scripts have taken."""
    stats = await requester.ask("INFO", "commandstats")
    assert isinstance(stats, bytes)
    (line,) = [line for line in stats.splitlines() if line.startswith(b"cmdstat_eval:")]
    return int(line.partition(b"usec=")[2].partition(b",")[0])


def test_mistakes_are_explained() -> None:
    async def scenario(cluster: LocalCluster, console: Console, client: nearcast.Client) -> None:
        with pytest.raises(UsageError, match="no log 'bills'; the cluster has: orders"):
            await client.read("bills")
        with pytest.raises(UsageError, match="cannot read from 'yesterday'"):
            client.read("orders", from_="yesterday")
        with pytest.raises(UsageError, match="bad group name 'a b'"):
            await client.read("orders", group="a b")
        alone = await client.read("orders")
        with pytest.raises(UsageError, match="has no cursor"):
            await alone.commit()
        await console.drop_log("orders")
        with pytest.raises(UsageError, match="the log 'orders' was dropped"):
            await asyncio.wait_for(alone.get(), 20)

    run(scenario, brokers=1)
