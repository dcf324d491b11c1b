"""Subscribers on their way between gateways, in waves.

The source gateway is told, its session tells the user's program, that one logs in at the target and then leaves the
source: make before break. What was told is said again every second until the source's reports show that the user is
gone from there. That a user left in between for other reasons comes to the same: it will ask for its gateway.

A gateway takes part in a limited number of moves at a time, as source or as target, so that a shuffle of thousands
neither floods a target with logins nor leaves subscribers waiting in a queue they know nothing of; the rest wait here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from nearcast.core.gateways import Gateways

SAY_AGAIN_S = 1.0
STEP_S = 0.25  # reports come every two seconds: looking more often shows nothing new


class _Trip:
    __slots__ = ("said_s", "since_s", "source", "target")

    def __init__(self, source: str, target: str, now_s: float) -> None:
        self.source = source
        self.target = target
        self.since_s = now_s
        self.said_s = -1e9


class SubscriberMoves:
    """`takes` says whether a gateway may be given subscribers."""

    def __init__(self, gateways: Gateways, takes: Callable[[str], bool], at_once: int, give_up_s: float) -> None:
        self._gateways = gateways
        self._takes = takes
        self._at_once = at_once
        self._give_up_s = give_up_s
        self._waiting: dict[str, tuple[str, str]] = {}
        self._trips: dict[str, _Trip] = {}
        self._stepped_s = -1e9
        self.said: list[tuple[str, dict[str, tuple[str, str]]]] = []  # (source, user -> (target, its URL)), to send
        self.given_up: list[str] = []  # users that did not go in time, for the log
        self.ended_s = -1e9  # when the last one ended

    def __len__(self) -> int:
        return len(self._waiting) + len(self._trips)

    def __iter__(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Users with their source and target: those on their way, then those that wait."""
        yield from ((user, (trip.source, trip.target)) for user, trip in self._trips.items())
        yield from self._waiting.items()

    def target(self, user: str) -> str | None:
        """Where a user is on its way to, or will be."""
        trip = self._trips.get(user)
        if trip is not None:
            return trip.target
        return self._waiting[user][1] if user in self._waiting else None

    def by_source(self) -> Counter[str]:
        return Counter(source for _, (source, _) in self)

    def on_the_way(self) -> Counter[str]:
        """Moves under way by gateway, those from it and those to it."""
        return Counter(name for trip in self._trips.values() for name in (trip.source, trip.target))

    def add(self, user: str, source: str, target: str) -> bool:
        """Plan a move; False if it makes no sense, or not any more. One that has begun is not turned around."""
        fits = source != target and self._takes(target) and self._gateways.online_at(user, source)
        if not fits or user in self._trips:
            return False
        self._waiting[user] = (source, target)
        return True

    def step(self, now_s: float) -> None:
        if not self or now_s - self._stepped_s < STEP_S:
            return
        self._stepped_s = now_s
        self._end(now_s)
        self._begin(now_s)
        self._say(now_s)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._trips)

    def _end(self, now_s: float) -> None:
        for user, trip in list(self._trips.items()):
            gone = not self._gateways.online_at(user, trip.source)
            late = now_s - trip.since_s > self._give_up_s
            if gone or late or not self._takes(trip.target):
                del self._trips[user]
                self.ended_s = now_s
                if late and not gone:
                    self.given_up.append(user)

    def _begin(self, now_s: float) -> None:
        busy = self.on_the_way()
        for user, (source, target) in list(self._waiting.items()):
            if not (self._gateways.online_at(user, source) and self._takes(target)):
                del self._waiting[user]
            elif busy[source] < self._at_once and busy[target] < self._at_once:
                del self._waiting[user]
                self._trips[user] = _Trip(source, target, now_s)
                busy[source] += 1
                busy[target] += 1

    def _say(self, now_s: float) -> None:
        orders: dict[str, dict[str, tuple[str, str]]] = {}
        for user, trip in self._trips.items():
            if now_s - trip.said_s >= SAY_AGAIN_S:
                trip.said_s = now_s
                url = self._gateways[trip.target].report.url
                orders.setdefault(trip.source, {})[user] = (trip.target, url)
        self.said += orders.items()
