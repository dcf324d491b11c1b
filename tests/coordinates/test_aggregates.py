"""What is reported of a topic, beside a count of all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.coordinates.aggregates import QUANTILES, topic_distances
from nearcast.core.model.distances import CANDIDATES_MAX

BROKERS = tuple(f"b{number}" for number in range(20))


def world(publishers: int, subscribers: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.001, 0.2, (publishers, len(BROKERS))), rng.uniform(0.001, 0.2, (subscribers, len(BROKERS)))


@pytest.mark.parametrize(("publishers", "subscribers"), [(1, 1), (1, 8), (8, 1), (5, 7), (QUANTILES, QUANTILES)])
def test_the_best_brokers_by_their_worst_pair(publishers: int, subscribers: int) -> None:
    ours, theirs = world(publishers, subscribers)
    found = topic_distances(BROKERS, 3, ours, theirs)
    assert found is not None
    pairs = {
        name: sorted(ours[p, column] + theirs[s, column] for p in range(publishers) for s in range(subscribers))
        for column, name in enumerate(BROKERS)
    }
    best = sorted(BROKERS, key=lambda name: pairs[name][-1])[:CANDIDATES_MAX]
    assert [one.broker for one in found.best] == best
    assert found.now.broker == "b3"
    for one in (found.now, *found.best):
        assert one.worst_s == pytest.approx(pairs[one.broker][-1], abs=2e-5)
        assert one.p90_s == pytest.approx(pairs[one.broker][int(np.ceil(0.9 * publishers * subscribers)) - 1], abs=1e-5)


def test_many_clients_cost_a_grid_of_quantiles_and_the_worst_stays_exact() -> None:
    ours, theirs = world(3000, 2000)
    found = topic_distances(BROKERS, 0, ours, theirs)
    assert found is not None
    exact = np.quantile((ours[:, None, 0] + theirs[None, :, 0]).ravel(), 0.9)
    assert found.now.p90_s == pytest.approx(exact, rel=0.01)
    assert found.now.worst_s == pytest.approx(ours[:, 0].max() + theirs[:, 0].max(), abs=2e-5)


def test_without_publishers_or_subscribers_there_is_nothing_to_say() -> None:
    ours, theirs = world(2, 2)
    assert topic_distances(BROKERS, 0, ours[:0], theirs) is None
    assert topic_distances(BROKERS, 0, ours, theirs[:0]) is None


def test_with_few_brokers_all_are_candidates() -> None:
    ours, theirs = world(2, 2)
    found = topic_distances(BROKERS[:3], 1, ours[:, :3], theirs[:, :3])
    assert found is not None
    assert sorted(one.broker for one in found.best) == ["b0", "b1", "b2"]
