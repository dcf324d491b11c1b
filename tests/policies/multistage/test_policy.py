"""The policy: its stages and triggers, and the plan it makes."""

from __future__ import annotations

import numpy as np
import pytest
from subscriber_worlds import assignment, crowded, eager

from nearcast.core.model.planning import Cause
from nearcast.errors import UsageError
from nearcast.policies.multistage import Assignment, Demand, MigrationPlan, Multistage, MultistageConfig, Scheme
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.moves import Moves, Steps


def applied(plan: MigrationPlan, before: Assignment) -> Assignment:
    home = before.home.copy()
    assert (home[plan.moves.subscriber] == plan.moves.source).all()
    assert len(set(plan.moves.subscriber.tolist())) == len(plan.moves)
    home[plan.moves.subscriber] = plan.moves.target
    return Assignment(before.brokers, home)


@pytest.mark.parametrize("config", [eager(), eager(Scheme.SDM), eager(gamma=0.2), eager(Scheme.SDM, 0.0, 0.0)])
def test_the_plan_does_what_it_says(config: MultistageConfig) -> None:
    demand, before = crowded(subscribers=1000)
    home = before.home.copy()
    plan = Multistage(config).propose(demand, before)
    after = BrokerLoads(demand, applied(plan, before))
    assert (before.home == home).all()
    assert plan.after.loads == pytest.approx(after.total)
    assert plan.after.cov == pytest.approx(after.spread.cov)
    assert plan.after.incoming == pytest.approx(sum(after.incoming))
    assert plan.before.cov == BrokerLoads(demand, before).spread.cov
    again = Multistage(config).propose(demand, before)
    assert (plan.moves.subscriber == again.moves.subscriber).all()
    assert (plan.moves.target == again.moves.target).all()


def test_a_balanced_cluster_is_left_alone() -> None:
    demand, before = crowded()
    balanced = applied(Multistage(eager()).propose(demand, before), before)
    plan = Multistage(eager(gamma=0.3)).propose(demand, balanced)
    assert (len(plan.moves), plan.steps, plan.shuffled, plan.problem) == (0, 0, False, "")


def test_a_skewed_cluster_is_shuffled_and_then_left_alone() -> None:
    demand, before = crowded()
    plan = Multistage(eager(gamma=0.3)).propose(demand, before)
    assert plan.shuffled
    assert plan.steps == 0
    assert plan.after.cov < 0.05
    reasons = {change.reason for change in plan.changes([f"s{i}" for i in range(5000)], [f"b{j}" for j in range(10)])}
    assert [(reason.cause, reason.value, reason.threshold) for reason in reasons] == [
        (Cause.SKEWED, plan.before.cov, 0.3)
    ]


def test_a_shuffle_that_was_asked_for_says_so() -> None:
    demand, before = crowded()
    plan = Multistage(eager(gamma=100.0)).propose(demand, before, shuffle=True)
    names = [str(number) for number in range(demand.subscribers)]
    causes = {change.reason.cause for change in plan.changes(names, names)}
    assert (plan.shuffled, causes) == (True, {Cause.ASKED})


def test_a_shuffle_needs_more_than_theta() -> None:
    demand, before = crowded()
    mean = sum(plan_loads := Multistage(eager()).propose(demand, before).before.loads) / len(plan_loads)
    for theta, expected in ((mean * 0.99, True), (mean * 1.01, False)):
        config = MultistageConfig(gamma=0.3, beta_bytes_per_s=0.0, theta_bytes_per_s=theta)
        assert Multistage(config).propose(demand, before).shuffled is expected


def test_single_moves_have_names_and_reasons() -> None:
    demand = Demand.of([[0], [1], [2]], [3.0, 2.0, 2.0])
    plan = Multistage(eager()).propose(demand, assignment([0, 0, 1], 3))
    changes = list(plan.changes(["ann", "bob", "eve"], ["x", "y", "z"]))
    assert [(change.subscriber, change.source, change.target) for change in changes] == [("ann", "x", "z")]
    reason = changes[0].reason
    assert (reason.cause, reason.threshold) == (Cause.UNBALANCED, 0.15)
    assert reason.value == plan.before.cov > 0.15
    assert plan.problem == "moving any one subscriber off broker 2 does not help: add a broker, or raise alpha"


def test_a_subscriber_moved_again_is_in_the_plan_once() -> None:
    steps = Steps()
    for step in ((2, 1, 0, 0.4), (1, 0, 1, 0.3), (2, 0, 2, 0.2), (3, 0, 1, 0.1), (3, 1, 0, 0.1)):
        steps.append(*step)
    home = np.array([2, 1, 2, 0], dtype=np.int32)
    moves = Moves.between(assignment([0, 0, 1, 0], 3), home, steps, 0.9)
    assert moves.subscriber.tolist() == [0, 1, 2]
    assert moves.target.tolist() == [2, 1, 2]
    assert moves.by_shuffle.tolist() == [True, False, False]
    assert moves.cov.tolist() == [0.9, 0.3, 0.2]


def test_those_offline_are_not_in_the_plan() -> None:
    demand, before = crowded(subscribers=600)
    online = np.arange(600) % 3 > 0
    demand = Demand(demand.starts, demand.wanted, demand.rates, online)
    for config in (eager(), eager(gamma=0.2)):
        moved = Multistage(config).propose(demand, before).moves.subscriber
        assert len(moved) > 20
        assert online[moved].all()


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"alpha": -0.1}, "0 <= alpha <= gamma"),
        ({"gamma": 0.1}, "0 <= alpha <= gamma"),
        ({"theta_bytes_per_s": 1.0}, "0 <= beta_bytes_per_s <= theta_bytes_per_s"),
        ({"moves_max": 0}, "moves_max >= 1"),
    ],
)
def test_thresholds_that_contradict_are_refused(values: dict[str, float], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        MultistageConfig(**values)
