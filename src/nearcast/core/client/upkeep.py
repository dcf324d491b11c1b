"""A client's upkeep: forgetting unused topics (PROTOCOL "How topics end"), and reporting traffic to agents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.counters import REPORTED_MAX, ClientReport, TopicCounters
from nearcast.core.model.names import COUNTERS

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.client.subscriber import TopicSubscriber
    from nearcast.core.wire.backend import ClientLink


LINES_ROUNDS = 4  # a publisher resends for two rounds; doubled, so that neither clocks nor the network need be exact


class Forgetting:
    """Goes round the topics a client keeps, and ends those that are not used.

    A round begins every T_idle and looks at some topics in each tick. A topic on which nothing was published between
    two looks ends: its control channel is released, so that its broker can end the record. If it is used again, its
    numbers continue above every number ever used for an ended topic, and the first message says that nothing is missing
    before it. So it does not matter what subscribers still know about the publisher.

    A publisher's line is forgotten when nothing came from it for `LINES_ROUNDS` rounds. By then its publisher no longer
    resends a message that was delivered before: a message that is not acknowledged for two rounds fails.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begins_s: float | None = None
        self._rounds = 0
        self._looks: Iterator[None] = iter(())

    def tick(self, now_s: float) -> None:
        looked = sum(1 for _ in islice(self._looks, self._client.limits.attended))
        next_s = now_s + self._client.timing.idle_s
        if self._begins_s is None or self._begins_s > next_s:  # the latter: the cluster now uses a shorter T_idle
            self._begins_s = next_s
        elif not looked and now_s >= self._begins_s:
            # Counted from now, not from when it was due: time in which we did not run does not count as silence.
            self._begins_s = next_s
            self._rounds += 1
            self._looks = self._look_around()

    def make_room(self) -> None:
        """The topic limit is reached: end the oldest topic with nothing waiting, before its time."""
        oldest = islice(self._client.topic_publishers.values(), self._client.limits.attended)
        topic_publisher = next(
            (topic_publisher for topic_publisher in oldest if not topic_publisher.unacknowledged), None
        )
        if topic_publisher is not None:
            self._client.end_topic_publisher(topic_publisher)

    def _look_around(self) -> Iterator[None]:
        """One look at a time, so that many topics are not handled in one go."""
        client = self._client
        for topic_publisher in list(client.topic_publishers.values()):
            if client.topic_publishers.get(topic_publisher.topic) is topic_publisher and topic_publisher.unused():
                client.end_topic_publisher(topic_publisher)
            yield
        if self._rounds % LINES_ROUNDS:
            return
        for topic_subscriber in list(client.topic_subscribers.values()):
            if topic_subscriber.reception is not None and topic_subscriber.reception.forget_silent():
                topic_subscriber.reception = None
            yield
        for pattern in list(client.patterns.values()):
            for topic in pattern.topics():
                pattern.forget_silent(topic)
                yield


# --- reporting


REPORT_EVERY_S = 1.0
SECONDS_MAX = 60.0  # the longest time one report covers


class Reporting:
    """Sends what the client publishes and receives on each topic to the agents of its brokers, once a second.

    Topics without traffic are reported in turn, because agents count subscribers from these reports.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reported_s = 0.0
        self._idle_turn = 0  # position in the round over topics without traffic

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

    def _idle(self) -> list[TopicSubscriber]:
        """The subscriptions whose turn it is although nothing arrived."""
        topic_subscribers = self._client.topic_subscribers
        start = self._idle_turn if self._idle_turn < len(topic_subscribers) else 0
        self._idle_turn = start + REPORTED_MAX
        return list(islice(topic_subscribers.values(), start, self._idle_turn))
