"""Performs a play on a real cluster over an emulated network, and records every message's latency.

    async with LivePlay(play, network, cluster.urls) as live:
        outcome = await live.run(seconds=60)

Each client of the play is a client of the cluster. It reaches the brokers through the links of its endpoint, so what it
and its messages see are the distances of the play.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Self

import msgspec

from nearcast.core.model.message import Event, Gap, Interrupted, Message
from nearcast.errors import PublishBufferFull
from nearcast.runtime.client import Client
from nearcast.runtime.connect import connect
from nearcast.runtime.subscription import Subscription
from nearcast.testing.network.emulated import EmulatedNetwork, Endpoint
from nearcast.workloads.located.play import Change, GoTo, Ignore, Listen, Play
from nearcast.workloads.located.recording import Recording

PACE_S = 0.002  # how often publishers look what is due
READ_EVERY_S = 0.05  # messages carry their time of arrival
CONNECT_AT_ONCE = 16
LAST_S = 1.0  # how long to wait at the end for what is on its way


class LiveOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients did and saw."""

    recording: Recording
    watched: Recording  # what one client heard, empty if none was named
    published: int
    refused: int  # the client's buffer was full
    missed: int  # messages reported as Gap
    interruptions: int


class _Tally(msgspec.Struct):
    published: int = 0
    refused: int = 0
    missed: int = 0
    interruptions: int = 0


class LivePlay:
    """`urls`: by broker. The network must know the brokers' servers already. `watched`: a client to look at closely."""

    def __init__(self, play: Play, network: EmulatedNetwork, urls: Mapping[str, str], *, watched: str = "") -> None:
        self._play = play
        self._network = network
        self._urls = list(urls.values())
        self._endpoints: dict[str, Endpoint] = {}
        self._clients: dict[str, Client] = {}
        self._subscriptions: dict[tuple[str, str], Subscription] = {}
        self._attaching: set[asyncio.Task[None]] = set()
        self._tally = _Tally()
        self._watched_client = watched
        self._recording = self._watched = Recording(play.bound_s, time.time())
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            for name, station in self._play.endpoints.items():
                self._endpoints[name] = await self._network.attach(
                    name, station.site, access_delay_s=station.access_delay_s
                )
            names = list(self._play.clients)
            for first in range(0, len(names), CONNECT_AT_ONCE):
                await asyncio.gather(*(self._connect(name) for name in names[first : first + CONNECT_AT_ONCE]))
            await asyncio.gather(*(self._listen(*each) for each in self._play.subscriptions))
            self._introduce()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in list(self._attaching):
            task.cancel()
        await asyncio.gather(*self._attaching, return_exceptions=True)
        await self._stack.aclose()

    async def _connect(self, name: str) -> None:
        endpoint = self._endpoints[self._play.clients[name]]
        self._clients[name] = await self._stack.enter_async_context(connect(*self._urls, resolve=endpoint.resolve))

    def _introduce(self) -> None:
        """A publisher's first message waits until it knows where the topic is. It is empty, and not counted."""
        for client, topic in self._play.publications:
            self._clients[client].publish_nowait(topic, b"")

    # --- the performance

    async def run(self, seconds: float) -> LiveOutcome:
        """Play from second 0 on."""
        begun_s = time.monotonic()
        self._recording, self._watched = (Recording(self._play.bound_s, time.time()) for _ in range(2))
        tasks = [asyncio.create_task(work) for work in (self._change(begun_s), self._read())]
        try:
            await self._publish(begun_s, seconds)
            await asyncio.sleep(LAST_S)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._hear()
        counted = msgspec.structs.asdict(self._tally)
        return LiveOutcome(recording=self._recording, watched=self._watched, **counted)

    async def _publish(self, begun_s: float, seconds: float) -> None:
        """All publishers take turns, so that their messages are spread evenly."""
        play = self._play
        payload, count = b"." * play.payload_bytes, len(play.publications)
        per_s, done = play.rate_per_s * count, 0
        while (now_s := time.monotonic() - begun_s) < seconds:
            due = int(now_s * per_s)
            for number in range(done, due):
                client, topic = play.publications[number % count]
                try:
                    self._clients[client].publish_nowait(topic, payload)
                except PublishBufferFull:
                    self._tally.refused += 1
            self._tally.published += due - done
            done = due
            await asyncio.sleep(PACE_S)

    async def _change(self, begun_s: float) -> None:
        for change in self._play.changes:
            await asyncio.sleep(max(0.0, begun_s + change.at_s - time.monotonic()))
            self._carry_out(change)

    def _carry_out(self, change: Change) -> None:
        if isinstance(change, GoTo):
            self._endpoints[change.endpoint].move(change.site)
        elif isinstance(change, Listen):
            task = asyncio.create_task(self._listen(change.client, change.topic))
            self._attaching.add(task)
            task.add_done_callback(self._attaching.discard)
        elif isinstance(change, Ignore):
            subscription = self._subscriptions.pop((change.client, change.topic), None)
            if subscription is not None:
                self._note(change.client, subscription.take())
                subscription.close()

    async def _listen(self, client: str, topic: str) -> None:
        subscription = self._subscriptions[client, topic] = self._clients[client].subscribe(topic)
        await subscription

    # --- hearing

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(READ_EVERY_S)
            self._hear()

    def _hear(self) -> None:
        for (client, _), subscription in self._subscriptions.items():
            self._note(client, subscription.take())

    def _note(self, client: str, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                if event.payload:
                    self._recording.note(event.topic, event.published_at, event.latency_s)
                    if client == self._watched_client:
                        self._watched.note(event.topic, event.published_at, event.latency_s)
            elif isinstance(event, Gap):
                self._tally.missed += event.count
            elif isinstance(event, Interrupted) and event.until_s is None:
                self._tally.interruptions += 1
