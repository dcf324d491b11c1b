"""Initial placement: NR, RR, RND, LL."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.policies.multistage.policy import at_random, least_loaded, nearest, round_robin


def test_nearest_is_at_the_least_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.policies.multistage.policy.ROWS_AT_ONCE", 64)
    dice = np.random.default_rng(1)
    people, brokers = dice.random((500, 3)) + 1e4, dice.random((9, 3)) + 1e4
    distances = np.linalg.norm(people[:, None] - brokers[None], axis=2)
    assert (nearest(people, brokers) == distances.argmin(axis=1)).all()


def test_of_equal_distances_the_first_broker() -> None:
    assert nearest(np.zeros((1, 2)), np.array([[1.0, 0.0], [-1.0, 0.0]])).tolist() == [0]


def test_nearest_needs_brokers_and_the_same_dimensions() -> None:
    for brokers in (np.zeros((0, 2)), np.zeros((3, 1))):
        with pytest.raises(UsageError, match="same dimensions"):
            nearest(np.zeros((4, 2)), brokers)


def test_round_robin_goes_on_where_it_ended() -> None:
    assert round_robin(5, 3).tolist() == [0, 1, 2, 0, 1]
    assert round_robin(3, 3, first=5).tolist() == [2, 0, 1]


def test_random_is_even_and_the_same_for_a_seed() -> None:
    placed = at_random(10_000, 10, seed=4)
    assert (placed == at_random(10_000, 10, seed=4)).all()
    assert (placed != at_random(10_000, 10, seed=5)).any()
    counts = np.bincount(placed, minlength=10)
    assert counts.min() > 850
    assert counts.max() < 1150


def test_all_who_come_at_once_go_to_the_least_loaded() -> None:
    assert least_loaded(3, np.array([5.0, 1.0, 1.0])).tolist() == [1, 1, 1]
