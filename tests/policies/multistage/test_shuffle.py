"""The greedy shuffle: as the plain transcription, and how even it is."""

from __future__ import annotations

import numpy as np
import pytest
from subscriber_worlds import crowded, random_lists

from nearcast.bench.multistage import reference_shuffle
from nearcast.policies.multistage import Assignment, Demand
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.moves import shuffled


@pytest.mark.parametrize("seed", range(30))
def test_everybody_goes_where_the_transcription_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.policies.multistage.moves.ROWS_AT_ONCE", 7)
    wanted, rates, home = random_lists(seed)
    demand = Demand.of(wanted, rates)
    found = shuffled(demand, demand.by_subscriber(), np.array(home, dtype=np.int32), 4)
    expected = reference_shuffle(wanted, rates, 4)
    assert found.tolist() == [
        there if sum(rates[k] for k in row) else at for row, there, at in zip(wanted, expected, home, strict=True)
    ]


def test_the_loads_are_even_afterwards() -> None:
    demand, before = crowded()
    found = shuffled(demand, demand.by_subscriber(), before.home, before.brokers)
    assert BrokerLoads(demand, before).spread.cov > 0.4
    assert BrokerLoads(demand, Assignment(before.brokers, found)).spread.cov < 0.05


def test_those_offline_keep_their_broker() -> None:
    demand = Demand.of([[0], [0], [1], [1]], [1.0, 2.0], online=[True, False, True, False])
    found = shuffled(demand, demand.by_subscriber(), np.array([1, 1, 1, 0], dtype=np.int32), 2)
    assert found.tolist() == [1, 1, 0, 0]


def test_those_without_load_keep_their_broker() -> None:
    demand = Demand.of([[], [0], [], [1]], [0.0, 2.0])
    found = shuffled(demand, demand.by_subscriber(), np.array([1, 1, 0, 1], dtype=np.int32), 2)
    assert found.tolist() == [1, 1, 0, 0]


def test_nobody_is_fine() -> None:
    demand = Demand.of([], [])
    assert shuffled(demand, demand.by_subscriber(), np.zeros(0, dtype=np.int32), 3).tolist() == []
