"""Single moves: the same as the plain transcription of Algorithm 1, and what they reach."""

from __future__ import annotations

import numpy as np
import pytest
from subscriber_worlds import assignment, communities, crowded, eager, random_lists

from nearcast.bench.multistage import mean_and_cov, reference_moves
from nearcast.policies.multistage import Demand, MultistageConfig, Scheme
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.moves import migrate, most_similar


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("alpha", [0.15, 0.001])
def test_the_moves_are_those_of_the_transcription(scheme: Scheme, alpha: float) -> None:
    moved = stuck = 0
    for seed in range(60):
        wanted, rates, home = random_lists(seed, subscribers=10 + seed, brokers=2 + seed % 4)
        brokers, config = 2 + seed % 4, eager(scheme, alpha)
        loads = BrokerLoads(Demand.of(wanted, rates), assignment(home, brokers))
        steps, problem = migrate(loads, config)
        moves = reference_moves(wanted, rates, home, brokers, config)
        assert list(zip(steps.subscribers, steps.sources, steps.targets, strict=True)) == moves, f"seed {seed}"
        assert loads.home.tolist() == home
        assert (mean_and_cov(loads.total)[1] > alpha) == bool(problem)
        moved += len(moves)
        stuck += bool(problem)
    assert moved > 100
    assert alpha > 0.1 or stuck > 10  # the way out of the loop is taken


@pytest.mark.parametrize("alpha", [0.15, 0.05])
def test_ldm_reaches_alpha_from_the_nearest_placement(alpha: float) -> None:
    loads = BrokerLoads(*crowded())
    assert loads.spread.cov > 0.4
    highest = max(loads.total)
    steps, problem = migrate(loads, eager(alpha=alpha))
    assert problem == ""
    assert alpha * 0.95 < loads.spread.cov <= alpha  # and no further
    assert max(loads.total) < highest
    assert steps.covs[0] > 0.4
    assert all(cov > alpha for cov in steps.covs)


def test_each_step_lowers_the_sorted_loads() -> None:
    wanted, rates, home = random_lists(8, subscribers=60)
    demand = Demand.of(wanted, rates)
    steps, _ = migrate(BrokerLoads(demand, assignment(home, 4)), eager(alpha=0.001))
    replay = BrokerLoads(demand, assignment(home, 4))
    assert len(steps) > 5
    for subscriber, source, target in zip(steps.subscribers, steps.sources, steps.targets, strict=True):
        before = sorted(replay.total, reverse=True)
        limit = replay.total[source]
        replay.move(subscriber, target)
        assert replay.total[target] <= limit
        assert sorted(replay.total, reverse=True) < before


def test_sdm_saves_more_incoming_load_than_ldm() -> None:
    after = {}
    for scheme in Scheme:
        loads = BrokerLoads(*communities())
        _, problem = migrate(loads, eager(scheme))
        assert problem == ""
        assert loads.spread.cov <= 0.15
        after[scheme] = sum(loads.incoming)
    assert after[Scheme.SDM] < 0.95 * after[Scheme.LDM]


def test_one_subscriber_that_has_all_the_load_is_not_sent_to_and_fro() -> None:
    loads = BrokerLoads(Demand.of([[0]], [5.0]), assignment([0], 2))
    steps, problem = migrate(loads, eager())
    assert len(steps) == 0
    assert problem == "moving any one subscriber off broker 0 does not help: add a broker, or raise alpha"


def test_the_target_may_reach_the_source_if_that_is_better() -> None:
    # Broker 0 has 36, of which subscriber 0 alone causes 20 (nobody else there wants 0); broker 1 has 26 and holds 0:
    # the target reaches 36 = the source's load, and the source falls to 16, below 26.
    wanted = [[0], [1], [0], [2]]
    loads = BrokerLoads(Demand.of(wanted, [10.0, 8.0, 3.0]), assignment([0, 0, 1, 1], 2))
    assert loads.total == [36.0, 26.0]
    steps, _ = migrate(loads, eager())
    assert (steps.subscribers[0], steps.targets[0]) == (0, 1)
    assert steps.covs[0] == pytest.approx(5 / 31)


def test_brokers_below_the_mean_may_be_none() -> None:
    loads = BrokerLoads(Demand.of([[0], [0]], [1.0]), assignment([0, 1], 2))
    assert most_similar(loads, 0, loads.spread.mean) is None
    assert most_similar(loads, 0, 2.5) == 0


def test_below_beta_nothing_moves() -> None:
    loads = BrokerLoads(*crowded(subscribers=500))
    mean = loads.spread.mean
    assert len(migrate(loads, MultistageConfig(beta_bytes_per_s=mean + 1, theta_bytes_per_s=mean + 1))[0]) == 0
    assert len(migrate(loads, MultistageConfig(beta_bytes_per_s=mean / 2, theta_bytes_per_s=mean))[0]) > 0


def test_the_number_of_moves_is_limited() -> None:
    config = MultistageConfig(beta_bytes_per_s=0.0, moves_max=3)
    steps, problem = migrate(BrokerLoads(*crowded(subscribers=500)), config)
    assert len(steps) == 3
    assert "raise moves_max" in problem


@pytest.mark.parametrize("scheme", Scheme)
def test_those_offline_and_those_without_load_stay(scheme: Scheme) -> None:
    wanted = [[0], [0], [1], [2], []]
    demand = Demand.of(wanted, [4.0, 0.0, 100.0], online=[True, True, True, False, True])
    loads = BrokerLoads(demand, assignment([0, 0, 0, 0, 0], 2))
    steps, _ = migrate(loads, eager(scheme))
    assert steps.subscribers == [0]
    assert loads.home.tolist() == [1, 0, 0, -1, 0]


@pytest.mark.parametrize("scheme", Scheme)
def test_one_broker_and_no_load_are_balanced(scheme: Scheme) -> None:
    one = BrokerLoads(Demand.of([[0], [1]], [1.0, 2.0]), assignment([0, 0], 1))
    none = BrokerLoads(Demand.of([[0], []], [0.0]), assignment([0, 0], 3))
    for loads in (one, none):
        steps, problem = migrate(loads, eager(scheme, alpha=0.0))
        assert (len(steps), problem) == (0, "")


def test_rates_that_do_not_sum_exactly_come_to_an_end() -> None:
    dice = np.random.default_rng(2)
    wanted = [dice.choice(20, size=3, replace=False).tolist() for _ in range(60)]
    demand = Demand.of(wanted, (dice.random(20) / 3).tolist())
    loads = BrokerLoads(demand, assignment([0] * 60, 5))
    steps, problem = migrate(loads, eager(alpha=1e-6))
    assert 40 < len(steps) < 1000
    assert problem
    assert loads.total == pytest.approx(BrokerLoads(demand, assignment(loads.home.tolist(), 5)).total)
