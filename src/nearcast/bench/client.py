"""Client speed: nearcast beside redis-py, valkey-glide and a bare RESP loop, on a server started for it.

Publisher and subscriber share one process and one event loop, as in a service that does both. Agent and controller run
in their own processes. All sides are measured in turn, several times over, and the medians are compared: what else
happens on the machine then hits all of them alike. A side's clock stops when its subscriber has every message.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median
from urllib.parse import urlsplit

import msgspec

from nearcast.bench.burst import Limit, Receiver, Send, by_tasks, rate_of
from nearcast.bench.latency import trips_s
from nearcast.bench.overhead import overhead_ratio
from nearcast.bench.own import OwnPeer
from nearcast.bench.raw import RawPeer
from nearcast.bench.redis_py import RedisPyPeer
from nearcast.bench.valkey_glide import GlidePeer
from nearcast.testbed.cluster import LocalCluster

ROUNDS = 10
TRIPS = 200  # messages per round and side for latency
WARM_UP = Limit(seconds=0.2)

Progress = Callable[[str], None]


class ClientBench(msgspec.Struct, frozen=True):
    """The figures of one run. Rates are messages per second, each published and received."""

    publish_await_per_s: float
    publish_nowait_per_s: float
    redis_py_tasks_per_s: float
    redis_py_pipeline_per_s: float
    glide_tasks_per_s: float | None
    raw_per_s: float
    ratio_await_vs_redis_py: float
    ratio_nowait_vs_redis_py_pipeline: float
    ratio_nowait_vs_raw: float
    latency_p50_ratio_vs_redis_py: float
    latency_p50_ms: float
    redis_py_latency_p50_ms: float
    agent_overhead_ratio: float


class _Sides:
    """All peers, and the ways to publish that are compared."""

    def __init__(self, raw: RawPeer, redis_py: RedisPyPeer, glide: GlidePeer | None, own: OwnPeer) -> None:
        self.own = own
        self.redis_py = redis_py
        self.ways: dict[str, tuple[Receiver, Send]] = {
            "raw": (raw, raw.send),
            "redis_py_tasks": (redis_py, by_tasks(redis_py)),
            "redis_py_pipeline": (redis_py, redis_py.send_by_pipeline),
            "publish_await": (own, by_tasks(own)),
            "publish_nowait": (own, own.send_nowait),
        }
        if glide is not None:
            self.ways["glide_tasks"] = (glide, by_tasks(glide))


async def measure_client(limit: Limit, *, rounds: int = ROUNDS, progress: Progress = lambda _: None) -> ClientBench:
    """Run everything; takes about `rounds * 8 * limit.seconds` and a few seconds more."""
    progress("starting a cluster with one broker")
    async with await LocalCluster.start(brokers=1) as cluster, AsyncExitStack() as stack:
        sides = await _open(cluster.urls["b1"], stack)
        for receiver, send in sides.ways.values():
            await rate_of(receiver, send, Limit(min(limit.seconds, WARM_UP.seconds), limit.messages))
        rates: dict[str, list[float]] = {name: [] for name in sides.ways}
        own_trips: list[float] = []
        redis_py_trips: list[float] = []
        trips = int(min(TRIPS, limit.messages))
        for number in range(1, rounds + 1):
            for name, (receiver, send) in sides.ways.items():
                progress(f"round {number} of {rounds}: {name}")
                rates[name].append(await rate_of(receiver, send, limit))
            progress(f"round {number} of {rounds}: latency")
            own_trips += await trips_s(sides.own, trips)
            redis_py_trips += await trips_s(sides.redis_py, trips)
        progress("the agent's cost")
        overhead = await overhead_ratio(cluster, sides.own, limit, pairs=rounds)
    medians = {name: median(values) for name, values in rates.items()}
    return _result(medians, median(own_trips), median(redis_py_trips), overhead)


async def _open(url: str, stack: AsyncExitStack) -> _Sides:
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 0
    raw = await RawPeer.open(host, port)
    stack.push_async_callback(raw.close)
    redis_py = await RedisPyPeer.open(url)
    stack.push_async_callback(redis_py.close)
    own = await OwnPeer.open(url)
    stack.push_async_callback(own.close)
    glide = await GlidePeer.open(host, port)
    if glide is not None:
        stack.push_async_callback(glide.close)
    return _Sides(raw, redis_py, glide, own)


def _result(rates: dict[str, float], own_p50_s: float, redis_py_p50_s: float, overhead: float) -> ClientBench:
    return ClientBench(
        publish_await_per_s=rates["publish_await"],
        publish_nowait_per_s=rates["publish_nowait"],
        redis_py_tasks_per_s=rates["redis_py_tasks"],
        redis_py_pipeline_per_s=rates["redis_py_pipeline"],
        glide_tasks_per_s=rates.get("glide_tasks"),
        raw_per_s=rates["raw"],
        ratio_await_vs_redis_py=rates["publish_await"] / rates["redis_py_tasks"],
        ratio_nowait_vs_redis_py_pipeline=rates["publish_nowait"] / rates["redis_py_pipeline"],
        ratio_nowait_vs_raw=rates["publish_nowait"] / rates["raw"],
        latency_p50_ratio_vs_redis_py=own_p50_s / redis_py_p50_s,
        latency_p50_ms=own_p50_s * 1e3,
        redis_py_latency_p50_ms=redis_py_p50_s * 1e3,
        agent_overhead_ratio=overhead,
    )
