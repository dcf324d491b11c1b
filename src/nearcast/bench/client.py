"""Client speed: nearcast compared with redis-py, valkey-glide and a bare RESP loop, on a server started for this.

Publisher and subscriber share one process and one event loop, as in a service that does both. Agent and controller run
in their own processes. All sides are measured in turn, several times, and the medians are compared, so that other work
on the machine affects all of them equally. A side's clock stops when its subscriber has every message.

Latency is measured at low load: one message at a time, from the call of publish until the subscriber has it.

`overhead_ratio` is what the agent and the controller cost a client: its speed while they run, relative to its speed
while they are stopped. Without its agent, a broker's lease ends after one to two seconds, and publishers then hold back
acknowledgements. So they are stopped (SIGSTOP) for one short burst at a time, and each such burst is paired with one
while they run, so that other work on the machine affects both equally. The order changes from pair to pair, so that a
trend cancels out too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median
from time import perf_counter
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from nearcast.bench.peers import (
    LOST_S,
    GlidePeer,
    Limit,
    OwnPeer,
    Peer,
    RawPeer,
    Receiver,
    RedisPyPeer,
    Send,
    by_tasks,
    rate_of,
)
from nearcast.testing.cluster import LocalCluster

# --- latency


class TimedPeer(Peer, Protocol):
    """A peer whose latency can be measured."""

    on_arrival: Callable[[], None] | None  # called for each message its subscriber gets, if set


async def trips_s(peer: TimedPeer, count: int) -> list[float]:
    """How many seconds each of `count` messages took. Each is sent when the one before was received."""
    trips = []
    for _ in range(count):
        arrived: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        peer.on_arrival = lambda arrived=arrived: arrived.set_result(perf_counter())
        begun_s = perf_counter()
        await peer.publish()
        async with asyncio.timeout(LOST_S):
            trips.append(await arrived - begun_s)
    peer.on_arrival = None
    return trips


# --- the cost of agent and controller


BURST_S = 0.5  # a lease proven before the stop lasts about three times as long


async def overhead_ratio(cluster: LocalCluster, peer: OwnPeer, limit: Limit, pairs: int) -> float:
    """Median rate with agent and controller, divided by the median rate without."""
    short = Limit(min(limit.seconds, BURST_S), limit.messages)
    running: list[float] = []
    stopped: list[float] = []
    for number in range(pairs):
        for with_agent in (True, False) if number % 2 else (False, True):
            if with_agent:
                running.append(await rate_of(peer, peer.send_nowait, short))
            else:
                stopped.append(await _rate_while_stopped(cluster, peer, short))
    return median(running) / median(stopped)


async def _rate_while_stopped(cluster: LocalCluster, peer: OwnPeer, limit: Limit) -> float:
    cluster.pause()
    try:
        return await rate_of(peer, peer.send_nowait, limit)
    finally:
        cluster.resume()
        await cluster.until_members()


# --- the comparison


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
        progress("the cost of agent and controller")
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
