"""How far a topic's clients are from each broker: measured where they have probed, estimated elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.coordinates.embedding import placed
from nearcast.coordinates.estimator import Estimator
from nearcast.coordinates.topics import centroids, topic_distances
from nearcast.core.agent.clients import RoundTrips
from nearcast.core.agent.followers import TopicClients
from nearcast.core.model.counters import NOBODY_BEHIND
from nearcast.core.model.distances import BROKERS_MAX, BrokerCoordinate, TopicDistances
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.probes import NEWS_S, NEWS_SHARE, TARGETS, differ, landmarks_of

Floats = NDArray[np.float64]


Rows = dict[str, dict[str, float]]

FAR_S = 1.0  # between brokers: more counts as not measured. An agent is stuck, which would spoil all estimates
CLIENTS_MAX = 50_000  # whose distances are remembered
LEARN_AGAIN_S = 30.0  # if brokers have moved but are the same
# What brokers' moves may cost: learning takes 5 s of a core with 60 brokers, and then all topics are estimated anew.
SPENT_SHARE, SPENT_SHARE_NEWCOMERS = 0.02, 0.2  # of a core; and if brokers have come or left
LEARN_AGAIN_MAX_S = 900.0


class _Estimate(msgspec.Struct, frozen=True, eq=False):
    """One client."""

    measured: RoundTrips
    all_s: Floats  # its round trip to every broker: measured, else estimated; NaN if the broker may be anywhere
    point: Floats | None  # its coordinate, if centroids are wanted and it can be said

    def farther(self, behind_s: float) -> _Estimate:
        """A user who reaches the brokers through this client, which is a gateway: farther from all of them."""
        if not behind_s:
            return self
        point = None if self.point is None else np.append(self.point[:-1], self.point[-1] + behind_s)
        return _Estimate(self.measured, self.all_s + behind_s, point)


class Estimates:
    """Knows the distances between brokers, and from them and a client's probes all distances of the client."""

    def __init__(self, broker: str) -> None:
        self._own = broker
        self._brokers: tuple[str, ...] = (broker,)
        self._numbers: dict[str, int] = {broker: 0}
        self._between: Rows = {}
        self._learnt_s = NEVER_S
        self._spent_s = 0.0  # of a core, since brokers were last seen to have moved
        self._estimator: Estimator | None = None
        self._coordinates: Mapping[str, BrokerCoordinate] = {}  # of brokers, if centroids are wanted
        self._clients: dict[int, _Estimate] = {}

    def between(self, rows: Mapping[str, Mapping[str, float]], own: RoundTrips, now_s: float) -> bool:
        """The distances between brokers. Returns whether that changes the estimates."""
        if now_s - self._learnt_s < self._rest_s(rows.keys() | {self._own} == self._between.keys()):
            return False
        after: Rows = _limited({**rows, self._own: own}, self._own)
        if not _changed(self._between, after):
            return False
        self._between, self._learnt_s, self._spent_s = after, now_s, 0.0
        self._brokers = tuple(sorted(after.keys() | {name for row in after.values() for name in row}))
        self._numbers = {name: number for number, name in enumerate(self._brokers)}
        self._estimator = None
        self._clients.clear()
        return True

    def _rest_s(self, same: bool) -> float:
        """How long what is known is not replaced, because to work with it has taken some time. `same`: brokers."""
        rest_s = self._spent_s / (SPENT_SHARE if same else SPENT_SHARE_NEWCOMERS)
        return min(max(rest_s, LEARN_AGAIN_S if same else 0.0), LEARN_AGAIN_MAX_S)

    def located(self, coordinates: Mapping[str, BrokerCoordinate]) -> bool:
        """Where brokers are, or nothing if centroids are not wanted. Returns whether that changes what is reported."""
        changed, self._coordinates = self._coordinates != coordinates, coordinates
        if changed:
            self._clients.clear()
        return changed

    def of(self, topics: Iterable[TopicClients], known: Mapping[int, RoundTrips]) -> dict[str, TopicDistances | None]:
        """Runs in a thread. `known`: what all clients of these topics have measured."""
        began_s = time.thread_time()
        self._estimate(known)
        now = self._numbers[self._own]
        found = {one.topic: self._distances(now, *self._sides(one)) for one in topics}
        self._spent_s += time.thread_time() - began_s
        return found

    def _sides(self, topic: TopicClients) -> tuple[list[_Estimate], list[_Estimate]]:
        """Publishers and subscribers. A gateway counts as the farthest of its users."""
        behind = {client: topic.behind.get(client, NOBODY_BEHIND) for client in (*topic.publishers, *topic.subscribers)}
        return (
            [self._clients[one].farther(behind[one].publishers_s) for one in topic.publishers if one in self._clients],
            [
                self._clients[one].farther(behind[one].subscribers_s)
                for one in topic.subscribers
                if one in self._clients
            ],
        )

    def sought(self, topics: Iterable[TopicClients], found: Mapping[str, TopicDistances | None]) -> dict[str, set[str]]:
        """The best brokers of these topics whose distance some client has not measured."""
        return {one.topic: best for one in topics if (best := self._unmeasured(one, found[one.topic]))}

    def _unmeasured(self, topic: TopicClients, found: TopicDistances | None) -> set[str]:
        best = {one.broker for one in found.best} if found is not None else set()
        if len(self._brokers) <= TARGETS or not best:
            return set()
        clients = {*topic.publishers, *topic.subscribers} & self._clients.keys()
        return {broker for broker in best if any(broker not in self._clients[client].measured for client in clients)}

    def _distances(self, now: int, publishers: list[_Estimate], subscribers: list[_Estimate]) -> TopicDistances | None:
        if not publishers or not subscribers:
            return None
        sides = (publishers, subscribers)
        ours_s, theirs_s = (np.array([one.all_s for one in side]) for side in sides)
        if np.isnan(ours_s[:, now]).any() or np.isnan(theirs_s[:, now]).any():
            return None  # better nothing than a guess: the topic would be moved for it
        found = topic_distances(self._brokers, now, ours_s, theirs_s)
        ours, theirs = ([one.point for one in side if one.point is not None] for side in sides)
        if not ours or not theirs:
            return found
        return msgspec.structs.replace(found, centroids=centroids(np.array(ours), np.array(theirs)))

    def _estimate(self, known: Mapping[int, RoundTrips]) -> None:
        """Estimate the clients that are new or have moved, all at once."""
        new = [client for client, measured in known.items() if not self._up_to_date(client, measured)]
        if len(self._clients) + len(new) > CLIENTS_MAX:
            self._clients.clear()
            new = list(known)
        probed = np.full((len(new), len(self._brokers)), np.nan)
        for row, client in enumerate(new):
            for name, seconds in known[client].items():
                if name in self._numbers:
                    probed[row, self._numbers[name]] = seconds
        measured = ~np.isnan(probed).all(axis=1)
        columns = (measured, self._completed(probed), self._located(probed))
        for client, there, all_s, point in zip(new, *columns, strict=True):
            if there:
                self._clients[client] = _Estimate(known[client], all_s, point)
            else:
                self._clients.pop(client, None)

    def _up_to_date(self, client: int, measured: RoundTrips) -> bool:
        estimate = self._clients.get(client)
        return estimate is not None and estimate.measured is measured

    def _located(self, probed: Floats) -> list[Floats | None]:
        """Where clients are, if brokers are anywhere."""
        if not self._coordinates:
            return [None] * len(probed)
        length = len(self._coordinates[self._own].point_s)
        usable = {
            self._numbers[name]: one.point_s
            for name, one in self._coordinates.items()
            if name in self._numbers and len(one.point_s) == length
        }
        found = placed(np.array(list(usable.values())), probed[:, list(usable)])
        return [None if np.isnan(one).any() else one for one in found]

    def _completed(self, probed: Floats) -> Floats:
        """Estimates where a client has not probed. In a small cluster it has probed every broker.

        A broker whose probes are blocked may be anywhere, and says nothing about other brokers either.
        """
        if not np.isnan(probed).any():
            return probed
        matrix = self._matrix()
        reached = np.flatnonzero((~np.isnan(matrix)).sum(axis=1) > 1)  # not only to itself
        told = np.flatnonzero(~np.isnan(probed[:, reached]).all(axis=1))
        if not len(told):
            return probed
        if self._estimator is None:
            self._estimator = Estimator(matrix[np.ix_(reached, reached)], TARGETS)
        found = probed.copy()
        found[np.ix_(told, reached)] = self._estimator.estimate(probed[np.ix_(told, reached)])
        return found

    def _matrix(self) -> Floats:
        matrix = np.full((len(self._brokers), len(self._brokers)), np.nan)
        for source, row in self._between.items():
            for target, seconds in row.items():
                one, other = self._numbers[source], self._numbers[target]
                matrix[one, other] = np.fmin(matrix[one, other], seconds)
                matrix[other, one] = np.fmin(matrix[other, one], seconds)
        matrix[matrix > FAR_S] = np.nan
        np.fill_diagonal(matrix, 0.0)
        return matrix


def _limited(rows: Mapping[str, Mapping[str, float]], own: str) -> Rows:
    names = rows.keys() | {name for row in rows.values() for name in row}
    some = {own, *landmarks_of(names, BROKERS_MAX)}
    return {name: {to: one_s for to, one_s in row.items() if to in some} for name, row in rows.items() if name in some}


def _changed(before: Rows, after: Rows) -> bool:
    if before.keys() != after.keys():
        return True
    return any(
        before[name].keys() != row.keys()
        or any(differ(seconds, before[name][other], NEWS_S, NEWS_SHARE) for other, seconds in row.items())
        for name, row in after.items()
    )
