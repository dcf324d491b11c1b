"""Clients: who uses which topics of this broker, and how far they are from brokers, as they say.

A gateway is one client, and says how much farther its users are than itself.

Anyone may write to the counters channel. So nothing here grows without a limit, and what is not a possible round trip
is not taken. Whoever lies about its own distances misleads only about the topics it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

import msgspec

from nearcast.core.model.counters import NOBODY_BEHIND, Behind, ClientReport, Role
from nearcast.core.model.globs import matcher
from nearcast.core.model.names import is_topic
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.probes import LONGEST_S, NEWS_S, NEWS_SHARE, differ

CLIENTS_MAX = 20_000
USES_MAX = 200_000  # pairs of a client and a topic
PATTERNS_MAX = 1000
PROBED_MAX = 64  # brokers in one client's report
FORGET_S = 15.0  # clients say every few seconds what they use

RoundTrips = Mapping[str, float]


class TopicClients(msgspec.Struct, frozen=True):
    """The clients of one topic whose distances are known."""

    topic: str
    publishers: tuple[int, ...]
    subscribers: tuple[int, ...]
    behind: Mapping[int, Behind] = {}  # of those clients that have users behind them


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
        self.patterns: dict[str, float] = {}  # and when they were last said
        self.round_trips_s: RoundTrips = {}


class Clients:
    """Inputs: heard, tick. `take` gives the topics about which something is new."""

    def __init__(self) -> None:
        self.dropped = 0  # beyond the limits, or impossible
        self._clients: dict[int, _Known] = {}
        self._topics: dict[str, dict[int, int]] = {}  # topic -> client -> roles
        self._patterns: dict[str, dict[int, None]] = {}  # pattern -> clients
        self._uses = 0
        self._changed: dict[str, None] = {}
        self._ticked_s = NEVER_S

    def heard(self, report: ClientReport, now_s: float) -> None:
        if not report.uses and not report.patterns and not report.round_trips_s:
            return
        known = self._clients.get(report.client)
        if known is None:
            if len(self._clients) >= CLIENTS_MAX:
                self.dropped += 1
                return
            known = self._clients[report.client] = _Known()
        self._measured(known, report.round_trips_s)
        for topic, roles in report.uses.items():
            behind = self._possible(report.behind.get(topic, NOBODY_BEHIND))
            self._use(report.client, known, topic, _Use(roles & (Role.PUBLISHES | Role.SUBSCRIBES), now_s, behind))
        for pattern in report.patterns:
            self._follow(report.client, known, pattern, now_s)

    def _measured(self, known: _Known, round_trips_s: RoundTrips) -> None:
        possible = {broker: one_s for broker, one_s in round_trips_s.items() if 0.0 < one_s <= LONGEST_S}
        if len(possible) < len(round_trips_s) or len(possible) > PROBED_MAX:
            self.dropped += 1
        elif possible and possible != known.round_trips_s:
            known.round_trips_s = possible
            self._changed |= dict.fromkeys(known.uses)
            self._changed |= dict.fromkeys(topic for pattern in known.patterns for topic in self._matching(pattern))

    def _possible(self, behind: Behind) -> Behind:
        if 0.0 <= behind.publishers_s <= LONGEST_S and 0.0 <= behind.subscribers_s <= LONGEST_S:
            return behind
        self.dropped += 1
        return NOBODY_BEHIND

    def _use(self, client: int, known: _Known, topic: str, use: _Use) -> None:
        before = known.uses.get(topic, _UNUSED)
        is_new = not before.roles
        if is_new and (not use.roles or self._uses >= USES_MAX or not is_topic(topic.encode("utf-8", "surrogatepass"))):
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

    def _forget(self, client: int, known: _Known, topic: str) -> None:
        del known.uses[topic]
        self._uses -= 1
        self._changed[topic] = None
        users = self._topics[topic]
        del users[client]
        if not users:
            del self._topics[topic]

    def _follow(self, client: int, known: _Known, pattern: str, now_s: float) -> None:
        if pattern not in self._patterns and len(self._patterns) >= PATTERNS_MAX:
            self.dropped += 1
            return
        if pattern not in known.patterns:
            self._patterns.setdefault(pattern, {})[client] = None
            self._changed |= dict.fromkeys(self._matching(pattern))
        known.patterns[pattern] = now_s

    def _unfollow(self, client: int, known: _Known, pattern: str) -> None:
        del known.patterns[pattern]
        del self._patterns[pattern][client]
        if not self._patterns[pattern]:
            del self._patterns[pattern]
        self._changed |= dict.fromkeys(self._matching(pattern))

    def _matching(self, pattern: str) -> list[str]:
        matches = matcher(pattern.encode("utf-8", "surrogatepass"))
        return [topic for topic in self._topics if matches(topic.encode())]

    def tick(self, now_s: float) -> None:
        """Forget what was not said again. That looks at everything, so it is done seldom."""
        if now_s - self._ticked_s < FORGET_S / 3:
            return
        self._ticked_s = now_s
        for client, known in list(self._clients.items()):
            for pattern in [pattern for pattern, said_s in known.patterns.items() if now_s - said_s > FORGET_S]:
                self._unfollow(client, known, pattern)
            for topic in [topic for topic, use in known.uses.items() if now_s - use.said_s > FORGET_S]:
                self._forget(client, known, topic)
            if not known.uses and not known.patterns:
                del self._clients[client]

    def take(self, count: int) -> list[TopicClients]:
        """The next topics about which something is new, at most so many."""
        taken = list(islice(self._changed, count))
        for topic in taken:
            del self._changed[topic]
        return [self._of(topic) for topic in taken]

    def round_trips_s(self, clients: Iterable[int]) -> dict[int, RoundTrips]:
        """What these clients have measured. The values are replaced, never changed."""
        return {client: self._clients[client].round_trips_s for client in clients}

    def all_again(self) -> None:
        """Everything is new: the distances between brokers have changed."""
        self._changed |= dict.fromkeys(self._topics)

    def _of(self, topic: str) -> TopicClients:
        users = dict(self._topics.get(topic, {}))
        name = topic.encode()
        for pattern, followers in self._patterns.items():
            if matcher(pattern.encode("utf-8", "surrogatepass"))(name):
                users |= {client: users.get(client, 0) | Role.SUBSCRIBES for client in followers}
        measured = {client: roles for client, roles in users.items() if self._clients[client].round_trips_s}
        return TopicClients(
            topic,
            tuple(client for client, roles in measured.items() if roles & Role.PUBLISHES),
            tuple(client for client, roles in measured.items() if roles & Role.SUBSCRIBES),
            {client: behind for client in measured if (behind := self._behind(client, topic)) != NOBODY_BEHIND},
        )

    def _behind(self, client: int, topic: str) -> Behind:
        return self._clients[client].uses.get(topic, _UNUSED).behind


def _moved(before: Behind, now: Behind) -> bool:
    """Whether that is news: users' distances change a little all the time."""
    return differ(now.publishers_s, before.publishers_s, NEWS_S, NEWS_SHARE) or differ(
        now.subscribers_s, before.subscribers_s, NEWS_S, NEWS_SHARE
    )
