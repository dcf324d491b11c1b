"""A load: publishers and subscribers, each with its own client, that report everything they do and see to an audit.

    async with Load(cluster.urls.values(), LoadShape(topics=3)) as load:
        load.begin()
        ...                       # do something to the cluster that should be harmless
        verdict = await load.end()

Every subscriber subscribes to all topics, and every publisher publishes to all of them.

A `Crowd` is a group of subscribers that joins the topics of a load and leaves again, audited like those that stay:

    async with Crowd() as crowd:
        crowd.listen_to(load)            # before anything is published
        ...
        await crowd.come(urls, 14)
        ...
        verdict = await crowd.leave()

A crowd has its own audit, which also gets the reports of the load's publishers. It is not owed what is published after
it has decided to leave, and it waits for the rest.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Self

from nearcast.core.model.message import Event, Message
from nearcast.core.model.placement import Placement
from nearcast.core.model.settings import DEFAULT_LIMITS, Limits
from nearcast.errors import ClusterError, UsageError
from nearcast.runtime.client import Client
from nearcast.runtime.connect import connect
from nearcast.runtime.driver import Resolve
from nearcast.runtime.subscription import Subscription
from nearcast.testing.audit import Audit, Verdict, stamp

TURN_S = 0.01  # how often a publisher checks what is due
IN_FLIGHT_MAX = 64  # per publisher, far below the client's window: on a slow machine load drops and no queue builds up
SAMPLE_EVERY = 8  # one latency is kept for this many messages of a batch
QUIET_S = 3.0  # quiet means that nothing arrives for this long: longer than T_gap and all attempts to repair
ACKNOWLEDGE_S = 30.0

OnEvents = Callable[[str, list[Event]], None]


@dataclass(frozen=True, slots=True)
class LoadShape:
    """How many clients a load has, and what they publish."""

    publishers: int = 4
    subscribers: int = 4
    topics: int = 4
    rate_per_s: float = 1000.0  # of all publishers together
    payload_bytes: int = 100
    seed: int = 0
    names: tuple[str, ...] = ()  # of the topics, instead of their count

    @property
    def topic_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"storm-{number}" for number in range(self.topics))


# --- the load


class Load:
    """Publishers and subscribers, and their audit.

    `on_events` is called with what each subscriber saw, for programs that need more than the audit. `resolves`: ways to
    reach the servers, which publishers and subscribers use in turn.
    """

    def __init__(
        self,
        urls: Iterable[str],
        shape: LoadShape,
        on_events: OnEvents | None = None,
        *,
        resolves: Sequence[Resolve | None] = (None,),
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.shape = shape
        self.rate_per_s = shape.rate_per_s  # may be changed at any time
        self.audit = Audit()
        self.published = 0
        self.acknowledged = 0
        self.failed = 0  # publish failed: the message may have arrived or not
        self.latencies_s = array("d")  # a sample, from publish to receipt
        self._urls = list(urls)
        self._on_events = on_events
        self._resolves = resolves
        self._limits = limits
        self._rng = random.Random(shape.seed)
        self._stack = AsyncExitStack()
        self._publishers: list[Client] = []
        self._listening: list[asyncio.Task[None]] = []
        self._publishing: list[asyncio.Task[None]] = []
        self._in_flight: set[asyncio.Task[None]] = set()
        self._ending = False

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        tasks = [*self._publishing, *self._in_flight, *self._listening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _open(self) -> None:
        topics = self.shape.topic_names
        for number in range(self.shape.subscribers):
            name, client = f"subscriber {number}", await self._connect(number)
            subscription = await client.subscribe(*topics)
            self.audit.joined(name, topics, time.time())
            self._listening.append(asyncio.create_task(self._listen(name, subscription)))
        for number in range(self.shape.publishers):
            self._publishers.append(await self._connect(number))

    async def _connect(self, number: int) -> Client:
        """Each client starts at a different server, but knows all of them, in case one is dead."""
        first = number % len(self._urls)
        urls, resolve = [*self._urls[first:], *self._urls[:first]], self._resolves[number % len(self._resolves)]
        client = connect(*urls, resolve=resolve, limits=self._limits)
        return await self._stack.enter_async_context(client)

    # --- publishing

    @property
    def delivered(self) -> int:
        return self.audit.delivered

    def begin(self) -> None:
        """Publish from now on, at the given rate, until `end`."""
        if self._publishing:
            raise UsageError("this load has already begun: make another")
        self._publishing = [asyncio.create_task(self._publish(client)) for client in self._publishers]

    async def end(self) -> Verdict:
        """Stop publishing, wait for acknowledgements and for messages in flight, and return the verdict."""
        self._ending = True
        await asyncio.gather(*self._publishing)
        async with asyncio.timeout(ACKNOWLEDGE_S):
            while self._in_flight:
                await asyncio.wait(self._in_flight)
        await self._until_quiet()
        for task in self._listening:
            if task.done():
                task.result()  # raises if a subscriber has failed: the verdict would mean nothing
        return self.audit.verdict()

    async def _publish(self, client: Client) -> None:
        loop, topics = asyncio.get_running_loop(), self.shape.topic_names
        last_s, due, mine = loop.time(), 0.0, set[asyncio.Task[None]]()
        while not self._ending:
            now_s = loop.time()
            due += (now_s - last_s) * self.rate_per_s / self.shape.publishers
            last_s, whole = now_s, int(due)
            due -= whole  # what does not fit now is not sent later
            for _ in range(min(whole, IN_FLIGHT_MAX - len(mine))):
                task = asyncio.create_task(self._publish_one(client, self._rng.choice(topics)))
                for group in (mine, self._in_flight):
                    group.add(task)
                    task.add_done_callback(group.discard)
            await asyncio.sleep(TURN_S)

    async def _publish_one(self, client: Client, topic: str) -> None:
        # Nothing is awaited between the number and the call, so the audit and the client count in the same order.
        number = self.audit.published(client.client_id, topic, time.time())
        self.published += 1
        payload = stamp(client.client_id, topic, number).ljust(self.shape.payload_bytes, b".")
        try:
            await client.publish(topic, payload)
        except ClusterError:
            self.failed += 1
            return
        self.audit.acknowledged(client.client_id, topic, number, time.time())
        self.acknowledged += 1

    # --- subscribing

    async def _listen(self, name: str, subscription: Subscription) -> None:
        while True:
            events = [await subscription.get(), *subscription.take()]
            self.audit.saw(name, events)
            self.latencies_s.extend(e.latency_s for e in events[::SAMPLE_EVERY] if type(e) is Message)
            if self._on_events is not None:
                self._on_events(name, events)
            await asyncio.sleep(TURN_S)  # takes many at a time, which costs less per message

    async def _until_quiet(self) -> None:
        """Return when everything has arrived, or nothing more arrives."""
        last, since_s = self.delivered, time.monotonic()
        while self.delivered < self.audit.owed and time.monotonic() - since_s < QUIET_S:
            await asyncio.sleep(TURN_S)
            if self.delivered != last:
                last, since_s = self.delivered, time.monotonic()
        await asyncio.sleep(TURN_S)


# --- the crowd


LEAVE_S = 3.0  # how long a crowd waits for what it is owed before it leaves
POLL_S = 0.01


class Crowd:
    """A group of subscribers that comes once.

    `load` is its subscribers; None before they come. It stays after they have left, for its counts.
    """

    def __init__(self) -> None:
        self.load: Load | None = None
        self.present = 0
        self._audit = Audit()
        self._topics: tuple[str, ...] = ()
        self._gone: Verdict | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def listen_to(self, load: Load) -> None:
        """Call this before the first message is published: otherwise the crowd's audit could not number messages."""
        load.audit = _Overheard(self._audit)
        self._topics = load.shape.topic_names

    async def come(self, urls: Iterable[str], count: int) -> None:
        """Connect this many subscribers; returns when all of them are attached."""
        if self.load is not None:
            raise UsageError("this crowd has already come: make another")
        self.load = Load(urls, LoadShape(publishers=0, subscribers=count, names=self._topics))
        self.load.audit = self._audit
        await self._stack.enter_async_context(self.load)
        self.present = count

    async def leave(self) -> Verdict:
        """Leave when everything published until now has arrived, or nothing has arrived for a while."""
        if self._gone is None:
            self._audit.all_leave(time.time())
            self._gone = await self._when_all_has_come()
            await self._stack.aclose()
            self.present = 0
        return self._gone

    def verdict(self) -> Verdict:
        return self._gone or self._audit.verdict()

    async def _when_all_has_come(self) -> Verdict:
        ends_s = time.monotonic() + LEAVE_S
        while True:
            verdict = self._audit.verdict()
            if not verdict.lost or time.monotonic() > ends_s:
                return verdict
            await asyncio.sleep(POLL_S)


