"""The paper's way to know the brokers that keep a bound: W(t, b), from the centroids of a topic's clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from math import inf, nan

import numpy as np

from nearcast.core.model.planning import Snapshot
from nearcast.policies.epulsar.cells import Cells, apart, factor_of
from nearcast.policies.epulsar.reach import Choices, Ranked
from nearcast.policies.loads import NOWHERE, Flags, Floats


class CentroidReach:
    """W(t, b) = d(NC_P(t), NC(b)) + d(NC_C(t), NC(b)) + W(t) for all brokers (section 3.4.1).

    Distances of coordinates are round trips, and a bound is one way, so W(t, b) is halved. It is an upper limit of the
    worst pair; there is none for a percentile, so W(t, b) also decides there.
    """

    def __init__(self, snapshot: Snapshot, choices: Choices) -> None:
        self._choices = choices
        loads, topics = choices.loads, choices.topics
        coordinates = [snapshot.brokers[name].coordinate for name in loads.brokers]
        length = _usual_length(coordinates)
        self._placed = np.array([len(one) == length > 0 for one in coordinates], np.bool_)
        self._brokers = _spread([one for one in coordinates if len(one) == length > 0], self._placed, length)
        self._factor = factor_of(self._brokers[:, :-1])
        found = [snapshot.distances.get(loads.topics[topic]) for topic in topics.tolist()]
        centroids = [one.centroids if one is not None else None for one in found]
        fits = [one is not None and len(one.publishers) == len(one.subscribers) == length > 0 for one in centroids]
        kept = [one for one, fit in zip(centroids, fits, strict=True) if fit and one is not None]
        self.known = np.array(fits, np.bool_)
        self._publishers = _spread([one.publishers for one in kept], self.known, length)
        self._subscribers = _spread([one.subscribers for one in kept], self.known, length)
        # All of W(t, b) that does not depend on the broker: the deviation, and the heights of the centroids.
        self._fixed = self._publishers[:, -1] + self._subscribers[:, -1]
        self._fixed[self.known] += [one.deviation_s for one in kept]
        self.today_s = self._at_home()
        self.feasible = np.zeros(len(topics), np.int32)
        self._best = np.zeros(len(topics), np.int32)
        self._best_s = np.full(len(topics), inf)
        self._search()

    def _search(self) -> None:
        """Topics whose logs ask for the same number of replicas have the same brokers to choose from."""
        choices = self._choices
        for needed in np.unique(choices.needed).tolist():
            allowed = self._placed & ~choices.loads.draining & (choices.replicas >= needed)
            cells = Cells(self._brokers, np.flatnonzero(allowed).astype(np.int32))
            topics = np.flatnonzero(self.known & (choices.needed == needed))
            limit = 2 * choices.bound_s[topics] - self._fixed[topics]
            found = cells.search(self._publishers[topics], self._subscribers[topics], limit)
            self.feasible[topics] = found.count
            self._best[topics] = found.best
            self._best_s[topics] = (found.best_cost + self._fixed[topics]) / 2

    def _at_home(self) -> Floats:
        home = self._choices.loads.home[self._choices.topics]
        broker = self._brokers[home]
        ways = [_lengths(one[:, :-1] - broker[:, :-1]) for one in (self._publishers, self._subscribers)]
        today_s = (ways[0] + ways[1] + 2 * broker[:, -1] + self._fixed) / 2
        return np.where((home != NOWHERE) & self._placed[home] & self.known, today_s, nan)

    def ranked(self, place: int) -> Ranked:
        best, best_s = int(self._best[place]), float(self._best_s[place])
        if not best_s < inf:
            return
        yield best, best_s
        # Few topics get here, because most find room on the best broker: their rows are made when they are needed.
        brokers = np.flatnonzero(self._placed & self._choices.allowed(place))
        one, other = self._publishers[place, None], self._subscribers[place, None]
        cost = (apart(one, self._factor) + apart(other, self._factor))[0] + 2 * self._brokers[:, -1]
        value_s = ((cost + self._fixed[place]) / 2)[brokers]
        order = np.argsort(value_s, kind="stable")
        for broker, latency_s in zip(brokers[order].tolist(), value_s[order].tolist(), strict=True):
            if broker != best:
                yield broker, latency_s


def _usual_length(coordinates: Iterable[tuple[float, ...]]) -> int:
    lengths = [len(one) for one in coordinates if one]
    return max(sorted(set(lengths)), key=lengths.count, default=0)


def _spread(rows: Sequence[tuple[float, ...]], there: Flags, length: int) -> Floats:
    """The rows as an array, with zeros where there are none."""
    table = np.zeros((len(there), max(length, 1)))
    if rows:
        table[there] = np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * length).reshape(-1, length)
    return table


def _lengths(vectors: Floats) -> Floats:
    found: Floats = np.linalg.norm(vectors, axis=1)
    return found
