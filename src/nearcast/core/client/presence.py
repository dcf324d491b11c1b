"""Presence: which topics a client uses, even without traffic, and how far it is from brokers.

Agents learn it, and work out where a topic would be near its clients. A client that has measured nothing says nothing.
An agent that has to choose asks for the distances to a few more brokers. A gateway also says how far its users are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING

from nearcast.core.client.turns import TURNS, Turns
from nearcast.core.model.counters import PATTERNS_MAX, PROBED_MAX, Behind, ClientReport, Role
from nearcast.core.model.names import decode_topic

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client

SEEK_S = 30.0  # how long a broker is probed for an agent that asked
SOUGHT_MAX = 32  # brokers, for all agents

Uses = dict[str, int]  # topic -> roles
BehindOf = Callable[[str], Behind | None]


def _nobody(topic: str) -> None:
    return None


class Presence:
    """Inputs: probed, seek, turn. `behind` says of a topic who uses it through this client."""

    def __init__(self, client: Client) -> None:
        self.behind: BehindOf = _nobody
        self._client = client
        self._round_trips_s: dict[str, float] = {}
        self._turns = Turns()  # of all topics
        self._pattern_turn = 0
        self._informed: set[str] = set()  # brokers that know the newest round trips
        self._sought: dict[str, float] = {}  # brokers, and until when they are probed, in this order

    def probed(self, round_trips_s: Mapping[str, float]) -> None:
        """How far brokers are, in seconds there and back. If there are too many, the nearest are told."""
        self._round_trips_s = dict(nsmallest(PROBED_MAX, round_trips_s.items(), key=lambda one: one[1]))
        self._informed.clear()

    def seek(self, brokers: Iterable[str], now_s: float) -> None:
        """An agent wants to know how far these are. Anyone may write that: so only for a while, and not too many."""
        for broker in brokers:
            self._sought.pop(broker, None)
            if broker in self._client.membership.brokers:
                self._sought[broker] = now_s + SEEK_S
        while len(self._sought) > SOUGHT_MAX:
            del self._sought[next(iter(self._sought))]

    def sought(self, now_s: float) -> frozenset[str]:
        """The brokers that agents want probed."""
        while self._sought and next(iter(self._sought.values())) <= now_s:
            del self._sought[next(iter(self._sought))]
        return frozenset(self._sought)

    def turn(self) -> dict[str, ClientReport]:
        """What to say this time, by broker. Without any distance nothing is said."""
        if not self._round_trips_s:
            return {}
        uses = self._uses()
        patterns = self._patterns()
        found: dict[str, ClientReport] = {}
        for link in self._client.links.all_up():
            broker = link.broker
            if broker in uses or patterns or broker not in self._informed:
                self._informed.add(broker)
                found[broker] = self._report(uses.get(broker, {}), patterns)
        return found

    def _report(self, uses: Uses, patterns: tuple[str, ...]) -> ClientReport:
        return ClientReport(
            self._client.client_id,
            0.0,
            {},
            uses=uses,
            patterns=patterns,
            round_trips_s=self._round_trips_s,
            behind={topic: behind for topic in uses if (behind := self.behind(topic)) is not None},
        )

    def _patterns(self) -> tuple[str, ...]:
        """All of them, in one turn of a round."""
        self._pattern_turn = (self._pattern_turn + 1) % TURNS
        if self._pattern_turn:
            return ()
        return tuple(decode_topic(pattern) for pattern in islice(self._client.patterns, PATTERNS_MAX))

    def _uses(self) -> dict[str, Uses]:
        """The topics whose turn it is, by the broker whose agent should know."""
        client = self._client
        places, _ = self._turns.take(len(client.topic_publishers) + len(client.topic_subscribers))
        found: dict[str, Uses] = {}
        for topic in islice(chain(client.topic_publishers, client.topic_subscribers), places.start, places.stop):
            name = decode_topic(topic)
            for broker, role in self._roles(topic):
                uses = found.setdefault(broker, {})
                uses[name] = uses.get(name, 0) | role
        return found

    def _roles(self, topic: bytes) -> Iterator[tuple[str, Role]]:
        """Both, whichever's turn it is: an agent takes what is said of a topic for all there is to say."""
        publisher = self._client.topic_publishers.get(topic)
        if publisher is not None and publisher.lanes:
            yield publisher.lanes[0].broker, Role.PUBLISHES
        subscriber = self._client.topic_subscribers.get(topic)
        if subscriber is not None and subscriber.told_by is not None:
            yield subscriber.told_by, Role.SUBSCRIBES
