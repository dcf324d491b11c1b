"""A generated cluster with places: brokers all over a map, topics whose clients are near each other, and bounds.

Every topic is on a random broker, so almost every one misses its bound and has to be placed again: a full re-plan. A
topic's bound is a quarter above the best that any broker offers. Places are flat; the other dimensions of a coordinate
are small noise, as they are for real networks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import CANDIDATES_MAX, Candidate, Centroids, TopicDistances
from nearcast.core.model.placement import Plan, single
from nearcast.core.model.planning import BrokerLoad, Snapshot, TopicLoad

CAPACITY_BYTES_PER_S = 125e6  # one gigabit per second
MEAN_LOAD_RATIO = 0.3  # of the whole cluster: some of the brokers that many topics want fill up
DIMENSIONS = 8
SIZE_S = 0.2  # the map: a round trip from side to side
NOISE_S = 0.005
SPREAD_S = 0.02  # of a topic's clients
SLACK = 1.25  # the bound, as a multiple of the best
BLOCK = 256

Floats = NDArray[np.float64]


def spread_cluster(topics: int, brokers: int, seed: int = 1) -> tuple[Snapshot, Plan]:
    """The same for the same arguments."""
    rng = np.random.default_rng(seed)
    names = [f"b{number}" for number in range(brokers)]
    places = _places(rng, brokers)
    publishers = _places(rng, topics)
    subscribers = publishers + rng.normal(0.0, SPREAD_S, publishers.shape) * _FLAT
    deviations = rng.uniform(0.0, SPREAD_S, (topics, 2))
    home = rng.integers(brokers, size=topics)
    weights = rng.pareto(1.5, topics) + 1
    weights = np.minimum(weights, weights.mean() * topics / brokers / 10)
    traffic = weights * (MEAN_LOAD_RATIO * brokers * CAPACITY_BYTES_PER_S / weights.sum())
    rows = zip(home.tolist(), traffic.tolist(), strict=True)
    placements, loads, bounds, distances = {}, {}, {}, {}
    for number, (broker, output) in enumerate(rows):
        topic = f"topic{number}"
        placements[topic] = single(1, names[broker], 1)
        loads[topic] = TopicLoad(2.0, output / 2000, 10.0, output / 200, output / 10, output)
    made = _distances(names, places, publishers, subscribers, deviations, home)
    for topic, known in zip(placements, made, strict=True):
        distances[topic] = known
        bounds[topic] = Bound(known.best[0].worst_s * SLACK)
    output = np.bincount(home, traffic, brokers)
    messages = output / 200
    table = {
        name: BrokerLoad(
            capacity_bytes_per_s=CAPACITY_BYTES_PER_S,
            output_bytes_per_s=float(output[number]),
            messages_per_s=float(messages[number]),
            coordinate=(*places[number].tolist(), 0.0),
        )
        for number, name in enumerate(names)
    }
    return Snapshot(0.0, table, loads, distances=distances, bounds=bounds), Plan(1, placements)


_FLAT = np.array([1.0, 1.0] + [0.1] * (DIMENSIONS - 2))


def _places(rng: np.random.Generator, count: int) -> Floats:
    found = rng.normal(0.0, NOISE_S, (count, DIMENSIONS))
    found[:, :2] = rng.uniform(0.0, SIZE_S, (count, 2))
    return found


def _distances(
    names: list[str],
    places: Floats,
    publishers: Floats,
    subscribers: Floats,
    deviations: Floats,
    home: NDArray[np.int64],
) -> Iterator[TopicDistances]:
    """Block by block: all pairs of topics and brokers would not fit into memory."""
    for first in range(0, len(home), BLOCK):
        block = slice(first, first + BLOCK)
        up_s, down_s = (
            (_apart(one[block], places) + spread[:, None]) / 2
            for one, spread in ((publishers, deviations[block, 0]), (subscribers, deviations[block, 1]))
        )
        worst_s = up_s + down_s
        best = np.argsort(worst_s, axis=1)[:, :CANDIDATES_MAX]
        for row, brokers in enumerate(best.tolist()):
            now, *others = (
                Candidate(
                    names[broker], float(up_s[row, broker]), float(down_s[row, broker]), float(worst_s[row, broker])
                )
                for broker in (home[first + row], *brokers)
            )
            centroids = Centroids(
                (*publishers[first + row].tolist(), 0.0),
                (*subscribers[first + row].tolist(), 0.0),
                float(deviations[first + row].sum()),
            )
            yield TopicDistances(now, tuple(others), centroids)


def _apart(points: Floats, places: Floats) -> Floats:
    squared = (points**2).sum(axis=1)[:, None] + (places**2).sum(axis=1) - 2 * points @ places.T
    return np.sqrt(np.maximum(squared, 0.0))
