"""Network delays: the model's figures, and a matrix of measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.flow.network import LognormalDelays, MatrixDelays

PLACES = ("Paris", "Tokyo", "Lima")
ROUND_TRIPS_MS = np.array([[0.0, 200.0, 180.0], [210.0, 0.0, 250.0], [190.0, 260.0, 2.0]])


def many(count: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    return np.arange(count), np.zeros(count, dtype=np.int64), np.random.default_rng(7)


def test_two_samples_make_the_response_time_of_the_paper_at_rest() -> None:
    clients, brokers, rng = many(200_000)
    samples = LognormalDelays().one_way_s(clients, brokers, rng)
    assert 2 * samples.mean() == pytest.approx(0.075, rel=0.01)
    assert samples.mean() / np.median(samples) == pytest.approx(180 / 159, rel=0.01)
    assert samples.min() > 0


def test_a_mean_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="mean_s 0 must be above 0"):
        LognormalDelays(mean_s=0.0)


def test_a_matrix_gives_half_a_round_trip_between_places_that_stay_the_same() -> None:
    delays = MatrixDelays(PLACES, ROUND_TRIPS_MS / 1e3)
    clients, brokers, rng = many(300)
    first, again = delays.one_way_s(clients, brokers, rng), delays.one_way_s(clients, brokers, rng)
    assert (first == again).all()
    halves = {round(half, 6) for half in (ROUND_TRIPS_MS / 2e3).flat}
    assert {round(value, 6) for value in first.tolist()} <= halves
    counts = np.unique(first, return_counts=True)[1]
    assert len(counts) == 3  # the broker is at one place, clients at all three
    assert counts.min() > 60


def test_brokers_can_be_put_at_places() -> None:
    delays = MatrixDelays(PLACES, ROUND_TRIPS_MS / 1e3, broker_places=("Lima", "Paris"))
    clients, _, rng = many(50)
    at_lima = delays.one_way_s(clients, np.zeros(50, dtype=np.int64), rng)
    at_paris = delays.one_way_s(clients, np.ones(50, dtype=np.int64), rng)
    assert set(at_lima.round(6).tolist()) == {0.090, 0.125, 0.001}
    assert set(at_paris.round(6).tolist()) == {0.0, 0.105, 0.095}
    with pytest.raises(UsageError, match="no place 'Rome': choose from Paris, Tokyo, Lima"):
        MatrixDelays(PLACES, ROUND_TRIPS_MS, broker_places=("Rome",))


def test_a_matrix_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text(",a,b\na,0,30\nb,50,0\n")
    delays = MatrixDelays.load(path, broker_places=("a",))
    clients, brokers, rng = many(40)
    assert set(delays.one_way_s(clients, brokers, rng).tolist()) == {0.0, 0.025}
