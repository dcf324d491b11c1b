"""A topic's worst latency at each broker, its best brokers, and the paper's centroids as an upper bound."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.coordinates.topics import (
    QUANTILES,
    centroid_worst_s,
    centroids,
    percentile_one_way_s,
    topic_distances,
    worst_one_way_s,
)
from nearcast.core.model.distances import CANDIDATES_MAX, Candidate, Spread
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


def test_the_broker_of_now_is_reported_and_the_best_come_first() -> None:
    found = topic_distances(("b0", "b1"), 0, PUBLISHERS, SUBSCRIBERS)
    assert found.now == Candidate("b0", 0.01, 0.015, pytest.approx(0.0235))
    assert [candidate.broker for candidate in found.best] == ["b1", "b0"]
    assert found.best[0] == Candidate("b1", 0.02, 0.002, pytest.approx(0.0217))
    many = topic_distances([f"b{number}" for number in range(30)], 7, np.ones((2, 30)), np.ones((1, 30)))
    assert [candidate.broker for candidate in many.best] == [f"b{number}" for number in range(CANDIDATES_MAX)]


def test_it_is_reported_which_broker_most_clients_are_nearest_to() -> None:
    near = np.eye(6)[[5, 5, 2, 2, 2, 0, 1]]  # one row for each client
    found = topic_distances([f"b{number}" for number in range(6)], 0, 1 - near, (1 - near)[:1])
    assert found.publishers == Spread(7, "b2", 3)
    assert found.subscribers == Spread(1, "b5", 1)


def test_many_clients_cost_a_grid_of_quantiles_and_the_worst_stays_exact() -> None:
    rng = np.random.default_rng(3)
    publishers, subscribers = rng.uniform(0.001, 0.2, (20 * QUANTILES, 4)), rng.uniform(0.001, 0.2, (900, 4))
    found = topic_distances(("b0", "b1", "b2", "b3"), 0, publishers, subscribers)
    exact = np.quantile((publishers[:, None, 0] + subscribers[None, :, 0]).ravel() / 2, 0.9)
    assert found.now.p90_s == pytest.approx(exact, rel=0.01)
    assert found.now.worst_s == pytest.approx((publishers[:, 0].max() + subscribers[:, 0].max()) / 2, abs=2e-5)


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
