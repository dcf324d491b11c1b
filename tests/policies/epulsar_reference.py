"""Algorithm 1 of ePulsar in plain Python, with the readings of the policy: slow, and easy to compare with the paper."""

from __future__ import annotations

from math import inf

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Candidate
from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import Snapshot, TopicLoad
from nearcast.policies.epulsar import EPulsarConfig

IDLE = TopicLoad()


def latency(candidate: Candidate, bound: Bound | None) -> float:
    tail = bound is not None and bound.percentile is not None and bound.percentile <= 90
    return candidate.p90_s if tail else candidate.worst_s


class Reference:
    def __init__(self, snapshot: Snapshot, plan: Plan, config: EPulsarConfig) -> None:
        self.snapshot = snapshot
        self.config = config
        self.plan = {topic: place.brokers for topic, place in plan.topics.items()}  # P, a copy of P_0
        self.single = {
            topic
            for topic, place in plan.topics.items()
            if place.mode is Mode.SINGLE and place.brokers[0] in snapshot.brokers
        }
        self.movable = {topic for topic in self.single if topic not in snapshot.settling}
        self.output = {name: row.output_bytes_per_s for name, row in snapshot.brokers.items()}
        self.chosen: set[str] = set()
        self.must_leave: set[str] = set()

    def load(self, topic: str) -> TopicLoad:
        return self.snapshot.topics.get(topic, IDLE)

    def rate(self, topic: str) -> float:
        return self.load(topic).publications_per_s + self.load(topic).deliveries_per_s

    def rate_on(self, broker: str) -> float:
        here = [topic for topic, brokers in self.plan.items() if broker in brokers]
        known = [topic for topic in here if all(name in self.snapshot.brokers for name in self.plan[topic])]
        return sum(self.rate(topic) / len(self.plan[topic]) for topic in known)

    def today(self, topic: str) -> float | None:
        distances = self.snapshot.distances.get(topic)
        if distances is None or distances.now.broker not in self.plan[topic]:
            return None
        return latency(distances.now, self.snapshot.bounds.get(topic))

    # --- PerformRepartitioning

    def run(self) -> dict[str, str]:
        first = dict(self.plan)
        chosen = [topic for topic in sorted(self.movable) if self.violated(topic)]
        leaving = {name for name, row in self.snapshot.brokers.items() if row.draining}
        on_leaving = [topic for topic in sorted(self.movable) if self.plan[topic][0] in leaving]
        self.must_leave |= set(on_leaving)
        chosen += [topic for topic in on_leaving if topic not in chosen]
        self.chosen |= set(chosen)
        chosen += self.overloaded(counted=True)
        while chosen:
            self.place(chosen)
            chosen = self.overloaded(counted=False)
        return {topic: brokers[0] for topic, brokers in self.plan.items() if brokers != first[topic]}

    def violated(self, topic: str) -> bool:
        bound, today = self.snapshot.bounds.get(topic), self.today(topic)
        return bound is not None and today is not None and today > bound.seconds

    def ratio(self, broker: str) -> float:
        return self.output[broker] / self.snapshot.brokers[broker].capacity_bytes_per_s

    def overloaded(self, counted: bool) -> list[str]:
        found = []
        for broker in sorted(self.snapshot.brokers):
            if self.ratio(broker) <= self.config.resource_high:
                continue
            here = [topic for topic in self.movable if self.plan[topic] == (broker,) and self.rate(topic) > 0]
            here.sort(key=lambda topic: (-self.rate(topic), topic))
            rate, target = self.rate_on(broker), self.rate_on(broker) * self.config.resource_high / self.ratio(broker)
            if counted:
                self.must_leave |= {topic for topic in here if topic in self.chosen}
                rate -= sum(self.rate(topic) for topic in here if topic in self.chosen)
            for topic in here:
                if rate <= target:
                    break
                if topic not in self.chosen:
                    found.append(topic)
                    rate -= self.rate(topic)
        self.chosen |= set(found)
        self.must_leave |= set(found)
        return found

    # --- PlaceTopics

    def allowed(self, topic: str) -> list[str]:
        needed = self.snapshot.quorums.get(topic, 1) - 1
        return [n for n, row in sorted(self.snapshot.brokers.items()) if not row.draining and row.replicas >= needed]

    def known(self, topic: str) -> list[tuple[float, str]]:
        distances, bound = self.snapshot.distances.get(topic), self.snapshot.bounds.get(topic)
        if distances is None:
            return []
        found = {one.broker: latency(one, bound) for one in (distances.now, *distances.best)}
        return sorted((value, broker) for broker, value in found.items() if broker in self.snapshot.brokers)

    def place(self, chosen: list[str]) -> None:
        rows = []
        for topic in chosen:
            allowed, known = self.allowed(topic), self.known(topic)
            ranked = [pair for pair in known if pair[1] in allowed]
            bound = self.snapshot.bounds.get(topic)
            if bound is None or not known:
                rows.append((False, len(allowed), -self.rate(topic), topic, ranked, True))
                continue
            feasible = [pair for pair in ranked if pair[0] <= bound.seconds]
            if feasible:
                rows.append((False, len(feasible), -self.rate(topic), topic, feasible, False))
                continue
            today = self.today(topic)
            limit = inf if topic in self.must_leave else -inf if today is None else today * (1 - self.config.gain_min)
            worth = [pair for pair in ranked if pair[0] < limit]
            rows.append((True, 0, -self.rate(topic), topic, worth, topic in self.must_leave))
        for _, _, _, topic, ranked, anywhere in sorted(rows):
            self.put(topic, [broker for _, broker in ranked], anywhere)

    def put(self, topic: str, ranked: list[str], anywhere: bool) -> None:
        home = self.plan[topic][0]
        rest = sorted((name for name in self.allowed(topic)), key=lambda name: (self.ratio(name), name))
        for broker in [*ranked, *([home, *rest] if anywhere else [])]:
            if self.can_host(topic, broker):
                traffic = self.load(topic).output_bytes_per_s
                self.output[home] -= traffic
                self.output[broker] += traffic
                self.plan[topic] = (broker,)
                return

    def can_host(self, topic: str, broker: str) -> bool:
        row, at_home = self.snapshot.brokers[broker], self.plan[topic] == (broker,)
        if row.draining or (row.memory_share > self.config.resource_high and not at_home):
            return False
        more = 0.0 if at_home else self.load(topic).output_bytes_per_s
        return self.output[broker] + more <= row.capacity_bytes_per_s * self.config.resource_high
