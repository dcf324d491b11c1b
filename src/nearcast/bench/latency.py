"""Latency at low load: one message at a time, from the call of publish to the subscriber that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from nearcast.bench.burst import LOST_S, Peer


class TimedPeer(Peer, Protocol):
    on_arrival: Callable[[], None] | None  # called for each message its subscriber gets, if set


async def trips_s(peer: TimedPeer, count: int) -> list[float]:
    """Seconds each of `count` messages took. The next one is sent when the last one was received."""
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
