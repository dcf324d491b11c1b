"""A model of a cluster with places: brokers and clients on a plane, where a distance is a one-way latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import msgspec
from cluster_model import CAPACITY, Cluster, traffic

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import CANDIDATES_MAX, Candidate, Centroids, TopicDistances
from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Snapshot

Point = tuple[float, float]


class GeoCluster(Cluster):
    """Topics have publishers and subscribers at places; what agents would report of them is exact."""

    def __init__(self, places: dict[str, Point], spare: int = 0, capacity: float = CAPACITY) -> None:
        super().__init__(dict.fromkeys(places, capacity), spare)
        self.places = dict(places)
        self.clients: dict[str, tuple[Sequence[Point], Sequence[Point]]] = {}
        self.bounds: dict[str, Bound] = {}
        self.quorums: dict[str, int] = {}
        self.settling: frozenset[str] = frozenset()
        self.rows: dict[str, dict[str, object]] = {}  # more of a broker's figures

    def topic(
        self,
        name: str,
        broker: str,
        publishers: Sequence[Point],
        subscribers: Sequence[Point],
        bound_s: float | None = None,
        load: float = 10.0,
        percentile: float | None = None,
    ) -> None:
        self.put(name, traffic(load), broker)
        self.clients[name] = (publishers, subscribers)
        if bound_s is not None:
            self.bounds[name] = Bound(bound_s, percentile)

    def candidate(self, topic: str, broker: str) -> Candidate:
        publishers, subscribers = self.clients[topic]
        up_s = [math.dist(point, self.places[broker]) for point in publishers]
        down_s = [math.dist(point, self.places[broker]) for point in subscribers]
        pairs = sorted(one + other for one in up_s for other in down_s)
        return Candidate(broker, max(up_s), max(down_s), pairs[math.ceil(0.9 * len(pairs)) - 1])

    def distances(self, topic: str) -> TopicDistances | None:
        publishers, subscribers = self.clients.get(topic, ((), ()))
        there = [name for name in self.capacities if name in self.places]
        now = self.placements[topic].brokers[0]
        if not publishers or not subscribers or now not in there:
            return None  # a rented broker's place is not known yet
        best = sorted((self.candidate(topic, name) for name in there), key=lambda one: (one.worst_s, one.broker))
        centroids = [_mean(points) for points in (publishers, subscribers)]
        deviation_s = sum(
            max(math.dist(point, centre) for point in points)
            for points, centre in zip((publishers, subscribers), centroids, strict=True)
        )
        # Coordinates are in round trips.
        doubled = [(*(2 * x for x in centre), 0.0) for centre in centroids]
        known = Centroids(doubled[0], doubled[1], 2 * deviation_s)
        return TopicDistances(self.candidate(topic, now), tuple(best[:CANDIDATES_MAX]), known)

    @property
    def snapshot(self) -> Snapshot:
        plain = super().snapshot
        brokers = {
            name: msgspec.structs.replace(row, **({"coordinate": self._coordinate(name)} | self.rows.get(name, {})))
            for name, row in plain.brokers.items()
        }
        found = {topic: self.distances(topic) for topic in self.placements}
        return msgspec.structs.replace(
            plain,
            brokers=brokers,
            distances={topic: one for topic, one in found.items() if one is not None},
            bounds=dict(self.bounds),
            quorums=dict(self.quorums),
            settling=self.settling,
        )

    def _coordinate(self, broker: str) -> tuple[float, ...]:
        """In round trips. A rented broker has none yet."""
        return (*(2 * x for x in self.places[broker]), 0.0) if broker in self.places else ()

    @property
    def missed(self) -> list[str]:
        """Topics on one broker that take longer than they may."""
        snapshot = self.snapshot
        return [
            topic
            for topic, bound in sorted(self.bounds.items())
            if self.placements[topic].mode is Mode.SINGLE and topic in snapshot.distances
            if self._latency_s(topic, bound) > bound.seconds
        ]

    def _latency_s(self, topic: str, bound: Bound) -> float:
        here = self.candidate(topic, self.placements[topic].brokers[0])
        return here.worst_s if bound.percentile is None or bound.percentile > 90 else here.p90_s


def random_geography(seed: int) -> GeoCluster:
    """Small worlds of all kinds: tight and loose bounds, full brokers, quorums, topics that settle or have replicas."""
    rng = Random(seed)
    names = [f"b{number:02}" for number in range(1, rng.randint(2, 12) + 1)]
    cluster = GeoCluster({name: _point(rng) for name in names}, spare=rng.choice((0, 0, 2)))
    count = rng.randint(1, 40)
    mean = rng.uniform(0.05, 0.9) * CAPACITY * len(names) / count
    for number in range(count):
        topic, centre = f"t{number:02}", _point(rng)
        publishers = [_near(rng, centre) for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 3))]
        subscribers = [_near(rng, centre) for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 5))]
        bound_s = rng.choice((None, rng.uniform(0.02, 0.3), rng.uniform(0.1, 0.2)))
        percentile = rng.choice((None, None, 50.0, 90.0, 99.0)) if bound_s else None
        cluster.topic(topic, rng.choice(names), publishers, subscribers, bound_s, rng.expovariate(1 / mean), percentile)
        if rng.random() < 0.1:
            cluster.put(topic, cluster.loads[topic], *rng.sample(names, 2), mode=Mode.ALL_PUBLISHERS)
        if rng.random() < 0.1:
            cluster.quorums[topic] = rng.randint(2, 3)
    cluster.settling = frozenset(topic for topic in cluster.placements if rng.random() < 0.05)
    cluster.rows = {name: {"replicas": rng.randint(0, 2)} for name in names}
    if rng.random() < 0.3:
        cluster.rows[rng.choice(names)]["memory_share"] = 0.9
    if len(names) > 2 and rng.random() < 0.3:
        cluster.draining = [rng.choice(names)]
        cluster.kept = list(names)
    return cluster


def _mean(points: Sequence[Point]) -> Point:
    return (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))


def _point(rng: Random) -> Point:
    return (rng.uniform(0.0, 0.2), rng.uniform(0.0, 0.2))


def _near(rng: Random, centre: Point) -> Point:
    return (centre[0] + rng.gauss(0.0, 0.01), centre[1] + rng.gauss(0.0, 0.01))