class _Overheard(Audit):
    """An audit that also passes on what publishers report to another audit."""

    def __init__(self, listener: Audit) -> None:
        super().__init__()
        self._listener = listener

    def published(self, publisher: int, topic: str, at_s: float) -> int:
        self._listener.published(publisher, topic, at_s)
        return super().published(publisher, topic, at_s)

    def acknowledged(self, publisher: int, topic: str, number: int, at_s: float) -> None:
        self._listener.acknowledged(publisher, topic, number, at_s)
        super().acknowledged(publisher, topic, number, at_s)


# --- for views


RECENT_S = 3.0


class Recent:
    """Recent latencies of one topic, of all its subscribers together. Times are seconds since the Unix epoch."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, float]] = deque()  # received at, latency

    def add(self, received_s: float, latency_s: float) -> None:
        self._arrivals.append((received_s, latency_s))
        self._forget(received_s)

    def latencies_s(self, now_s: float) -> list[float]:
        self._forget(now_s)
        return [latency_s for _, latency_s in self._arrivals]

    def _forget(self, now_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] < now_s - RECENT_S:
            self._arrivals.popleft()


def percentile(values: Iterable[float], percent: int) -> float | None:
    """The smallest value that `percent` of them do not exceed; None if there are none."""
    ordered: Sequence[float] = sorted(values)
    return ordered[(len(ordered) * percent - 1) // 100] if ordered else None


@dataclass(slots=True)
class WatchedTopic:
    """One topic as a view shows it: where it is, how often it has moved, and recent latencies.

    `target`: where it is being moved to.
    """

    subscribers: int  # those whose messages are in `recent`
    placement: Placement | None = None
    target: Placement | None = None
    moves: int = 0
    mode_changes: int = 0
    recent: Recent = field(default_factory=Recent)

    def moved_to(self, after: Placement) -> Placement | None:
        """Note where the controller says the topic is; returns where it was if it has moved."""
        before = self.placement
        if before is not None and after.epoch <= before.epoch:
            return None
        self.placement = after
        if before is None or before.same_place(after):
            return None  # its place became known, or it got a record: it has not moved
        self.moves += 1
        self.mode_changes += before.mode is not after.mode
        return before

    def saw(self, events: Iterable[Event]) -> None:
        for event in events:
            if type(event) is Message:
                self.recent.add(event.received_at, event.latency_s)
