"""Reporting: what clients say at this broker, and what the leader hears of it once a second.

Counters are added up and sent (`load.py`). Distances are state: who uses which topic and how far away it is
(`clients.py`) goes to whatever estimates distances, outside the machine, because that takes arithmetic on arrays. What
it finds comes back here, and is reported when it has changed, and again in turn: the next leader knows nothing yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

import msgspec

from nearcast.core.agent.clients import Clients
from nearcast.core.agent.load import LoadMeter, ReportLog
from nearcast.core.agent.measuring import Measuring
from nearcast.core.agent.steadying import Steadying
from nearcast.core.model.distances import BrokerCoordinate, TopicDistances
from nearcast.core.model.names import CONTROLLER_CHANNEL, COUNTERS
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus
from nearcast.core.wire.backend import AgentLink, Figures, ServerLink
from nearcast.core.wire.probes import CHANGED_S, CHANGED_SHARE, differ
from nearcast.core.wire.uplink import Uplink

EVERY_S = 1.0
DISTANCES_MAX = 1000  # topics with distances in one report
AGAIN_S = 10.0  # within which everything is reported again, as long as there are not too many topics


class Reporting:
    """Inputs: entered, reopened, tick, estimated, probed, located. It speaks to the server and on the bus."""

    def __init__(self, broker: str, agent_id: int, bus_uplink: Uplink) -> None:
        self.meter = LoadMeter(broker)
        self.log = ReportLog(broker, agent_id)
        self.clients = Clients()
        self._measuring = Measuring()
        self._steadying = Steadying()
        self._wall_offset_s = 0.0
        self._bus = bus_uplink
        self._measure_at_s = NEVER_S
        self._round_trips_s: dict[str, float] = {}
        self._coordinate: BrokerCoordinate | None = None
        self._probed_at_s = NEVER_S  # when round trips and coordinate were last reported
        self._distances: dict[str, TopicDistances] = {}
        self._news: dict[str, None] = {}  # topics to report: each once, however often it changes

    # --- inputs

    def entered(self, link: AgentLink) -> None:
        """The server is ours: hear its clients."""
        link.control[COUNTERS] = self._told

    def reopened(self, link: ServerLink) -> None:
        self.log.reopened(link)

    def _told(self, payload: bytes, now_s: float) -> None:
        report = self.meter.client_report(payload)
        if report is not None:
            self.clients.heard(report, now_s)

    def probed(self, round_trips_s: Mapping[str, float]) -> None:
        """How far other brokers are."""
        self._round_trips_s = dict(round_trips_s)
        self._probed_at_s = NEVER_S

    def located(self, coordinate: BrokerCoordinate | None) -> None:
        """Where this broker is."""
        self._coordinate = coordinate
        self._probed_at_s = NEVER_S

    def estimated(
        self, distances: Mapping[str, TopicDistances | None], sought: Mapping[str, Collection[str]], now_s: float
    ) -> None:
        """How far topics' clients are. None: there is nothing to say about the topic any more.

        `sought`: by topic, brokers to which clients should measure the distance before the topic moves.
        """
        for topic, found in distances.items():
            self._measuring.seek(topic, sought.get(topic, ()), now_s)
            if found is not None:
                self._steady(topic, found, now_s)
                self._note(topic, found, now_s)
            else:
                self._distances.pop(topic, None)
                self._news.pop(topic, None)

    def _steady(self, topic: str, found: TopicDistances, now_s: float) -> None:
        before = self._distances.get(topic)
        if before is not None and differ(found.now.worst_s, before.now.worst_s, CHANGED_S, CHANGED_SHARE):
            self._steadying.changed(topic, now_s)

    def _note(self, topic: str, found: TopicDistances, now_s: float) -> None:
        waits = self._measuring.waits(topic, now_s) or self._steadying.waits(topic, now_s)
        found = msgspec.structs.replace(found, measuring=waits)
        if self._distances.get(topic) != found:
            self._distances[topic] = found
            self._news[topic] = None

    def tick(self, workplace: AgentLink | None, now_s: float, wall_offset_s: float) -> None:
        self._wall_offset_s = wall_offset_s
        if workplace is not None:
            for topic in (*self._measuring.tick(workplace, now_s), *self._steadying.tick(now_s)):
                if topic in self._distances:
                    self._note(topic, self._distances[topic], now_s)
        if now_s - self._measure_at_s >= EVERY_S and workplace is not None:
            self._measure_at_s = now_s
            self.clients.tick(now_s)
            workplace.observe(lambda figures, at_s: self._measured(workplace, figures, at_s))

    # --- reports

    def _measured(self, link: ServerLink, figures: Figures, now_s: float) -> None:
        report = self.meter.measure(figures, now_s, self._wall_offset_s)
        if report is None:
            return
        self.log.append(link, report.at_s, bus.encode(report))
        if self._bus.link is not None:
            round_trips_s = self._round_trips_due(now_s)
            full = msgspec.structs.replace(
                report,
                round_trips_s=round_trips_s,
                coordinate=self._coordinate if round_trips_s is not None else None,
                distances=self._distances_due(),
            )
            self._bus.link.tell(CONTROLLER_CHANNEL, bus.encode(full))

    def _round_trips_due(self, now_s: float) -> dict[str, float] | None:
        if not self._round_trips_s or now_s - self._probed_at_s < AGAIN_S:
            return None
        self._probed_at_s = now_s
        return self._round_trips_s

    def _distances_due(self) -> dict[str, TopicDistances]:
        """What is new first, then a share of the others in turn."""
        news = list(islice(self._news, DISTANCES_MAX))
        due = {topic: self._distances[topic] for topic in news if topic in self._distances}
        for topic in news:
            del self._news[topic]
        share = min(DISTANCES_MAX - len(due), -(-len(self._distances) // round(AGAIN_S / EVERY_S)))
        due |= islice(self._distances.items(), share)  # those reported longest ago
        for topic in due:
            self._distances[topic] = self._distances.pop(topic)
        return due
