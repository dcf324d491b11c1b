"""A client's upkeep: forgetting unused topics (PROTOCOL "How topics end"), and reporting traffic to agents."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client.turns import TURN_S, Turns
from nearcast.core.model.counters import REPORTED_MAX, ClientReport, TopicCounters
from nearcast.core.model.names import COUNTERS

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.client.subscriber import TopicSubscriber


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


SECONDS_MAX = 60.0  # the longest time one report covers


class Reporting:
    """Tells the agents of the client's brokers, once a second, what it published and received on each topic.

    Topics without traffic are reported in turn, because agents count subscribers from these reports. Such a report
    counts for the whole round: the mean over some seconds is right. Presence goes along. So a client at rest sends a
    message every few seconds: a message costs an agent more than what it says.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reported_s = 0.0
        self._turns = Turns()  # of topics without traffic

    def tick(self, now_s: float) -> None:
        if now_s - self._reported_s < TURN_S:
            return
        seconds, self._reported_s = min(now_s - self._reported_s, SECONDS_MAX), now_s
        counted, present = self._counted(), self._client.presence.turn()
        for broker in counted | present:
            link = self._client.links.up(broker)
            if link is not None:
                for report in self._reports(list(counted.get(broker, {}).items()), present.get(broker), seconds):
                    link.tell(COUNTERS, msgspec.json.encode(report))

    def _counted(self) -> dict[str, dict[str, TopicCounters]]:
        """What there is to report, by broker."""
        by_broker: dict[str, dict[str, TopicCounters]] = {}
        active, self._client.active = self._client.active, {}
        idle, seconds = self._idle()
        for flow in active | dict.fromkeys(idle):
            counted = flow.take_counters()
            if counted is not None:
                broker, topic, counters = counted
                if flow not in active:
                    counters = msgspec.structs.replace(counters, subscribers=seconds)
                topics = by_broker.setdefault(broker, {})
                topics[topic] = topics[topic].merged(counters) if topic in topics else counters
        return by_broker

    def _reports(
        self, counted: list[tuple[str, TopicCounters]], present: ClientReport | None, seconds: float
    ) -> Iterator[ClientReport]:
        """For one broker. What is said in one report is limited."""
        starts = range(0, len(counted), REPORTED_MAX)
        for part in (dict(counted[start : start + REPORTED_MAX]) for start in starts):
            if present is not None and len(part) + len(present.uses) <= REPORTED_MAX:
                yield msgspec.structs.replace(present, topics=part, seconds=seconds)
                present = None
            else:
                yield ClientReport(self._client.client_id, seconds, part)
        if present is not None:
            yield present

    def _idle(self) -> tuple[list[TopicSubscriber], int]:
        """The subscriptions whose turn it is although nothing arrived, and for how many seconds that counts."""
        topic_subscribers = self._client.topic_subscribers
        places, seconds = self._turns.take(len(topic_subscribers))
        return list(islice(topic_subscribers.values(), places.start, places.stop)), seconds
