"""Servers are killed under load while kept topics move: what is lost is reported, and nothing else is missing."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from typing import NamedTuple

import pytest

import nearcast
from nearcast.core.model.logs import Log, PartState
from nearcast.errors import NearcastError
from nearcast.runtime.console import Console
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

LOG = Log("orders", 0, ("order.*",), 3600.0, 1 << 28)
# A replica that holds the parts of a killed server is free again when they have expired.
SAFE = Log("orders", 0, ("order.*",), 8.0, 1 << 28, quorum=2)
TOPICS = [f"order.{number}" for number in range(4)]
BROKERS = ("b1", "b2", "b3")
GROUP = "audit"
SETTLE_S = 60.0
COMMIT_S = 0.1


class Kill(NamedTuple):
    """A server that was killed."""

    broker: str
    read: frozenset[bytes]  # payloads, just before
    ended_s: float

    def exposed(self, payload: bytes, began_s: float) -> bool:
        """Whether the server may have been the only one that had this message."""
        return payload not in self.read and began_s <= self.ended_s


class Load:
    """Publishers that await every message, and one reader of the log."""

    def __init__(self, client: nearcast.Client) -> None:
        self.acknowledged: dict[bytes, float] = {}  # payload -> when it was published
        self.read: list[nearcast.Message] = []
        self.lost: list[nearcast.Lost] = []
        self.stop = False
        self._client = client

    async def publish(self, topic: str) -> None:
        number = 0
        while not self.stop:
            number += 1
            payload, began_s = f"{topic} {number}".encode(), time.monotonic()
            with suppress(NearcastError):  # it may have arrived all the same
                await self._client.publish(topic, payload, timeout_s=20)
                self.acknowledged[payload] = began_s
            await asyncio.sleep(0.001)  # some hundred messages a second in all

    async def consume(self, reader: nearcast.Reader) -> None:
        committed_s = 0.0
        while True:
            event = await reader.get()
            if isinstance(event, nearcast.Lost):
                self.lost.append(event)
            else:
                self.read.append(event)
            if time.monotonic() - committed_s > COMMIT_S:
                committed_s = time.monotonic()
                with suppress(NearcastError):
                    await reader.commit()

    def check_nothing_is_lost(self) -> None:
        payloads = [message.payload for message in self.read]
        assert self.lost == []
        assert self.acknowledged.keys() - set(payloads) == set()
        assert len(set(payloads)) == len(payloads), "nothing is read twice"
        self._check_order()

    def check(self, kills: list[Kill]) -> None:
        self.check_losses(self.acknowledged.keys() - {message.payload for message in self.read}, kills)
        assert {lost.part.partition("@")[0] for lost in self.lost} == {kill.broker for kill in kills}
        assert len(self.lost) == len(kills), "each lost life is reported once"
        self._check_order()

    def check_losses(self, missing: set[bytes], kills: list[Kill]) -> None:
        for payload in missing:
            assert any(kill.exposed(payload, self.acknowledged[payload]) for kill in kills), "lost without a kill"

    def skipped(self) -> set[bytes]:
        """What was acknowledged and not read, although later messages of the same topic were."""
        read = {message.payload for message in self.read}
        newest: dict[bytes, int] = defaultdict(int)
        for payload in read:
            topic, number = payload.split()
            newest[topic] = max(newest[topic], int(number))
        unread = [payload.split() for payload in self.acknowledged.keys() - read]
        return {b" ".join((topic, number)) for topic, number in unread if int(number) < newest[topic]}

    def _check_order(self) -> None:
        seen: dict[tuple[str, int | None], int] = defaultdict(int)
        for message in {message.payload: message for message in reversed(self.read)}.values().__reversed__():
            assert message.sequence is not None
            assert message.sequence > seen[message.topic, message.publisher], "a publisher's order"
            seen[message.topic, message.publisher] = message.sequence


async def all_read(console: Console) -> bool:
    state = await console.logs()
    loads = [load for parts in state.parts.values() for load in parts.values()]
    return bool(loads) and sum(load.groups.get(GROUP, load.total) for load in loads) < 1000


async def is_held(console: Console, broker: str) -> bool:
    """Whether the last life of a broker is read elsewhere."""
    lives = [former for former in (await console.logs()).former if former.life.startswith(f"{broker}@")]
    return bool(lives) and lives[-1].state is PartState.HELD


async def storm(kills: int, log: Log = LOG) -> None:
    async with (
        await LocalCluster.start(brokers=BROKERS, replicas=2 * (log.quorum - 1)) as cluster,
        await cluster.console() as console,
        nearcast.connect(*cluster.urls.values()) as publisher,
        nearcast.connect(*cluster.urls.values()) as other,
    ):
        await console.create_log(log)
        load = Load(publisher)
        reader = await other.read("orders", group=GROUP)
        tasks = [asyncio.create_task(load.publish(topic)) for topic in TOPICS]
        consumer = asyncio.create_task(load.consume(reader))
        killed: list[Kill] = []
        for number in range(kills):
            for place, topic in enumerate(TOPICS):
                await console.move(topic, nearcast.Mode.SINGLE, (BROKERS[(number + place) % 3],), timeout_s=SETTLE_S)
            await until(lambda: all_read(console), "the log is read", SETTLE_S)
            load.check_losses(load.skipped(), killed)
            broker, read = BROKERS[number % 3], frozenset(message.payload for message in load.read)
            await cluster.kill_server(broker)
            killed.append(Kill(broker, read, time.monotonic()))
            if log is LOG:
                await until(lambda n=number: len(load.lost) > n, "the loss is reported", SETTLE_S)
            else:
                await until(lambda b=broker: is_held(console, b), "a replica holds its parts", SETTLE_S)
            await cluster.restart_server(broker)
            await cluster.restart_agent(broker)
            await cluster.until_members([broker])
        load.stop = True
        await asyncio.gather(*tasks)

        def complete() -> bool:
            since_s = killed[-1].ended_s if log is LOG else 0.0
            wanted = {payload for payload, at_s in load.acknowledged.items() if at_s > since_s}
            return wanted <= {message.payload for message in load.read}

        await until(complete, "everything is read", SETTLE_S)
        consumer.cancel()
        assert len(load.acknowledged) > 100 * kills
        load.check(killed) if log is LOG else load.check_nothing_is_lost()


def test_what_killed_servers_kept_is_reported_and_nothing_else_is_missing() -> None:
    asyncio.run(asyncio.wait_for(storm(3), 110))


def test_with_a_quorum_nothing_is_lost_or_read_twice() -> None:
    asyncio.run(asyncio.wait_for(storm(3, SAFE), 110))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("log", [LOG, SAFE], ids=["one server", "a quorum of two"])
def test_twenty_kills(log: Log) -> None:
    asyncio.run(asyncio.wait_for(storm(20, log), 880))
