"""Clients: who uses which topics of this broker, and how far they are from brokers, as they say.

A gateway is one client, and says how much farther its users are than itself.

Anyone may write to the counters channel. So nothing here grows without a limit, nothing takes long, and what is not a
possible round trip is not taken. Whoever lies about its own distances misleads only about the topics it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from nearcast.core.agent.followers import Followers, Taken, TopicClients
from nearcast.core.model.counters import NOBODY_BEHIND, PROBED_MAX, REPORTED_MAX, Behind, ClientReport, Role
from nearcast.core.model.names import is_topic
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.probes import LONGEST_S, NEWS_S, NEWS_SHARE, differ

CLIENTS_MAX = 20_000
USES_MAX = 200_000  # pairs of a client and a topic
USES_EACH_MAX = 20_000  # of one client: it names 1,000 a second, and they are forgotten after 15 s
NAME_MAX = 256  # characters of a broker's name
FORGET_S = 15.0  # clients say every few seconds what they use
LOOKS_MAX = 10_000  # uses that one tick looks at, to forget what was not said again
PAUSED_S = 5.0  # between two ticks: this process has not run, and clients' reports still wait to be read

RoundTrips = Mapping[str, float]

_ROLES = int(Role.PUBLISHES | Role.SUBSCRIBES)  # plain numbers: flags are slow
_PUBLISHES, _SUBSCRIBES = int(Role.PUBLISHES), int(Role.SUBSCRIBES)


class _Use(msgspec.Struct, frozen=True):
    """What a client does on a topic, and when it last said so."""

    roles: int
    said_s: float
    behind: Behind = NOBODY_BEHIND


_UNUSED = _Use(0, NEVER_S)


class _Known:
    """One client."""

    def __init__(self) -> None:
        self.uses: dict[str, _Use] = {}  # by topic
        self.round_trips_s: RoundTrips = {}


class Clients:
    """Inputs: heard, tick, again. `take` gives the topics about which something is new."""

    def __init__(self) -> None:
        self.dropped = 0  # beyond the limits, or impossible
        self._clients: dict[int, _Known] = {}
        self._topics: dict[str, dict[int, int]] = {}  # topic -> client -> roles
        self._followers = Followers()
        self._uses = 0
        self._changed: dict[str, None] = {}
        self._given: set[str] = set()  # topics with users that were taken: that they end is news
        self._ticked_s = NEVER_S
        self._round_at_s = NEVER_S  # when the next round over all clients may begin
        self._round: list[int] = []  # clients that this round has not looked at

    def heard(self, report: ClientReport, now_s: float) -> None:
        if not report.uses and not report.patterns and not report.round_trips_s:
            return
        known = self._clients.get(report.client)
        if known is None:
            if len(self._clients) >= CLIENTS_MAX:
                self.dropped += 1
                return
            known = self._clients[report.client] = _Known()
        self._measured(report.client, known, report.round_trips_s)
        for topic, roles in islice(report.uses.items(), REPORTED_MAX):
            behind = self._plausible(report.behind.get(topic, NOBODY_BEHIND))
            self._use(report.client, known, topic, _Use(roles & _ROLES, now_s, behind))
        self.dropped += max(0, len(report.uses) - REPORTED_MAX)
        self.dropped += self._followers.heard(report.client, report.patterns, now_s)

    def _measured(self, client: int, known: _Known, round_trips_s: RoundTrips) -> None:
        if len(round_trips_s) > PROBED_MAX or not all(map(_possible, round_trips_s.items())):
            self.dropped += 1
        elif round_trips_s and round_trips_s != known.round_trips_s:
            known.round_trips_s = round_trips_s
            self._changed |= dict.fromkeys(known.uses)
            self._followers.moved(client)

    def _plausible(self, behind: Behind) -> Behind:
        if 0.0 <= behind.publishers_s <= LONGEST_S and 0.0 <= behind.subscribers_s <= LONGEST_S:
            return behind
        self.dropped += 1
        return NOBODY_BEHIND

    def _use(self, client: int, known: _Known, topic: str, use: _Use) -> None:
        before = known.uses.get(topic, _UNUSED)
        is_new = not before.roles
        if is_new and (not use.roles or not self._room(known) or not is_topic(topic.encode("utf-8", "surrogatepass"))):
            self.dropped += 1
            return
        if not use.roles:
            self._forget(client, known, topic)
            return
        if not _moved(before.behind, use.behind):
            use = msgspec.structs.replace(use, behind=before.behind)
        self._uses += is_new
        known.uses[topic] = use
        if use.roles != before.roles or use.behind is not before.behind:
            self._topics.setdefault(topic, {})[client] = use.roles
            self._changed[topic] = None

    def _room(self, known: _Known) -> bool:
        return self._uses < USES_MAX and len(known.uses) < USES_EACH_MAX

    def _forget(self, client: int, known: _Known, topic: str) -> None:
        del known.uses[topic]
        self._uses -= 1
        users = self._topics[topic]
        del users[client]
        if not users:
            del self._topics[topic]
        if users or topic in self._given:
            self._changed[topic] = None
        else:  # nobody has heard of it
            self._changed.pop(topic, None)

    def tick(self, now_s: float) -> None:
        """Forget what was not said again. That looks at everything, so it is done little by little."""
        paused = now_s - self._ticked_s > PAUSED_S and self._ticked_s != NEVER_S
        self._ticked_s = now_s
        if paused:
            self._round.clear()
            self._round_at_s = now_s + FORGET_S
        elif not self._round and now_s >= self._round_at_s:
            self._round_at_s = now_s + FORGET_S / 3
            self._round = list(self._clients)
        looks = 0
        while self._round and looks < LOOKS_MAX:
            looks += self._look_at(self._round.pop(), now_s)

    def _look_at(self, client: int, now_s: float) -> int:
        """Returns how much there was to look at."""
        known = self._clients[client]
        looks = 1 + len(known.uses)
        for topic in [topic for topic, use in known.uses.items() if now_s - use.said_s > FORGET_S]:
            self._forget(client, known, topic)
        self._followers.forget(client, now_s - FORGET_S)
        if not known.uses and client not in self._followers:
            del self._clients[client]
        return looks

    def take(self, count: int) -> Taken:
        """The next topics about which something is new, at most so many."""
        topics = list(islice(self._changed, count))
        for topic in topics:
            del self._changed[topic]
            (self._given.add if topic in self._topics else self._given.discard)(topic)
        moved = self._followers.take_moved()
        return Taken(
            [self._of(topic) for topic in topics],
            self._measuring_followers() if topics else {},
            moved,
            tuple(self._topics) if moved else (),
        )

    def _measuring_followers(self) -> dict[str, tuple[int, ...]]:
        return {pattern: self._measuring(clients) for pattern, clients in self._followers.by_pattern.items()}

    def round_trips_s(self, clients: Iterable[int]) -> dict[int, RoundTrips]:
        """What these clients have measured. The values are replaced, never changed."""
        return {client: self._clients[client].round_trips_s for client in clients}

    def again(self, topics: Iterable[str]) -> None:
        """Patterns match these topics, and something is new about their followers."""
        self._changed |= dict.fromkeys(topic for topic in topics if topic in self._topics)

    def all_again(self) -> None:
        """Everything is new: the distances between brokers have changed."""
        self._changed |= dict.fromkeys(self._topics)

    def _of(self, topic: str) -> TopicClients:
        users = self._topics.get(topic, {})
        measuring = self._measuring(users)
        return TopicClients(
            topic,
            tuple([client for client in measuring if users[client] & _PUBLISHES]),
            tuple([client for client in measuring if users[client] & _SUBSCRIBES]),
            {client: behind for client in measuring if (behind := self._behind(client, topic)) != NOBODY_BEHIND},
        )

    def _behind(self, client: int, topic: str) -> Behind:
        return self._clients[client].uses.get(topic, _UNUSED).behind

    def _measuring(self, clients: Iterable[int]) -> tuple[int, ...]:
        """Those that have measured something."""
        return tuple([client for client in clients if self._clients[client].round_trips_s])


def _possible(measured: tuple[str, float]) -> bool:
    broker, round_trip_s = measured
    return 0.0 < round_trip_s <= LONGEST_S and len(broker) <= NAME_MAX


def _moved(before: Behind, now: Behind) -> bool:
    """Whether that is news: users' distances change a little all the time."""
    return differ(now.publishers_s, before.publishers_s, NEWS_S, NEWS_SHARE) or differ(
        now.subscribers_s, before.subscribers_s, NEWS_S, NEWS_SHARE
    )
