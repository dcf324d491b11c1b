"""Loads by equations 1-5: as written, and the same after any number of moves."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from subscriber_worlds import assignment, random_lists

from nearcast.bench.multistage import load_of, mean_and_cov, members_of
from nearcast.errors import UsageError
from nearcast.policies.multistage import Assignment, Demand, moving_average
from nearcast.policies.multistage.loads import BrokerLoads


def test_loads_of_a_case_done_by_hand() -> None:
    # Broker 0 fetches 0 and 1 once (3) and delivers 1 + 2 + 1; broker 1 fetches and delivers 1 and 2.
    loads = BrokerLoads(Demand.of([[0, 1], [0], [1, 2]], [1.0, 2.0, 4.0]), assignment([0, 0, 1], 2))
    assert loads.counts.tolist() == [[2, 1, 0], [0, 1, 1]]
    assert loads.incoming == [3.0, 6.0]
    assert loads.total == [7.0, 12.0]
    assert loads.by_subscriber.tolist() == [3.0, 1.0, 6.0]
    assert loads.spread.mean == 9.5
    assert loads.spread.cov == pytest.approx(2.5 / 9.5)
    assert loads.similarity(0).tolist() == [3.0, 2.0]
    assert loads.new_incoming(0, 1) == 1.0
    assert loads.freed_incoming(0) == 2.0


@pytest.mark.parametrize("seed", range(20))
def test_loads_after_moves_equal_loads_computed_from_scratch(seed: int) -> None:
    wanted, rates, home = random_lists(seed)
    rng, demand = Random(seed), Demand.of(wanted, rates)
    loads = BrokerLoads(demand, assignment(home, 4))
    for _ in range(200):
        subscriber, target = rng.randrange(len(wanted)), rng.randrange(4)
        if target == home[subscriber]:
            continue
        expected = loads.total[target] + loads.own(subscriber) + loads.new_incoming(subscriber, target)
        left = loads.total[home[subscriber]] - loads.own(subscriber) - loads.freed_incoming(subscriber)
        source, home[subscriber] = home[subscriber], target
        loads.move(subscriber, target)
        assert (loads.total[target], loads.total[source]) == (expected, left)
    fresh = BrokerLoads(demand, assignment(home, 4))
    assert loads.home.tolist() == home
    assert (loads.counts == fresh.counts).all()
    assert (loads.incoming, loads.total) == (fresh.incoming, fresh.total)
    assert loads.total == [load_of(members_of(j, home), wanted, rates) for j in range(4)]
    assert (loads.spread.mean, loads.spread.cov) == pytest.approx(mean_and_cov(loads.total))


def test_moves_keep_what_is_delivered() -> None:
    wanted, rates, home = random_lists(1)
    loads = BrokerLoads(Demand.of(wanted, rates), assignment(home, 4))
    delivered = sum(loads.total) - sum(loads.incoming)
    for subscriber in range(len(wanted)):
        loads.move(subscriber, (home[subscriber] + 1) % 4)
    assert sum(loads.total) - sum(loads.incoming) == delivered == sum(rates[k] for row in wanted for k in row)
    assert loads.counts.sum() == sum(map(len, wanted))
    assert (loads.counts >= 0).all()


def test_those_offline_do_not_count() -> None:
    demand = Demand.of([[0], [0, 1], [1]], [1.0, 2.0], online=[True, False, True])
    loads = BrokerLoads(demand, assignment([0, 0, 1], 2))
    assert loads.total == [2.0, 4.0]
    assert loads.home.tolist() == [0, -1, 1]


def test_without_load_nothing_differs() -> None:
    loads = BrokerLoads(Demand.of([[], [0]], [0.0]), assignment([0, 1], 3))
    assert loads.total == [0.0, 0.0, 0.0]
    assert (loads.spread.mean, loads.spread.cov) == (0.0, 0.0)


def test_many_rows_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, rates, home = random_lists(2)
    whole = BrokerLoads(Demand.of(wanted, rates), assignment(home, 4))
    monkeypatch.setattr("nearcast.policies.multistage.loads.ROWS_AT_ONCE", 7)
    assert (BrokerLoads(Demand.of(wanted, rates), assignment(home, 4)).counts == whole.counts).all()


def test_a_moving_average_flattens_a_peak() -> None:
    assert moving_average(np.array([[1.0, 2.0], [1.0, 2.0], [10.0, 2.0]])).tolist() == [4.0, 2.0]
    with pytest.raises(UsageError, match="at least one row"):
        moving_average(np.zeros((0, 2)))


@pytest.mark.parametrize(
    ("starts", "wanted", "rates", "problem"),
    [
        ([0, 2, 1], [0, 1], [1.0, 1.0], "starts must rise"),
        ([0, 1], [0, 1], [1.0, 1.0], "starts must rise"),
        ([0, 1, 2], [0, 2], [1.0, 1.0], "no rate"),
        ([0, 1, 2], [0, 1], [1.0, -1.0], "not negative"),
        ([0, 1, 2], [0, 1], [1.0, float("nan")], "finite"),
        ([0, 0, 2], [1, 1], [1.0, 1.0], "without repetition"),
    ],
)
def test_wrong_demand_is_refused(starts: list[int], wanted: list[int], rates: list[float], problem: str) -> None:
    online = np.ones(len(starts) - 1, dtype=np.bool_)
    with pytest.raises(UsageError, match=problem):
        Demand(np.array(starts), np.array(wanted, dtype=np.int32), np.array(rates), online)


def test_wrong_assignments_are_refused() -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        Assignment(2, np.array([0, 2], dtype=np.int32))
    with pytest.raises(UsageError, match="1 subscribers have a broker, 2 have a demand"):
        BrokerLoads(Demand.of([[0], [0]], [1.0]), assignment([0], 1))
