"""Distances: how far brokers are from each other and from topics' clients, as agents report it.

Nothing of it is written down. A new leader knows it again after a few seconds, as agents report everything in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.distances import BROKERS_MAX, BrokerCoordinate, BrokerDistances, TopicDistances
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.membership import BrokerInfo
from nearcast.core.model.reports import Report
from nearcast.core.model.settings import NEVER_S, RateLimit
from nearcast.core.wire.probes import LONGEST_S, landmarks_of

if TYPE_CHECKING:
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.office import Office, Roster

SHARE_S = 5.0  # between two times that agents are told, if something has changed
SHARE_AGAIN_S = 60.0  # and if nothing has: an agent may have been restarted
PAIRS_PER_S = 100_000.0  # of brokers, in all messages: 2 MB/s. With 60 brokers, all agents are told within 2 s
DIGITS = 5  # of seconds that are told: noise below that is no news
FORGET_S = 30.0  # what no agent has repeated for so long: nobody publishes or nobody subscribes any more


class Distances:
    """Inputs: heard, tick. Agents need the distances between brokers to work out those of clients."""

    def __init__(self, office: Office, roster: Roster, members: Members, *, centroids: bool = False) -> None:
        self.round_trips_s: dict[str, dict[str, float]] = {}  # from -> to
        self.coordinates: dict[str, BrokerCoordinate] = {}
        self._centroids = centroids  # the policy wants them
        self._office = office
        self._roster = roster
        self._ledger = office.ledger
        self._members = members
        self._topics: dict[str, tuple[float, TopicDistances]] = {}  # when it was last heard, and what
        self._changed = False
        self._shared_s = NEVER_S
        self._informed: dict[str, int | None] = {}  # broker -> the agent that was told last
        self._to_tell: list[str] = []  # brokers whose agents have not been told yet
        self._telling = RateLimit(PAIRS_PER_S, PAIRS_PER_S)
        self._forgot_s = NEVER_S

    def heard(self, report: Report, now_s: float) -> None:
        for topic, found in report.distances.items():
            if found.now.broker == report.broker and self._speaks_for(report.broker, topic):
                self._topics[topic] = (now_s, found)
        if report.round_trips_s is not None:
            possible = self._possible(report.round_trips_s)
            self._changed |= self.round_trips_s.get(report.broker) != possible
            self.round_trips_s[report.broker] = possible
        if report.coordinate is not None and report.coordinate.possible:
            self._changed |= self.coordinates.get(report.broker) != report.coordinate
            self.coordinates[report.broker] = report.coordinate

    def _possible(self, round_trips_s: dict[str, float]) -> dict[str, float]:
        brokers = self._ledger.journal.brokers
        return {
            name: max(round(one_s, DIGITS), 10.0**-DIGITS)
            for name, one_s in round_trips_s.items()
            if 0.0 < one_s <= LONGEST_S and name in brokers
        }

    def _speaks_for(self, broker: str, topic: str) -> bool:
        """Whether the topic is at this broker. Where it was before, clients are remembered for a while."""
        entry = self._ledger.journal.topics.get(topic)
        return broker in entry.placement.brokers if entry is not None else broker == self._roster.directory(topic)

    def of(self, topic: str) -> TopicDistances | None:
        found = self._topics.get(topic)
        return found[1] if found is not None else None

    def measuring(self) -> set[str]:
        """Topics whose clients are measuring the distances to the best brokers."""
        return {topic for topic, (_, found) in self._topics.items() if found.measuring}

    def all(self) -> dict[str, TopicDistances]:
        return {topic: found for topic, (_, found) in self._topics.items()}

    def tick(self, now_s: float) -> None:
        if not self._ledger.pending(MEMBERSHIP_KEY):
            self._list_addresses()
        if now_s - self._forgot_s >= SHARE_S:
            self._forget(now_s)
        if not self._to_tell and self._share_due(now_s):
            self._begin_to_share(now_s)
        self._share(now_s)

    # --- where agents answer probes

    def _list_addresses(self) -> None:
        membership = self._ledger.journal.membership
        brokers = {name: self._listed(name, info) for name, info in membership.brokers.items()}
        if brokers != membership.brokers:
            after = self._members.next_membership(membership, brokers, membership.ring)
            self._ledger.write({MEMBERSHIP_KEY: after})

    def _listed(self, name: str, info: BrokerInfo) -> BrokerInfo:
        hello = self._members.last_hello(name)
        if hello is None or hello.url != info.url or hello.probes == info.probes:
            return info
        return msgspec.structs.replace(info, probes=hello.probes)

    # --- what agents need to know

    def _forget(self, now_s: float) -> None:
        self._forgot_s = now_s
        there = self._roster.carriers()
        self.round_trips_s = {name: row for name, row in self.round_trips_s.items() if name in there}
        self.coordinates = {name: found for name, found in self.coordinates.items() if name in there}
        self._topics = {topic: known for topic, known in self._topics.items() if now_s - known[0] <= FORGET_S}

    def _share_due(self, now_s: float) -> bool:
        if not self.round_trips_s or now_s - self._shared_s < SHARE_S:
            return False
        agents = {name: self._members.agent_of(name) for name in self._roster.carriers()}
        return self._changed or agents != self._informed or now_s - self._shared_s > SHARE_AGAIN_S

    def _begin_to_share(self, now_s: float) -> None:
        self._shared_s, self._changed = now_s, False
        self._to_tell = sorted(self._roster.carriers(), reverse=True)
        self._informed = {name: self._members.agent_of(name) for name in self._to_tell}

    def _share(self, now_s: float) -> None:
        """Tell the next agents. A message has a figure for each pair of brokers, so they are told little by little."""
        message: BrokerDistances | None = None
        while self._to_tell and self._telling.room(now_s) >= 1:
            name = self._to_tell.pop()
            agent = self._informed[name]
            if agent is not None:
                message = message or self._message()
                self._telling.spend(sum(map(len, message.round_trips_s.values())))
                self._office.tell(name, agent, message)

    def _message(self) -> BrokerDistances:
        rows, coordinates = self.round_trips_s, self.coordinates
        if len(rows) > BROKERS_MAX:
            some = set(landmarks_of(rows, BROKERS_MAX))
            rows = {name: {to: one_s for to, one_s in rows[name].items() if to in some} for name in some}
            coordinates = {name: found for name, found in coordinates.items() if name in some}
        return BrokerDistances(self._office.term, rows, coordinates, self._centroids)
