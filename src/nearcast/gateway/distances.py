"""How far users are from their gateway, measured with WebSocket pings: browsers answer them by themselves.

A gateway is one client of the cluster for all its users. It tells agents how much farther than itself the farthest
user of each topic is. Only sessions that use topics are measured. Users who poll have no pings, and count as if they
were at the gateway.

One task pings all sessions, a limited number a second: with many sessions each is measured less often.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterable
from functools import partial

from nearcast.core.model.settings import RateLimit
from nearcast.core.wire.probes import LONGEST_S
from nearcast.gateway.session import Session

EVERY_S = 5.0  # between two pings of a session
AGAIN_S = 0.5  # while its distance is in doubt
PINGS_PER_S = 250.0  # of all sessions
TICK_S = 0.1
PUBLISHED_S = 15.0  # how long a user counts as a publisher of a topic
PUBLISHERS_MAX = 20_000  # pairs of a session and a topic that it has published to; the oldest are forgotten
DIGITS = 5  # of seconds that are reported

Answered = Callable[[float], None]
Ping = Callable[[Answered], None]  # measures one round trip, or none: nobody waits for it


class _Pinged:
    """One session, and when it is its turn."""

    __slots__ = ("due_s", "ping")

    def __init__(self, ping: Ping) -> None:
        self.ping = ping
        self.due_s = 0.0


class Pings:
    """Measures the sessions of one gateway. Inputs: add, remove, tick."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._limit = RateLimit(PINGS_PER_S, PINGS_PER_S * TICK_S)
        self._pinged: dict[Session, _Pinged] = {}
        self._queue: list[tuple[float, int, Session]] = []  # a heap; what is no longer so is skipped
        self._numbers = itertools.count()

    def add(self, session: Session, ping: Ping, now_s: float) -> None:
        self._pinged[session] = _Pinged(ping)
        self._schedule(session, now_s)

    def remove(self, session: Session) -> None:
        self._pinged.pop(session, None)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick(time.monotonic())

    def tick(self, now_s: float) -> None:
        while self._queue and self._queue[0][0] <= now_s:
            due_s, _, session = self._queue[0]
            pinged = self._pinged.get(session)
            is_turn = pinged is not None and pinged.due_s == due_s and session.uses_topics(now_s, PUBLISHED_S)
            if is_turn and self._limit.room(now_s) < 1:
                return
            heapq.heappop(self._queue)
            if pinged is None or pinged.due_s != due_s:
                continue
            self._schedule(session, now_s + EVERY_S * self._rng.uniform(0.9, 1.1))
            if is_turn:
                self._limit.spend(1)
                pinged.ping(partial(self._answered, session))

    def _answered(self, session: Session, round_trip_s: float) -> None:
        if 0.0 < round_trip_s <= LONGEST_S:
            now_s = time.monotonic()
            session.distance.sample(round_trip_s, now_s)
            if session.distance.doubtful:
                self._schedule(session, now_s + AGAIN_S)

    def _schedule(self, session: Session, due_s: float) -> None:
        pinged = self._pinged.get(session)
        if pinged is not None:
            pinged.due_s = due_s
            heapq.heappush(self._queue, (due_s, next(self._numbers), session))


class Publishers:
    """Which sessions have published to a topic a short while ago."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, Session], float] = {}  # and when, the oldest first
        self._topics: dict[str, dict[Session, None]] = {}

    def published(self, session: Session, topic: str, now_s: float) -> None:
        self._said.pop((topic, session), None)
        self._said[topic, session] = now_s
        self._topics.setdefault(topic, {})[session] = None
        self._forget(now_s)

    def of(self, topic: str, now_s: float) -> Iterable[Session]:
        self._forget(now_s)
        return self._topics.get(topic, ())

    def _forget(self, now_s: float) -> None:
        while self._said:
            (topic, session), said_s = next(iter(self._said.items()))
            if now_s - said_s <= PUBLISHED_S and len(self._said) <= PUBLISHERS_MAX:
                return
            del self._said[topic, session]
            del self._topics[topic][session]
            if not self._topics[topic]:
                del self._topics[topic]


def farthest_s(sessions: Iterable[Session]) -> float:
    """The longest round trip to one of them. Who was not measured counts as if at the gateway."""
    return round(max((session.distance.round_trip_s or 0.0 for session in sessions), default=0.0), DIGITS)
