"""Broker selection: which broker each way of knowing would choose, and what its topics' messages then take.

With no load to consider, Algorithm 1 puts a topic on the first broker of its ranking. The rankings of thousands of
topics are computed at once here; a test compares them with the policy's own decisions.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.core.model.distances import CANDIDATES_MAX
from nearcast.core.model.membership import Ring
from nearcast.experiments.epulsar.topology import Floats, Topology

Numbers = NDArray[np.int64]


class Way(StrEnum):
    """How a broker is chosen."""

    HASHING = "hashing"  # consistent hashing, as plain Pulsar does: the product's own ring
    CENTROIDS = "centroids"  # the paper's policy: W(t, b)
    ALL_PAIRS = "all_pairs"  # the paper's other baseline: the worst pair, from every client's coordinate
    ESTIMATED = "top8, not measured"  # ours without the last step: the worst pair, from estimates
    TOP8 = "top8"  # ours: the best eight by estimate, then the best of those by measurement
    PERFECT = "perfect"  # the worst pair, if everything were known


class Topics(msgspec.Struct, frozen=True, eq=False):
    """Topics of one client and several others, which publish to each other: E(t) does not depend on the direction."""

    names: tuple[str, ...]
    one: Numbers  # clients, one per topic
    others: Numbers  # clients, one row per topic


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over topics, and maxima. The paper adds round trips; halved, they are latencies one way."""

    topics: int = 0
    pairs: int = 0
    violations: int = 0
    violations_halved: int = 0
    hopeless: int = 0  # topics for which no broker seemed to keep the bound
    worst_s: float = 0.0  # round trips added
    sum_worst_s: float = 0.0  # over topics

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            topics=self.topics + other.topics,
            pairs=self.pairs + other.pairs,
            violations=self.violations + other.violations,
            violations_halved=self.violations_halved + other.violations_halved,
            hopeless=self.hopeless + other.hopeless,
            worst_s=max(self.worst_s, other.worst_s),
            sum_worst_s=self.sum_worst_s + other.sum_worst_s,
        )


class Selector:
    """All ways on one topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._coordinate_rtt_s = topology.coordinate_rtt_s()
        self._ring = Ring(topology.brokers)
        self._numbers = {name: number for number, name in enumerate(topology.brokers)}
        self._owners: dict[str, int] = {}

    def tally(self, topics: Topics, way: Way, bound_s: float) -> Tally:
        chosen, seems_s = self.choose(topics, way)
        rtt_s = self._topology.rtt_s
        pairs_s = rtt_s[topics.one, chosen][:, None] + rtt_s[topics.others, chosen[:, None]]
        worst_s = pairs_s.max(axis=1)
        return Tally(
            topics=len(chosen),
            pairs=pairs_s.size,
            violations=int((pairs_s > bound_s).sum()),
            violations_halved=int((pairs_s / 2 > bound_s).sum()),
            hopeless=int((seems_s > bound_s).sum()),
            worst_s=float(worst_s.max()),
            sum_worst_s=float(worst_s.sum()),
        )

    def choose(self, topics: Topics, way: Way) -> tuple[Numbers, Floats]:
        """The broker of each topic, and what its worst pair is thought to take there, round trips added."""
        if way is Way.HASHING:
            return np.array([self._owner(name) for name in topics.names]), np.zeros(len(topics.names))
        if way is Way.TOP8:
            return self._measured(topics)
        if way is Way.CENTROIDS:
            cost_s = self._centroid_cost_s(topics)
        else:
            cost_s = _worst_s(self._knowledge(way), topics)
        chosen = cost_s.argmin(axis=1)
        return chosen, cost_s[np.arange(len(chosen)), chosen]

    def _knowledge(self, way: Way) -> Floats:
        if way is Way.ALL_PAIRS:
            return self._coordinate_rtt_s
        return self._topology.estimated_rtt_s if way is Way.ESTIMATED else self._topology.rtt_s

    def _owner(self, topic: str) -> int:
        found = self._owners.get(topic)
        if found is None:
            found = self._owners[topic] = self._numbers[self._ring.owner(topic.encode())]
        return found

    def _measured(self, topics: Topics) -> tuple[Numbers, Floats]:
        thought_s = _worst_s(self._topology.estimated_rtt_s, topics)
        best = np.argsort(thought_s, axis=1, kind="stable")[:, :CANDIDATES_MAX]
        true_s = np.full(thought_s.shape, inf)
        np.put_along_axis(
            true_s, best, np.take_along_axis(_worst_s(self._topology.rtt_s, topics), best, axis=1), axis=1
        )
        chosen = true_s.argmin(axis=1)
        return chosen, true_s[np.arange(len(chosen)), chosen]

    def _centroid_cost_s(self, topics: Topics) -> Floats:
        """W(t, b). The centroid of one client is its own coordinate."""
        clients, brokers = self._topology.client_coordinates, self._topology.broker_coordinates
        one, others = clients[topics.one], clients[topics.others]
        centre = others.mean(axis=1)
        deviation_s = 2 * one[:, -1] + _lengths_s(others, centre[:, None]).max(axis=1)
        to_one_s = self._coordinate_rtt_s[topics.one]
        return to_one_s + _lengths_s(brokers[None], centre[:, None]) + deviation_s[:, None]


def _worst_s(rtt_s: Floats, topics: Topics) -> Floats:
    """E(t) at every broker: the farthest of the others, and the one."""
    worst_s: Floats = rtt_s[topics.one] + rtt_s[topics.others].max(axis=1)
    return worst_s


def _lengths_s(points: Floats, others: Floats) -> Floats:
    """Distances of coordinates with heights, element by element."""
    space: Floats = np.linalg.norm(points[..., :-1] - others[..., :-1], axis=-1)
    return space + points[..., -1] + others[..., -1]
