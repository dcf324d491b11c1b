"""A topic's worst latency at each broker, its best brokers, and the paper's centroids as an upper bound."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.coordinates.topics import (
    BEST,
    Candidate,
    best_brokers,
    centroid_worst_s,
    centroids,
    percentile_one_way_s,
    worst_one_way_s,
)
from nearcast.errors import UsageError

PUBLISHERS = np.array([[0.010, 0.040], [0.020, 0.030]])
SUBSCRIBERS = np.array([[0.030, 0.002], [0.006, 0.004]])


def test_the_worst_pair_counts_one_way() -> None:
    assert worst_one_way_s(PUBLISHERS, SUBSCRIBERS).tolist() == pytest.approx([0.025, 0.022])


def test_the_worst_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(1)
    publishers, subscribers = rng.random((5, 20)), rng.random((7, 20))
    pairs = [[(p + c) / 2 for p in publishers[:, broker] for c in subscribers[:, broker]] for broker in range(20)]
    assert np.allclose(worst_one_way_s(publishers, subscribers), np.max(pairs, axis=1))
    assert np.allclose(percentile_one_way_s(publishers, subscribers, 90), np.percentile(pairs, 90, axis=1))


def test_the_best_brokers_come_first() -> None:
    found = best_brokers(PUBLISHERS, SUBSCRIBERS)
    assert [candidate.broker for candidate in found] == [1, 0]
    assert found[0] == Candidate(1, pytest.approx(0.022), pytest.approx(0.0217))
    assert len(best_brokers(np.ones((2, 30)), np.ones((1, 30)))) == BEST
    assert best_brokers(np.ones((2, 30)), np.ones((1, 30)))[0].broker == 0


@pytest.mark.parametrize(("publishers", "subscribers"), [(0, 1), (1, 0)])
def test_a_topic_without_one_side_has_no_worst_latency(publishers: int, subscribers: int) -> None:
    with pytest.raises(UsageError, match="without publishers or without subscribers"):
        worst_one_way_s(np.ones((publishers, 3)), np.ones((subscribers, 3)))
    with pytest.raises(UsageError, match="without publishers or without subscribers"):
        centroids(np.ones((publishers, 3)), np.ones((subscribers, 3)))


def test_the_papers_estimate_is_never_below_the_worst_latency() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        publishers, subscribers, brokers = rng.random((4, 3)), rng.random((6, 3)), rng.random((9, 3))
        exact = worst_one_way_s(distances(publishers, brokers), distances(subscribers, brokers))
        bound = centroid_worst_s(centroids(publishers, subscribers), brokers)
        assert (bound >= exact - 1e-12).all()


def distances(clients: np.ndarray, brokers: np.ndarray) -> np.ndarray:
    apart = np.sqrt(((clients[:, None, :-1] - brokers[None, :, :-1]) ** 2).sum(axis=2))
    return apart + clients[:, None, -1] + brokers[None, :, -1]
