"""Reading a log, beside redis-py's XREAD; and how long publishing to a kept topic pauses when the topic moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import cycle
from statistics import median
from time import perf_counter

import msgspec

from nearcast.bench.peers import PAYLOAD, RedisPyPeer
from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode
from nearcast.errors import ClusterError
from nearcast.runtime.client import Client
from nearcast.runtime.connect import connect
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import percentile

READ_MESSAGES = 100_000
PAGE = 1000  # entries of one XREAD
MOVES = 100
TOPIC = "kept.moved"
STREAM = "bench-read"

Progress = Callable[[str], None]


class Reading(msgspec.Struct, frozen=True):
    """Messages per second of one reader, and of redis-py with one entry per message."""

    read_per_s: float
    redis_py_read_per_s: float


async def measure_reading(url: str, log: str, rounds: int, messages: int, progress: Progress) -> Reading:
    """Both sides read the same number of messages of the same size, in turn."""
    own, theirs = [], []
    redis_py = await RedisPyPeer.open(url)
    try:
        async with connect(url) as client:
            progress(f"reading: publishing {messages:,} messages for each side")
            await _fill(client, redis_py, messages)
            for number in range(1, rounds + 1):
                progress(f"reading: round {number} of {rounds}")
                own.append(messages / await _read(client, log, messages))
                theirs.append(messages / await _read_by_redis_py(redis_py, messages))
    finally:
        await redis_py.client.delete(STREAM)
        await redis_py.close()
    return Reading(median(own), median(theirs))


async def _fill(client: Client, redis_py: RedisPyPeer, messages: int) -> None:
    for _ in range(messages):
        client.publish_nowait("kept.read", PAYLOAD)
        await client.drain()
    await client.flush()
    for start in range(0, messages, PAGE):
        pipeline = redis_py.client.pipeline(transaction=False)
        for _ in range(min(PAGE, messages - start)):
            pipeline.xadd(STREAM, {"payload": PAYLOAD})
        await pipeline.execute()


async def _read(client: Client, log: str, messages: int) -> float:
    """Seconds until the messages of one topic are read."""
    begun_s, left = perf_counter(), messages
    async with client.read(log) as reader:
        async for event in reader:
            if not isinstance(event, Message):
                raise ClusterError(f"the log has lost messages: {event}")
            left -= event.topic == "kept.read"
            if not left:
                break
    return perf_counter() - begun_s


async def _read_by_redis_py(peer: RedisPyPeer, messages: int) -> float:
    begun_s, left, last = perf_counter(), messages, b"0-0"
    while left > 0:
        ((_, entries),) = await peer.client.xread({STREAM: last}, count=PAGE)
        last = entries[-1][0]
        left -= len(entries)
    return perf_counter() - begun_s


# --- moves


class Pauses(msgspec.Struct, frozen=True):
    """The longest time without an acknowledgement in each move, for a publisher that always has a message in flight."""

    p50_ms: float
    p99_ms: float


async def measure_pauses(cluster: LocalCluster, moves: int, progress: Progress) -> Pauses:
    brokers = cycle(cluster.urls)
    pauses: list[float] = []
    async with connect(*cluster.urls.values()) as client, await cluster.console() as console:
        await console.move(TOPIC, Mode.SINGLE, (next(brokers),))
        publisher = _Publisher(client)
        task = asyncio.create_task(publisher.run())
        try:
            for number in range(1, moves + 1):
                progress(f"pauses: move {number} of {moves}")
                publisher.longest_s = 0.0
                await console.move(TOPIC, Mode.SINGLE, (next(brokers),))
                pauses.append(publisher.longest_s)
        finally:
            publisher.stop = True
            await task
    return Pauses(*(1e3 * (percentile(pauses, percent) or 0.0) for percent in (50, 99)))


class _Publisher:
    """Publishes one message after the other, and notes the longest wait for an acknowledgement."""

    def __init__(self, client: Client) -> None:
        self.longest_s = 0.0
        self.stop = False
        self._client = client

    async def run(self) -> None:
        while not self.stop:
            begun_s = perf_counter()
            await self._client.publish(TOPIC, PAYLOAD)
            self.longest_s = max(self.longest_s, perf_counter() - begun_s)
