"""Plain topics through a gateway: one client of the cluster for all its users, one subscription per topic.

A message is encoded once and goes to every session that asked for its topic. A message that a user publishes carries
her name. Which user may use which topic is decided by `Rights` in rights.py, and was checked before. Agents hear how
far the farthest users of each topic are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import nearcast
from nearcast.core.model.counters import NOBODY_BEHIND, Behind
from nearcast.core.wire.gateway import TopicGap, TopicMessage, encode, packed
from nearcast.errors import Closed, ClusterError, NearcastError
from nearcast.gateway.distances import Publishers, farthest_s
from nearcast.gateway.session import Session
from nearcast.runtime.workers import Pauses, Troubles

log = logging.getLogger("nearcast.gateway")

ATTACH_S = 10.0  # to be attached, or to have a message acknowledged
SETTLE_S = 2.0  # for the answers of all servers


class _Topic:
    """One topic: its listeners, and the subscription they share."""

    def __init__(self, subscription: nearcast.Subscription) -> None:
        self.subscription = subscription
        self.sessions: set[Session] = set()
        self.reader: asyncio.Task[None] | None = None


class Topics:
    """The topics that one gateway's users use, through the server of its broker."""

    def __init__(self, server_url: str, troubles: Troubles) -> None:
        self._server_url = server_url
        self._troubles = troubles
        self._topics: dict[str, _Topic] = {}
        self._publishers = Publishers()
        self._client: nearcast.Client | None = None
        self._connected = asyncio.Event()

    async def stop(self) -> None:
        tasks = [topic.reader for topic in self._topics.values() if topic.reader is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def connect(self) -> None:
        """Returns when the cluster has answered."""
        pauses = Pauses()
        while self._client is None:
            try:
                self._client = await nearcast.connect(self._server_url)
            except ClusterError as error:
                log.info("topics: %s", error)
                await asyncio.sleep(pauses.next_s())
        self._client.probes.count_behind(self.behind)
        self._connected.set()

    async def publish(self, session: Session, topic: str, payload: bytes) -> None:
        session.published_s = time.monotonic()
        self._publishers.published(session, topic, session.published_s)
        try:
            async with asyncio.timeout(ATTACH_S):
                await (await self._connection()).publish(topic, payload, user=session.user)
        except TimeoutError:
            raise ClusterError(f"topic {topic!r}: no acknowledgement within {ATTACH_S:.0f} s; try again") from None

    async def join(self, session: Session, topic: str) -> None:
        """Returns once nothing published from then on is missed."""
        try:
            async with asyncio.timeout(ATTACH_S):
                client = await self._connection()
                found = self._topics.get(topic)
                if found is None:
                    found = self._topics[topic] = _Topic(client.subscribe(topic))
                    found.reader = asyncio.create_task(self._read(topic, found))
                found.sessions.add(session)
                session.topics.add(topic)
                await found.subscription
        except TimeoutError:
            self.leave(session, topic)
            raise ClusterError(f"topic {topic!r}: not attached within {ATTACH_S:.0f} s; try again") from None
        except NearcastError:
            self.leave(session, topic)
            raise

    def leave(self, session: Session, topic: str) -> None:
        """The last listener to leave ends the subscription."""
        session.topics.discard(topic)
        found = self._topics.get(topic)
        if found is None:
            return
        found.sessions.discard(session)
        if not found.sessions:
            del self._topics[topic]
            found.subscription.close()

    def behind(self, topic: str) -> Behind | None:
        """How far the farthest users of the topic are from this gateway; None if that is not known of any."""
        found = self._topics.get(topic)
        behind = Behind(
            farthest_s(self._publishers.of(topic, time.monotonic())),
            farthest_s(found.sessions) if found is not None else 0.0,
        )
        return behind if behind != NOBODY_BEHIND else None

    async def settle(self, session: Session) -> None:
        """Hand out what was published before now; from now on the subscriber listens elsewhere.

        A server answers after everything it pushed before, so once all have answered none of that is in flight.
        """
        if not session.topics or self._client is None:
            return
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._client.sync()
        except (TimeoutError, NearcastError):
            for topic in session.topics:
                session.send(TopicGap(topic, None, "the servers did not answer when you left"))
        for topic in session.topics:
            found = self._topics[topic]
            for event in found.subscription.take():
                _hand_out(topic, found, event)

    async def _connection(self) -> nearcast.Client:
        await self._connected.wait()
        assert self._client is not None
        return self._client

    async def _read(self, topic: str, found: _Topic) -> None:
        with contextlib.suppress(Closed, ClusterError):  # `join` reports it, see above
            async for event in found.subscription:
                try:
                    _hand_out(topic, found, event)
                except Exception as error:  # later messages must still be handed out
                    self._troubles.note("handing out a message", error)
                    for session in found.sessions:
                        session.send(TopicGap(topic, None, "the gateway failed to hand out a message"))


def _hand_out(topic: str, found: _Topic, event: nearcast.Event) -> None:
    frame = _frame(event)
    if frame is not None:
        for session in found.sessions:
            session.send_message(topic, frame)


def _frame(event: nearcast.Event) -> bytes | None:
    match event:
        case nearcast.Message():
            payload, encoding = packed(event.payload)
            publisher, sequence = f"{event.publisher or 0:016x}", event.sequence or 0
            return encode(
                TopicMessage(event.topic, payload, publisher, sequence, event.published_at, encoding, event.user)
            )
        case nearcast.Gap():
            return encode(TopicGap(event.topic, event.count, event.reason))
        case nearcast.Interrupted(until_s=None):
            return encode(TopicGap(event.topic, None, event.reason))
    return None  # the end of an interruption: it was reported when it began
