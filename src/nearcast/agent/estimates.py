"""How far a topic's clients are from each broker: measured where they have probed, estimated elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from nearcast.coordinates.estimator import Estimator
from nearcast.coordinates.topics import topic_distances
from nearcast.core.agent.clients import RoundTrips, TopicClients
from nearcast.core.model.distances import TopicDistances
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.probes import NEWS_S, NEWS_SHARE, TARGETS, differ

Floats = NDArray[np.float64]
Rows = dict[str, dict[str, float]]

CLIENTS_MAX = 50_000  # whose distances are remembered
LEARN_AGAIN_S = 30.0  # if brokers have moved but are the same: learning takes seconds of a core with 60 of them


class Estimates:
    """Knows the distances between brokers, and from them and a client's probes all distances of the client."""

    def __init__(self, broker: str) -> None:
        self._own = broker
        self._brokers: tuple[str, ...] = (broker,)
        self._numbers: dict[str, int] = {broker: 0}
        self._between: Rows = {}
        self._learnt_s = NEVER_S
        self._estimator: Estimator | None = None
        self._rows: dict[int, tuple[RoundTrips, Floats]] = {}  # by client: what it has measured, all distances

    def between(self, rows: Mapping[str, Mapping[str, float]], own: RoundTrips, now_s: float) -> bool:
        """The distances between brokers. Returns whether that changes the estimates."""
        after: Rows = {name: dict(row) for name, row in rows.items()}
        after[self._own] = dict(own)
        same = after.keys() == self._between.keys()
        if (same and now_s - self._learnt_s < LEARN_AGAIN_S) or not _changed(self._between, after):
            return False
        self._between, self._learnt_s = after, now_s
        self._brokers = tuple(sorted(after.keys() | {name for row in after.values() for name in row}))
        self._numbers = {name: number for number, name in enumerate(self._brokers)}
        self._estimator = None
        self._rows.clear()
        return True

    def of(self, topics: Iterable[TopicClients], known: Mapping[int, RoundTrips]) -> dict[str, TopicDistances | None]:
        """Runs in a thread. `known`: what all clients of these topics have measured."""
        self._estimate(known)
        now = self._numbers[self._own]
        return {one.topic: self._distances(now, self._of(one.publishers), self._of(one.subscribers)) for one in topics}

    def sought(self, topics: Iterable[TopicClients], found: Mapping[str, TopicDistances | None]) -> dict[str, set[str]]:
        """The best brokers of these topics whose distance some client has not measured."""
        return {one.topic: best for one in topics if (best := self._unmeasured(one, found[one.topic]))}

    def _unmeasured(self, topic: TopicClients, found: TopicDistances | None) -> set[str]:
        best = {one.broker for one in found.best} if found is not None else set()
        if len(self._brokers) <= TARGETS or not best:
            return set()
        clients = {*topic.publishers, *topic.subscribers} & self._rows.keys()
        return {broker for broker in best if any(broker not in self._rows[client][0] for client in clients)}

    def _distances(self, now: int, publishers: Floats, subscribers: Floats) -> TopicDistances | None:
        if not len(publishers) or not len(subscribers):
            return None
        return topic_distances(self._brokers, now, publishers, subscribers)

    def _of(self, clients: tuple[int, ...]) -> Floats:
        rows = [self._rows[client][1] for client in clients if client in self._rows]
        return np.array(rows) if rows else np.empty((0, len(self._brokers)))

    def _estimate(self, known: Mapping[int, RoundTrips]) -> None:
        """Estimate the clients that are new or have moved, all at once."""
        new = [client for client, measured in known.items() if self._rows.get(client, (None,))[0] is not measured]
        if len(self._rows) + len(new) > CLIENTS_MAX:
            self._rows.clear()
            new = list(known)
        probed = np.full((len(new), len(self._brokers)), np.nan)
        for place, client in enumerate(new):
            for name, seconds in known[client].items():
                if name in self._numbers:
                    probed[place, self._numbers[name]] = seconds
        for client, measured, row in zip(new, ~np.isnan(probed).all(axis=1), self._completed(probed), strict=True):
            if measured:
                self._rows[client] = (known[client], row)
            else:
                self._rows.pop(client, None)

    def _completed(self, probed: Floats) -> Floats:
        """Estimates where a client has not probed. In a small cluster it has probed every broker."""
        if not np.isnan(probed).any():
            return probed
        if self._estimator is None:
            self._estimator = Estimator(self._matrix(), TARGETS)
        return self._estimator.estimate(probed)

    def _matrix(self) -> Floats:
        matrix = np.full((len(self._brokers), len(self._brokers)), np.nan)
        for source, row in self._between.items():
            for target, seconds in row.items():
                one, other = self._numbers[source], self._numbers[target]
                matrix[one, other] = np.fmin(matrix[one, other], seconds)
                matrix[other, one] = np.fmin(matrix[other, one], seconds)
        np.fill_diagonal(matrix, 0.0)
        return matrix


def _changed(before: Rows, after: Rows) -> bool:
    if before.keys() != after.keys():
        return True
    return any(
        before[name].keys() != row.keys()
        or any(differ(seconds, before[name][other], NEWS_S, NEWS_SHARE) for other, seconds in row.items())
        for name, row in after.items()
    )
