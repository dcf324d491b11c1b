"""Brokers by place: the search by cells finds what a look at every broker finds."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.policies.epulsar.cells import Cells


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", ["spread", "crowded", "one place"])
def test_the_search_is_exact(seed: int, shape: str) -> None:
    rng = np.random.default_rng(seed)
    brokers = rng.normal(0.0, 0.05, (rng.integers(1, 300), 4))
    if shape == "crowded":
        brokers[: len(brokers) // 2] *= 0.01
    if shape == "one place":
        brokers[:] = brokers[0]
    brokers[:, -1] = rng.exponential(0.005, len(brokers))
    one, other = rng.normal(0.0, 0.05, (2, 500, 4))
    allowed = np.flatnonzero(rng.random(len(brokers)) < 0.8).astype(np.int32)
    cost = sum(np.linalg.norm(points[:, None, :3] - brokers[allowed, :3], axis=2) for points in (one, other))
    cost = cost + 2 * brokers[allowed, 3]
    limit = rng.uniform(-0.1, 0.4, 500)
    limit[0] = np.inf
    found = Cells(brokers, allowed).search(one, other, limit)
    if not len(allowed):
        assert (found.count == 0).all()
        assert np.isinf(found.best_cost).all()
        return
    assert (found.count == (cost <= limit[:, None]).sum(axis=1)).all()
    assert found.best_cost == pytest.approx(cost.min(axis=1), abs=1e-7)
    chosen = np.array([np.flatnonzero(allowed == broker)[0] for broker in found.best])
    assert cost[np.arange(500), chosen] == pytest.approx(cost.min(axis=1), abs=1e-7)


def test_no_broker_is_no_broker() -> None:
    found = Cells(np.zeros((3, 3)), np.array([], np.int32)).search(np.zeros((2, 3)), np.zeros((2, 3)), np.ones(2))
    assert found.count.tolist() == [0, 0]
    assert np.isinf(found.best_cost).all()
