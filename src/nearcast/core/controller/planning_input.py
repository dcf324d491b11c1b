"""What a policy may know: the reports of the last seconds, and everything else of the moment.

`LoadWindow` keeps the reports, `PlanningInput` is a view of all of it. Taking that only copies references; the slow
part is done where the policy runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from nearcast.core.model.bounds import Bound, BoundsOfTopics
from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.distances import BrokerCoordinate, TopicDistances
from nearcast.core.model.journal import BrokerEntry, BrokerState, TopicEntry
from nearcast.core.model.logs import covering, quorum_of
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import Plan, single
from nearcast.core.model.planning import BrokerLoad, Snapshot, TopicLoad
from nearcast.core.model.reports import Report
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.frames import PUSH_BYTES

# --- the load window


WINDOW_S = 5.0  # long enough to smooth out that clients' and agents' seconds differ, short enough to follow a crowd

Windows = Mapping[str, tuple[Report, ...]]  # broker -> its reports of the last seconds


class LoadWindow:
    """Every broker's reports of the last seconds, from which topic loads are computed.

    Clients count what they publish and receive, and each reports to the agent of one broker it uses. So the sum over
    all reports is a topic's whole traffic, whatever its mode.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._reports: dict[str, deque[tuple[float, Report]]] = {}

    def add(self, report: Report, now_s: float) -> None:
        kept = self._reports.setdefault(report.broker, deque())
        kept.append((now_s, report))
        while kept[0][0] < now_s - self._window_s:
            kept.popleft()

    def latest(self, broker: str) -> Report | None:
        kept = self._reports.get(broker)
        return kept[-1][1] if kept else None

    def window(self, broker: str, since_s: float = NEVER_S) -> tuple[Report, ...]:
        """The reports that were heard since then."""
        return tuple(report for heard_s, report in self._reports.get(broker, ()) if heard_s >= since_s)

    def mentions(self, broker: str, topic: str) -> bool:
        """Whether a broker has reported load of a topic."""
        return any(topic in report.topics for _, report in self._reports.get(broker, ()))


def output_bytes_per_s(reports: tuple[Report, ...]) -> float:
    """The mean of one broker's window."""
    seconds = sum(report.seconds for report in reports)
    return sum(report.output_bytes_per_s * report.seconds for report in reports) / seconds if seconds else 0.0


def topic_loads(windows: Windows) -> tuple[dict[str, TopicLoad], dict[str, str]]:
    """The load of every reported topic, and the broker that reports most of it."""
    sums: dict[str, list[float]] = {}
    busiest: dict[str, tuple[float, str]] = {}
    for broker, reports in windows.items():
        for topic, figures in _means(reports).items():
            traffic = figures[4] + figures[5]
            known = sums.get(topic)
            if known is None:  # most topics are reported by one broker
                sums[topic] = figures
                busiest[topic] = (traffic, broker)
                continue
            sums[topic] = [one + other for one, other in zip(known, figures, strict=True)]
            if traffic > busiest[topic][0]:
                busiest[topic] = (traffic, broker)
    loads = {topic: TopicLoad(*figures) for topic, figures in sums.items()}
    return loads, {topic: broker for topic, (_, broker) in busiest.items()}


def _means(reports: tuple[Report, ...]) -> dict[str, list[float]]:
    """Means per second of one broker's window, topic by topic, in the order of TopicLoad's fields."""
    seconds = sum(report.seconds for report in reports)
    counted: dict[str, list[TopicCounters]] = {}
    for report in reports:
        for topic, counters in report.topics.items():
            counted.setdefault(topic, []).append(counters)
    return {topic: _mean(counters, seconds) for topic, counters in counted.items()}


def _mean(counters: list[TopicCounters], seconds: float) -> list[float]:
    publishers = published = subscribers = received = published_bytes = received_bytes = 0
    for one in counters:
        publishers += one.publishers
        published += one.published
        subscribers += one.subscribers
        received += one.received
        published_bytes += one.published_bytes
        received_bytes += one.received_bytes
    sent_bytes = received_bytes + received * PUSH_BYTES
    return [
        publishers / seconds,
        published / seconds,
        subscribers / seconds,
        received / seconds,
        published_bytes / seconds,
        sent_bytes / seconds,
    ]


