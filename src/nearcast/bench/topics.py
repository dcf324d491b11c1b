"""One client with many topics on real servers: nearcast and redis-py, each in its own process, at three sizes.

The figures are the time to subscribe, the time to recover, and the memory. For recovery, the server cuts a connection
(CLIENT KILL). nearcast has recovered when it has reported so for every topic. redis-py reports nothing, so its server
is asked how many channels the new connection has.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from nearcast.core.model.message import Interrupted
from nearcast.core.model.settings import Limits
from nearcast.errors import Unavailable, UsageError
from nearcast.runtime.client import Client
from nearcast.runtime.requester import Requester
from nearcast.runtime.subscription import Subscription
from nearcast.testing.cluster import LocalCluster

# --- one side, in its own process


T = TypeVar("T")

LIMIT_S = 120.0  # a side that takes longer has failed
LOOK_S = 0.01
CHUNK = 1000  # channels in one SUBSCRIBE of redis-py


class SideFigures(msgspec.Struct, frozen=True):
    """What one library needed for a number of topics."""

    topics: int
    subscribe_s: float
    recover_s: float
    bytes_per_topic: float


def names(count: int) -> list[str]:
    return [f"game:tile:{number:07d}" for number in range(count)]


async def own_side(urls: Sequence[str], count: int) -> SideFigures:
    """nearcast, over all brokers of a cluster."""
    client = await Client(*urls, limits=Limits(topics=count, mailbox=2 * count), timeout_s=None)
    topics = names(count)
    before = _memory_bytes()
    began_s = perf_counter()
    subscription = await _in_time(_attached(client, topics))
    subscribe_s = perf_counter() - began_s
    used = _memory_bytes() - before
    began_s = perf_counter()
    for url in urls:
        await _cut(url, f"nearcast-{client.client_id:016x}")
    await _in_time(_whole_again(subscription, count))
    recover_s = perf_counter() - began_s
    await client.close()
    return SideFigures(count, subscribe_s, recover_s, used / count)


async def _attached(client: Client, topics: list[str]) -> Subscription:
    return await client.subscribe(*topics)


async def _whole_again(subscription: Subscription, count: int) -> None:
    ended: set[str] = set()
    async for event in subscription:
        if isinstance(event, Interrupted) and event.until_s is not None:
            ended.add(event.topic)
            if len(ended) == count:
                return


async def redis_py_side(url: str, count: int) -> SideFigures:
    """redis-py with hiredis, on one server."""
    try:
        from redis.asyncio import Redis
    except ImportError:
        raise UsageError("the benchmark compares with redis-py: pip install redis") from None
    client: Any = Redis.from_url(url)
    pubsub = client.pubsub()
    topics = names(count)
    await pubsub.connect()
    before = _memory_bytes()
    began_s = perf_counter()
    for start in range(0, count, CHUNK):
        await pubsub.subscribe(*topics[start : start + CHUNK])
        for _ in topics[start : start + CHUNK]:
            await pubsub.get_message(timeout=LIMIT_S)
    subscribe_s = perf_counter() - began_s
    used = _memory_bytes() - before
    number = await _subscriber_id(client, count, 0)
    began_s = perf_counter()
    await client.client_kill_filter(_id=number)
    reading = asyncio.create_task(_read(pubsub))
    await _in_time(_subscriber_id(client, count, number))
    recover_s = perf_counter() - began_s
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await pubsub.aclose()
    await client.aclose()
    return SideFigures(count, subscribe_s, recover_s, used / count)


async def _read(pubsub: Any) -> None:
    while True:
        await pubsub.get_message(timeout=None)


async def _subscriber_id(client: Any, count: int, other_than: int) -> int:
    """The id of the connection that has `count` channels; waits until there is one."""
    while True:
        for connection in await client.client_list():
            if int(connection["sub"]) >= count and int(connection["id"]) != other_than:
                return int(connection["id"])
        await asyncio.sleep(LOOK_S)


async def _cut(url: str, name: str) -> None:
    requester = Requester(url)
    listing = await requester.ask("CLIENT", "LIST")
    assert isinstance(listing, bytes)
    for line in listing.decode().splitlines():
        fields = dict(field.split("=", 1) for field in line.split(" ") if "=" in field)
        if fields.get("name") == name:
            await requester.ask("CLIENT", "KILL", "ID", fields["id"])
    await requester.close()


async def _in_time(work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await work
    except TimeoutError:
        raise Unavailable(f"not done within {LIMIT_S:.0f} s: try fewer topics") from None


def _memory_bytes() -> int:
    """How much memory this process uses now."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- the comparison


BROKERS = 3

Progress = Callable[[str], None]


class TopicsSize(msgspec.Struct, frozen=True):
    """Both sides at one size."""

    topics: int
    subscribe_s: float
    recover_s: float
    bytes_per_topic: float
    redis_py_subscribe_s: float
    redis_py_recover_s: float
    redis_py_bytes_per_topic: float


class TopicsBench(TopicsSize, frozen=True):
    """The figures of the requested size, and how they grow up to it."""

    brokers: int
    growth: list[TopicsSize]


async def measure_topics(topics: int, *, progress: Progress, brokers: int = BROKERS) -> TopicsBench:
    """Measure a quarter, a half and all of the topics, each with new servers."""
    growth = []
    for count in sorted({max(1, topics // 4), max(1, topics // 2), topics}):
        progress(f"{count:,} topics: nearcast on {brokers} brokers")
        async with await LocalCluster.start(brokers=brokers) as cluster:
            urls = list(cluster.urls.values())
            own = await _apart(_own, urls, count)
            progress(f"{count:,} topics: redis-py on one server")
            redis_py = await _apart(_redis_py, urls[:1], count)
        growth.append(_size(own, redis_py))
    figures = msgspec.structs.asdict(growth[-1])
    return TopicsBench(brokers=brokers, growth=growth, **figures)


def _size(own: SideFigures, redis_py: SideFigures) -> TopicsSize:
    return TopicsSize(
        own.topics,
        own.subscribe_s,
        own.recover_s,
        own.bytes_per_topic,
        redis_py.subscribe_s,
        redis_py.recover_s,
        redis_py.bytes_per_topic,
    )


async def _apart(side: Callable[[Sequence[str], int], SideFigures], urls: Sequence[str], count: int) -> SideFigures:
    """Run a side in a new process, so that it is not affected by the other's memory or garbage."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, side, urls, count)


def _own(urls: Sequence[str], count: int) -> SideFigures:
    return _run(own_side(urls, count))


def _redis_py(urls: Sequence[str], count: int) -> SideFigures:
    return _run(redis_py_side(urls[0], count))


def _run(side: Coroutine[Any, Any, SideFigures]) -> SideFigures:
    """Run it on the fastest event loop available."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(side)
    return uvloop.run(side)
