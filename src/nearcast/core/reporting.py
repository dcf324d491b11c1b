"""Reporting: what a client publishes and receives of each topic, told once a second to the agents of its brokers.

Topics without traffic are reported in turn: agents count subscribers by it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.counters import ClientReport, TopicCounters
from nearcast.core.names import COUNTERS

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.client import Client
    from nearcast.core.inflow import Inflow

REPORT_EVERY_S = 1.0
SECONDS_MAX = 60.0  # that one report speaks for
REPORTED_MAX = 1000  # topics in one message; and of those without traffic, topics in one second: each has its turn


class Reporting:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._reported_s = 0.0
        self._idle_turn = 0  # how far it has come round the topics without traffic

    def tick(self, now_s: float) -> None:
        if now_s - self._reported_s < REPORT_EVERY_S:
            return
        seconds, self._reported_s = min(now_s - self._reported_s, SECONDS_MAX), now_s
        for broker, topics in self._counted().items():
            link = self._client.links.up(broker)
            if link is not None:
                self._tell(link, list(topics.items()), seconds)

    def _counted(self) -> dict[str, dict[str, TopicCounters]]:
        """What there is to report, by broker."""
        by_broker: dict[str, dict[str, TopicCounters]] = {}
        active, self._client.active = self._client.active, {}
        for flow in active | dict.fromkeys(self._idle()):
            counted = flow.take_counters()
            if counted is not None:
                broker, topic, counters = counted
                topics = by_broker.setdefault(broker, {})
                topics[topic] = topics[topic].merged(counters) if topic in topics else counters
        return by_broker

    def _tell(self, link: ClientLink, counted: list[tuple[str, TopicCounters]], seconds: float) -> None:
        for start in range(0, len(counted), REPORTED_MAX):
            part = dict(counted[start : start + REPORTED_MAX])
            link.tell(COUNTERS, msgspec.json.encode(ClientReport(self._client.client_id, seconds, part)))

    def _idle(self) -> list[Inflow]:
        """The subscriptions whose turn it is although nothing came."""
        inflows = self._client.inflows
        start = self._idle_turn if self._idle_turn < len(inflows) else 0
        self._idle_turn = start + REPORTED_MAX
        return list(islice(inflows.values(), start, self._idle_turn))
