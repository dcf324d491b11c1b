"""The baseline of figure 7: topics move one after another, and clients look up where they went.

As in plain Pulsar, by the paper's account (section 3.6): the load manager unloads one topic at a time, and the old
broker tells its clients nothing but that it no longer has the topic. Nothing of this is in the product. Here

    load manager ── WAN ──> old broker: release                       (the migration time begins)
    old broker   ── WAN ──> store: no owner any more, and back
    old broker   disconnects the client; answers the load manager     (the downtime begins; the migration time ends)
    client       asks a broker where the topic is:
                 broker ── WAN ──> store: who owns it? nobody, and back
                 broker ── WAN ──> load manager: who shall? and back
                 new broker ── WAN ──> store: owner, if there is none, and back
    client       subscribes at the new broker                         (the downtime ends)

Brokers are real servers, and so is the store. What the brokers say to the store or the load manager goes through
emulated links.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from nearcast.runtime.requester import Requester

OWNER_KEY = "sequential:owner:"
RELEASE = b"sequential:release:"
RELEASED = b"sequential:released"
WHO_SHALL = b"sequential:who"
CHOSEN = b"sequential:chosen:"


class Unloaded(msgspec.Struct, frozen=True):
    """One move of the baseline."""

    topic: str
    queued_release_s: float  # from the round's beginning to "release complete"
    release_s: float  # from "release" to "release complete"
    downtime_s: float  # of its client


class Sequential:
    """`stores`: the store's URL as each broker reaches it, through its link. Use it with `async with`."""

    def __init__(self, urls: Mapping[str, str], store_url: str, stores: Mapping[str, str]) -> None:
        self._load_manager = Requester(store_url)
        self._answers: dict[bytes, asyncio.Future[bytes]] = {}
        self._target = ""
        self._brokers = {name: _Broker(name, stores[name], self) for name in urls}
        self._clients = {name: Requester(url) for name, url in urls.items()}
        self._reconnecting: dict[str, asyncio.Task[float]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Sequential:
        for requester in (self._load_manager, *self._clients.values(), *(each.far for each in self._brokers.values())):
            self._stack.push_async_callback(requester.close)
        await self._load_manager.listen(RELEASED, lambda payload: self._answered(RELEASED + payload, b""))
        await self._load_manager.listen(WHO_SHALL, self._choose)
        for broker in self._brokers.values():
            await broker.open()
        for client in self._clients.values():
            await client.ask("PING")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await asyncio.gather(*self._tasks, *self._reconnecting.values(), return_exceptions=True)
        await self._stack.aclose()

    async def move_topics(self, topics: Sequence[str], source: str, target: str) -> list[Unloaded]:
        """Move the topics from one broker to the other, one after another."""
        self._target = target
        for topic in topics:
            await self._load_manager.ask("SET", OWNER_KEY + topic, source)
        begun_s = time.monotonic()
        releases_s: list[tuple[float, float]] = []
        for topic in topics:
            release_s = time.monotonic()
            done = self.expect(RELEASED + topic.encode())
            await self._load_manager.ask("PUBLISH", RELEASE + source.encode(), topic)
            await done
            releases_s.append((time.monotonic() - begun_s, time.monotonic() - release_s))
        downtimes_s = [await self._reconnecting.pop(topic) for topic in topics]
        return [
            Unloaded(topic, queued_s, release_s, downtime_s)
            for topic, (queued_s, release_s), downtime_s in zip(topics, releases_s, downtimes_s, strict=True)
        ]

    # --- the load manager

    def _choose(self, payload: bytes) -> None:
        broker, _, topic = payload.partition(b" ")
        answer = self._target.encode() + b" " + topic
        self.spawn(self._load_manager.ask("PUBLISH", CHOSEN + broker, answer))

    # --- clients

    def disconnect(self, topic: str, source: str) -> None:
        self._reconnecting[topic] = asyncio.create_task(self._reconnect(topic, source))

    async def _reconnect(self, topic: str, source: str) -> float:
        """The client is told only that the topic is gone. Returns for how long it was disconnected."""
        begun_s = time.monotonic()
        await self._clients[source].ask("PING")  # stands for the look-up request, which is local
        owner = await self._brokers[source].look_up(topic)
        await self._brokers[owner].acquire(topic)
        subscriber = self._clients[owner]
        await subscriber.listen(f"sequential:{topic}".encode(), lambda payload: None)
        return time.monotonic() - begun_s

    # --- answers on channels

    def expect(self, key: bytes) -> asyncio.Future[bytes]:
        future = self._answers[key] = asyncio.get_running_loop().create_future()
        return future

    def _answered(self, key: bytes, payload: bytes) -> None:
        future = self._answers.pop(key, None)
        if future is not None and not future.done():
            future.set_result(payload)

    def chosen(self, broker: str, payload: bytes) -> None:
        target, _, topic = payload.partition(b" ")
        self._answered(CHOSEN + broker.encode() + topic, target)

    def spawn(self, work: Coroutine[None, None, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Broker:
    """What a broker of the baseline does besides carrying messages; `far` leads to the store over the WAN."""

    def __init__(self, name: str, store_url: str, all_of_it: Sequential) -> None:
        self.far = Requester(store_url)
        self._name = name
        self._all = all_of_it

    async def open(self) -> None:
        await self.far.listen(RELEASE + self._name.encode(), lambda payload: self._all.spawn(self._release(payload)))
        await self.far.listen(CHOSEN + self._name.encode(), partial(self._all.chosen, self._name))

    async def _release(self, payload: bytes) -> None:
        topic = payload.decode()
        await self.far.ask("DEL", OWNER_KEY + topic)
        self._all.disconnect(topic, self._name)
        await self.far.ask("PUBLISH", RELEASED, topic)

    async def look_up(self, topic: str) -> str:
        owner = await self.far.ask("GET", OWNER_KEY + topic)
        if isinstance(owner, bytes):
            return owner.decode()
        chosen = self._all.expect(CHOSEN + self._name.encode() + topic.encode())
        await self.far.ask("PUBLISH", WHO_SHALL, f"{self._name} {topic}")
        return (await chosen).decode()

    async def acquire(self, topic: str) -> None:
        await self.far.ask("SET", OWNER_KEY + topic, self._name, "NX")
