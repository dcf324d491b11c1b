"""One client with many topics on real servers: nearcast beside redis-py, each in its own process, at three sizes."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import msgspec

from nearcast.bench.topics_side import SideFigures, own_side, redis_py_side
from nearcast.testbed.cluster import LocalCluster

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
    """The figures of the size that was asked for, and how they grow up to it."""

    brokers: int
    growth: list[TopicsSize]


async def measure_topics(topics: int, *, progress: Progress, brokers: int = BROKERS) -> TopicsBench:
    """Sizes of a quarter, a half and the whole; servers are fresh for each."""
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
    """In a new process, so that no side sees the other's memory or garbage."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, side, urls, count)


def _own(urls: Sequence[str], count: int) -> SideFigures:
    return _run(own_side(urls, count))


def _redis_py(urls: Sequence[str], count: int) -> SideFigures:
    return _run(redis_py_side(urls[0], count))


def _run(side: Coroutine[Any, Any, SideFigures]) -> SideFigures:
    """On the fastest event loop there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(side)
    return uvloop.run(side)