# --- planning input


class PlanningInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the controller knows that a policy may need, at one moment.

    Taking it only copies references, because that happens on the controller's loop. The slow part, adding up the
    reports, is done where the policy runs.
    """

    at_s: float
    version: int  # of the plan
    members: int  # version of the membership
    brokers: Mapping[str, BrokerEntry]  # those that carry topics
    windows: Windows
    topics: Mapping[str, TopicEntry]  # the planned ones
    fresh: frozenset[str]  # brokers that joined after the last change of the plan
    distances: Mapping[str, TopicDistances] = {}
    coordinates: Mapping[str, BrokerCoordinate] = {}
    settling: frozenset[str] = frozenset()  # topics that have just moved, or whose clients still measure distances
    restless: frozenset[str] = frozenset()  # topics that keep moving for little
    membership: Membership | None = None  # with bounds and logs
    capacity_bytes_per_s: float  # of brokers that have not reported theirs
    spare: int = 0
    coming: int = 0

    def snapshot(self) -> tuple[Snapshot, Plan]:
        """What policies read. A topic no plan names is assumed to live where most of its traffic is reported."""
        loads, reporters = topic_loads(self.windows)
        for topic, found in self.distances.items():
            if topic not in loads:  # quiet for the moment
                loads[topic], reporters[topic] = TopicLoad(), found.now.broker
        placements = {
            topic: entry.placement if (entry := self.topics.get(topic)) else single(self.members, broker, self.members)
            for topic, broker in reporters.items()
        }
        snapshot = Snapshot(
            self.at_s,
            {name: self._broker(name, entry) for name, entry in self.brokers.items()},
            loads,
            self.spare,
            self.coming,
            self.distances,
            self._bounds(loads),
            self._quorums(loads),
            self.settling | {topic for topic, entry in self.topics.items() if entry.move is not None},
            self.restless,
        )
        return snapshot, Plan(self.version, placements)

    def _bounds(self, topics: Iterable[str]) -> dict[str, Bound]:
        bounds = self.membership.bounds if self.membership is not None else {}
        if not bounds:
            return {}
        known = BoundsOfTopics(bounds)
        return {topic: bound for topic in topics if (bound := known.of(topic)) is not None}

    def _quorums(self, topics: Iterable[str]) -> dict[str, int]:
        logs = [log for log in self.membership.logs if log.quorum > 1] if self.membership is not None else []
        quorums = {topic: quorum_of(covering(logs, topic.encode())) for topic in topics} if logs else {}
        return {topic: quorum for topic, quorum in quorums.items() if quorum > 1}

    def _broker(self, name: str, entry: BrokerEntry) -> BrokerLoad:
        reports = self.windows.get(name, ())
        last = reports[-1] if reports else None
        leaving = entry.state is BrokerState.LEAVING
        info = self.membership.brokers.get(name) if self.membership is not None else None
        return BrokerLoad(
            capacity_bytes_per_s=entry.capacity_bytes_per_s or self.capacity_bytes_per_s,
            output_bytes_per_s=output_bytes_per_s(reports),
            cpu_share=last.cpu_share if last is not None else 0.0,
            memory_share=_share(last.memory_bytes, last.memory_max_bytes) if last is not None else 0.0,
            messages_per_s=_messages_per_s(reports),
            messages_high_per_s=entry.messages_high_per_s,
            connections=last.connections if last is not None else 0,
            replicas=len(info.replicas) if info is not None else 0,
            coordinate=self.coordinates[name].point_s if name in self.coordinates else (),
            site=entry.site,
            draining=leaving,
            removable=entry.by_policy if leaving else entry.rented,
            fresh=name in self.fresh,
        )


def _share(used: int, most: int) -> float:
    return used / most if most else 0.0


def _messages_per_s(reports: tuple[Report, ...]) -> float:
    """Delivered by one broker."""
    seconds = sum(report.seconds for report in reports)
    received = sum(counters.received for report in reports for counters in report.topics.values())
    return received / seconds if seconds else 0.0
