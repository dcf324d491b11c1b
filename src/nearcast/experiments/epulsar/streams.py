"""Steady streams of messages, one client per topic, and how long each was silent.

Each client publishes on its topic at a fixed rate and is subscribed to it, so a move of the topic concerns both ends.
The topics' messages are spread evenly over the interval between two messages of one topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Self

import msgspec

from nearcast.core.model.message import Gap, Interrupted, Message
from nearcast.errors import PublishBufferFull
from nearcast.runtime.client import Client
from nearcast.runtime.connect import connect
from nearcast.runtime.subscription import Subscription

READ_EVERY_S = 0.05  # messages carry their time of arrival
PACE_S = 0.002  # how often the publishers look what is due
RETURN_S = 5.0  # how long to wait at the end for messages that are still on their way
CONNECT_AT_ONCE = 32
PAYLOAD = b"." * 200


class Tally(msgspec.Struct):
    """All streams together. `lost`: published, and not delivered in the end."""

    published: int = 0
    delivered: int = 0
    refused: int = 0  # the client's buffer was full; they count as published
    gaps: int = 0
    interruptions: int = 0

    @property
    def lost(self) -> int:
        return self.published - self.delivered


class Streams:
    """Use it with `async with`: the streams flow inside."""

    def __init__(self, urls: Sequence[str], topics: Sequence[str], rate_per_s: float) -> None:
        self.topics = list(topics)
        self.interval_s = 1 / rate_per_s
        self.tally = Tally()
        self.arrivals_s: dict[str, array[float]] = {topic: array("d") for topic in topics}  # Unix time
        self._urls = list(urls)
        self._clients: list[Client] = []
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            for first in range(0, len(self.topics), CONNECT_AT_ONCE):
                some = self.topics[first : first + CONNECT_AT_ONCE]
                opened = await asyncio.gather(*(self._open(topic) for topic in some))
                self._clients += [client for client, _ in opened]
                self._subscriptions += [subscription for _, subscription in opened]
            self._tasks = [asyncio.create_task(self._publish()), asyncio.create_task(self._read())]
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self, topic: str) -> tuple[Client, Subscription]:
        client = await self._stack.enter_async_context(connect(*self._urls))
        return client, await client.subscribe(topic)

    async def __aexit__(self, *exc_info: object) -> None:
        """Stop publishing, and wait for what is still on its way."""
        publishing, reading = self._tasks
        await _cancelled(publishing)
        for _ in range(round(RETURN_S / READ_EVERY_S)):
            if not self.tally.lost:
                break
            await asyncio.sleep(READ_EVERY_S)
        await _cancelled(reading)
        await self._stack.aclose()

    async def _publish(self) -> None:
        count = len(self.topics)
        step_s = self.interval_s / count
        begun_s, done = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - begun_s) / step_s)
            for number in range(done, due):
                self._publish_on(number % count)
            done = due
            await asyncio.sleep(PACE_S)

    def _publish_on(self, index: int) -> None:
        self.tally.published += 1
        try:
            self._clients[index].publish_nowait(self.topics[index], PAYLOAD)
        except PublishBufferFull:
            self.tally.refused += 1

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            for topic, subscription in zip(self.topics, self._subscriptions, strict=True):
                for event in subscription.take():
                    if isinstance(event, Message):
                        self.tally.delivered += 1
                        self.arrivals_s[topic].append(event.received_at)
                    elif isinstance(event, Gap):
                        self.tally.gaps += event.count
                    elif isinstance(event, Interrupted) and event.until_s is None:
                        self.tally.interruptions += 1

    def silences(self, topic: str, from_s: float, to_s: float) -> list[Silence]:
        """The silences of a topic that reach into this time, longer than its interval."""
        return silences(self.arrivals_s[topic], from_s, to_s, self.interval_s)

    def longest_s(self, from_s: float, to_s: float) -> float:
        """Of all topics, the longest silence within this time, beyond the interval."""
        return max(each.beyond_s(from_s, to_s) for topic in self.topics for each in self._around(topic, from_s, to_s))

    def _around(self, topic: str, from_s: float, to_s: float) -> list[Silence]:
        return self.silences(topic, from_s, to_s) or [Silence(from_s, from_s, 0.0)]


class Silence(msgspec.Struct, frozen=True):
    """The time between two messages of a stream. Unix times."""

    from_s: float
    to_s: float
    interval_s: float

    @property
    def excess_s(self) -> float:
        """By how much it is longer than the publishing interval."""
        return max(0.0, self.to_s - self.from_s - self.interval_s)

    def beyond_s(self, from_s: float, to_s: float) -> float:
        """The same, of its part within this time."""
        return max(0.0, min(self.to_s, to_s) - max(self.from_s, from_s) - self.interval_s)


def silences(arrivals_s: Sequence[float], from_s: float, to_s: float, interval_s: float) -> list[Silence]:
    """`arrivals_s` grow. A stream without any message in this time has been silent throughout."""
    first = max(bisect_left(arrivals_s, from_s) - 1, 0)
    seen = arrivals_s[first : bisect_left(arrivals_s, to_s) + 1]
    if len(seen) < 2:
        return [Silence(from_s, to_s, interval_s)]
    return [Silence(earlier, later, interval_s) for earlier, later in pairwise(seen) if later - earlier > interval_s]


def gap_s(moving: Streams, still: Streams, topic: str, from_s: float, to_s: float) -> float:
    """The longest silence of a topic that moves, less what topics at rest were silent at the same moments.

    Those share servers and processes with it. What silences both is the machine, not the move.
    """
    found = moving.silences(topic, from_s, to_s)
    return max((max(0.0, each.excess_s - still.longest_s(each.from_s, each.to_s)) for each in found), default=0.0)


def raw_gap_s(streams: Streams, topic: str, from_s: float, to_s: float) -> float:
    """The longest silence of a topic, whatever caused it, beyond the interval."""
    return max((each.excess_s for each in streams.silences(topic, from_s, to_s)), default=0.0)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
