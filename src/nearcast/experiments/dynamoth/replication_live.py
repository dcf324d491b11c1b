"""Figures 4a and 4b on real servers: a local cluster whose brokers have a limited capacity.

Sizes are a fifth of the paper's, so that servers, agents, relays and up to 161 clients fit on two cores. The capacity
of a broker is emulated (testing/network/sites.py), and chosen so that one server is full at the same point of the range
as in the paper: above 100 of 160 subscribers, above 40 of 160 publishers. What is measured is how much more three
servers can do.

Each point runs for a few seconds only. The queue of an overloaded server grows all that time, so response times beyond
capacity depend on how long the point ran. Valkey disconnects a subscriber (the paper's failed delivery) only after 60 s
above 8 MB, or at 32 MB.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from contextlib import AsyncExitStack
from statistics import fmean

import msgspec

from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode
from nearcast.core.wire.frames import HEADER_BYTES
from nearcast.errors import PublishBufferFull, UsageError
from nearcast.experiments.dynamoth.replication import (
    PUBLISHERS,
    RATE_PER_S,
    REPLICAS,
    SUBSCRIBERS,
    TOPIC,
    Crowd,
    Point,
    report,
)
from nearcast.experiments.result import Progress, Result, silent
from nearcast.runtime.client import Client
from nearcast.runtime.connect import connect
from nearcast.runtime.subscription import Subscription
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import percentile
from nearcast.testing.network.sites import Capacities

HOPELESS_MS = 1000.0  # a mean response time that ends a series: beyond it, clients would give up the server
TURN_S = 0.01  # how often publishers and subscribers check for work
CONNECT_AT_ONCE = 20  # clients that connect at the same time: they share the narrow bandwidth

FRAME_BYTES = 31 + len(TOPIC)  # of one delivery on the wire, besides envelope and payload: RESP3, three-digit length


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    counts: tuple[int, ...] = (20, 40, 60, 80, 100, 120, 140, 160)
    seconds: float = 3.0  # of each point
    payload_bytes: int = 200
    delay_s: float = 0.030  # one way between a client and a broker
    deliveries_per_s: float  # what one broker can send

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 1 or list(self.counts) != sorted(set(self.counts)):
            raise UsageError("counts must be one or more growing numbers of at least 1")
        if min(self.seconds, self.deliveries_per_s) <= 0 or self.delay_s < 0:
            raise UsageError("seconds and deliveries_per_s must be above 0, delay_s 0 or more")

    @property
    def capacity_bytes_per_s(self) -> float:
        return self.deliveries_per_s * (FRAME_BYTES + HEADER_BYTES + self.payload_bytes)


LIVE_SUBSCRIBERS = LiveSettings(deliveries_per_s=1100.0)  # full at 110 subscribers x 10/s
LIVE_PUBLISHERS = LiveSettings(deliveries_per_s=450.0)  # full at 45 publishers x 10/s


class _Crowded:
    """The clients of one series of points, and what the subscribers got."""

    def __init__(self, crowd: Crowd, settings: LiveSettings, urls: list[str], capacities: Capacities) -> None:
        self.latencies_s = array("d")
        self._crowd = crowd
        self._settings = settings
        self._urls = urls
        self._capacities = capacities
        self._publishers: list[Client] = []
        self._subscriptions: list[Subscription] = []
        self._listening: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def close(self) -> None:
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await self._stack.aclose()

    async def grow(self, clients: int) -> None:
        """Add clients until there are this many of those that the figure counts, and one of the others."""
        many_publish = self._crowd is PUBLISHERS
        await self._add(clients if many_publish else 1, 1 if many_publish else clients)

    async def _add(self, publishers: int, subscribers: int) -> None:
        while len(self._publishers) < publishers:
            count = min(CONNECT_AT_ONCE, publishers - len(self._publishers))
            self._publishers += await asyncio.gather(*(self._publisher() for _ in range(count)))
        while len(self._subscriptions) < subscribers:
            count = min(CONNECT_AT_ONCE, subscribers - len(self._subscriptions))
            for subscription in await asyncio.gather(*(self._subscribe() for _ in range(count))):
                self._subscriptions.append(subscription)
                self._listening.append(asyncio.create_task(self._listen(subscription)))

    async def _connect(self) -> Client:
        return await self._stack.enter_async_context(connect(*self._urls, resolve=self._capacities.resolve))

    async def _publisher(self) -> Client:
        client = await self._connect()
        # A client's first message waits until it knows where the topic is. It is empty, so that it is not counted.
        await client.publish(TOPIC, b"")
        return client

    async def _subscribe(self) -> Subscription:
        client = await self._connect()
        return await client.subscribe(TOPIC)

    async def _listen(self, subscription: Subscription) -> None:
        while True:
            events = [await subscription.get(), *subscription.take()]
            self.latencies_s.extend(event.latency_s for event in events if type(event) is Message and event.payload)
            await asyncio.sleep(TURN_S)

    async def measure(self, servers: int, clients: int) -> Point:
        """Publish for the given time, then wait the same time for what is still in flight."""
        self.latencies_s = array("d")
        sent = await self._publish()
        owed = sent * len(self._subscriptions)
        until_s = time.monotonic() + self._settings.seconds
        while len(self.latencies_s) < owed:
            await asyncio.sleep(TURN_S)
            if time.monotonic() > until_s:
                break
        got_s = list(self.latencies_s)
        p99_s = percentile(got_s, 99)
        return Point(
            servers=servers,
            clients=clients,
            response_ms=fmean(got_s) * 1e3 if got_s else None,
            p99_ms=p99_s * 1e3 if p99_s is not None else None,
            delivered_share=len(got_s) / owed if owed else 0.0,
        )

    async def _publish(self) -> int:
        """Run all publishers at their rate, each with its own phase. Returns how many messages they sent."""
        payload, sent = b"x" * self._settings.payload_bytes, 0
        done = [0] * len(self._publishers)
        begun_s = time.monotonic()
        while (elapsed_s := time.monotonic() - begun_s) < self._settings.seconds:
            for number, client in enumerate(self._publishers):
                due = int(elapsed_s * RATE_PER_S + number / len(self._publishers))
                for _ in range(due - done[number]):
                    try:
                        client.publish_nowait(TOPIC, payload)
                    except PublishBufferFull:
                        break  # counted all the same: a message that cannot be sent is not delivered either
                sent += due - done[number]
                done[number] = due
            await asyncio.sleep(TURN_S)
        return sent


async def measure_live(crowd: Crowd, settings: LiveSettings, progress: Progress = silent) -> list[Point]:
    """Both series, on the same cluster, with new clients for the second."""
    points: list[Point] = []
    total = 2 * len(settings.counts)
    progress(0, total, f"starting {REPLICAS} brokers")
    async with await LocalCluster.start(brokers=REPLICAS) as cluster:
        brokers, urls = tuple(cluster.urls), list(cluster.urls.values())
        console = await cluster.console()
        for servers, mode in ((1, Mode.SINGLE), (REPLICAS, crowd.mode)):
            await console.move(TOPIC, mode, brokers[:servers])
            before = total // 2 if servers > 1 else 0
            async with await Capacities.start(urls, settings.capacity_bytes_per_s, settings.delay_s) as capacities:
                crowded = _Crowded(crowd, settings, urls, capacities)
                try:
                    for number, count in enumerate(settings.counts):
                        progress(before + number, total, f"{count} {crowd.who}, servers: {servers}")
                        await crowded.grow(count)
                        points.append(await crowded.measure(servers, count))
                        if points[-1].failed or (points[-1].response_ms or 0.0) > HOPELESS_MS:
                            break
                finally:
                    await crowded.close()
    progress(total, total, "done")
    return points


async def run_live(crowd: Crowd, settings: LiveSettings, progress: Progress = silent) -> Result:
    points = await measure_live(crowd, settings, progress)
    conditions = {
        "capacity_bytes_per_s": settings.capacity_bytes_per_s,
        "payload_bytes": float(settings.payload_bytes),
        "one_way_delay_s": settings.delay_s,
        "seconds_per_point": settings.seconds,
    }
    return report(crowd, "live", conditions, points)


LIVE = {SUBSCRIBERS.name: LIVE_SUBSCRIBERS, PUBLISHERS.name: LIVE_PUBLISHERS}
