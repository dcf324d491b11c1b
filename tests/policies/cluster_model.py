"""A model of a cluster for policies: loads follow placements exactly, and proposals are carried out at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from nearcast.core.model.placement import Mode, Placement, Plan
from nearcast.core.model.planning import (
    AddBroker,
    BrokerLoad,
    KeepBroker,
    PlaceTopic,
    Policy,
    Proposal,
    RemoveBroker,
    Snapshot,
    TopicLoad,
)

CAPACITY = 1000.0  # bytes per second: a topic of 100 loads a broker by 0.1


def traffic(output_bytes_per_s: float) -> TopicLoad:
    """A topic of so much output whose ratios ask for no replication."""
    return TopicLoad(10.0, 10.0, 10.0, 100.0, output_bytes_per_s / 10, output_bytes_per_s)


class Cluster:
    """Brokers by capacity, topics by load and place. Change what you like, then look at `snapshot` and `plan`."""

    def __init__(self, capacities: Mapping[str, float], spare: int = 0) -> None:
        self.capacities = dict(capacities)
        self.loads: dict[str, TopicLoad] = {}
        self.placements: dict[str, Placement] = {}
        self.draining: list[str] = []
        self.fresh: list[str] = []
        self.kept: list[str] = []  # brokers that may not be removed
        self.spare = spare
        self.coming = 0
        self._rented = 0

    @staticmethod
    def of(ratios: Mapping[str, Iterable[float]], spare: int = 0) -> Cluster:
        """Equal brokers, each with topics of these load ratios, named after their broker: b1.0, b1.1, ..."""
        cluster = Cluster(dict.fromkeys(ratios, CAPACITY), spare)
        for broker, shares in ratios.items():
            for number, share in enumerate(shares):
                cluster.put(f"{broker}.{number}", traffic(share * CAPACITY), broker)
        return cluster

    def put(self, topic: str, load: TopicLoad, *brokers: str, mode: Mode = Mode.SINGLE) -> None:
        self.loads[topic] = load
        self.placements[topic] = Placement(1, mode, brokers)

    @property
    def plan(self) -> Plan:
        return Plan(1, dict(self.placements))

    @property
    def snapshot(self) -> Snapshot:
        output = dict.fromkeys(self.capacities, 0.0)
        for topic, placement in self.placements.items():
            for broker in placement.brokers:
                if broker in output:
                    output[broker] += self.loads[topic].output_bytes_per_s / len(placement.brokers)
        brokers = {
            name: BrokerLoad(
                capacity_bytes_per_s=capacity,
                output_bytes_per_s=output[name],
                draining=name in self.draining,
                fresh=name in self.fresh,
                removable=name not in self.kept,
            )
            for name, capacity in self.capacities.items()
        }
        return Snapshot(0.0, brokers, dict(self.loads), self.spare, self.coming)

    @property
    def ratios(self) -> dict[str, float]:
        return {name: broker.load_ratio for name, broker in self.snapshot.brokers.items()}

    def step(self, policy: Policy) -> Proposal:
        """Ask the policy and do what it says."""
        proposal = policy.propose(self.snapshot, self.plan)
        self.apply(proposal)
        return proposal

    def apply(self, proposal: Proposal) -> None:
        if proposal.changes:
            self.fresh = []
        for change in proposal.changes:
            if isinstance(change, PlaceTopic):
                epoch = self.placements[change.topic].epoch + 1
                self.placements[change.topic] = Placement(epoch, change.mode, change.brokers)
            elif isinstance(change, AddBroker):
                self._join(change.count)
            elif isinstance(change, RemoveBroker):
                self.draining.append(change.broker)
            elif isinstance(change, KeepBroker):
                self.draining.remove(change.broker)
        self._release()

    def _join(self, count: int) -> None:
        for _ in range(count):
            self._rented += 1
            self.spare -= 1
            name = f"rented{self._rented}"
            self.capacities[name] = CAPACITY
            self.fresh.append(name)

    def _release(self) -> None:
        used = {broker for placement in self.placements.values() for broker in placement.brokers}
        for broker in [broker for broker in self.draining if broker not in used]:
            self.draining.remove(broker)
            del self.capacities[broker]
            self.spare += 1


def random_cluster(seed: int) -> Cluster:
    """Small clusters of all kinds: idle or overloaded, equal or not, with hot topics and brokers that come and go."""
    rng = Random(seed)
    names = [f"b{number}" for number in range(1, rng.randint(1, 8) + 1)]
    sizes = {name: CAPACITY * (rng.choice((0.5, 1, 2)) if seed % 3 == 0 else 1) for name in names}
    cluster = Cluster(sizes, spare=rng.choice((0, 0, 1, 4)))
    target = rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.3, 1.3))) * sum(sizes.values())  # of all topics together
    count = rng.randint(0, 60)
    weights = [rng.paretovariate(1.2) for _ in range(count)]
    crowd = rng.sample(names, rng.randint(1, len(names)))  # topics start on some of the brokers only
    for number, weight in enumerate(weights):
        load = target * weight / sum(weights)
        cluster.put(f"t{number}", traffic(load), rng.choice(crowd))
        if rng.random() < 0.2:
            cluster.loads[f"t{number}"] = _hot(rng, load)
        if len(names) > 1 and rng.random() < 0.1:
            some = rng.sample(names, rng.randint(2, len(names)))
            cluster.put(f"t{number}", cluster.loads[f"t{number}"], *some, mode=rng.choice(_REPLICATED))
    if len(names) > 1 and rng.random() < 0.3:
        cluster.fresh = [rng.choice(names)]
    if len(names) > 2 and rng.random() < 0.4:
        cluster.draining = rng.sample(names, rng.choice((1, 1, 2)))
    if rng.random() < 0.3:
        cluster.kept = [rng.choice(names)]
    cluster.coming = rng.choice((0, 0, 0, 1))
    return cluster


_REPLICATED = (Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)


def _hot(rng: Random, load: float) -> TopicLoad:
    publishers, publications = float(rng.randint(0, 50)), rng.choice((0.0, 0.5, 10.0, 900.0, 1200.0, 5000.0))
    subscribers = float(rng.choice((0, 1, 3, 240, 300, 2000)))
    return TopicLoad(publishers, publications, subscribers, publications * subscribers, publications * 100, load)
