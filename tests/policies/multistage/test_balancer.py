"""The controller's way to the policy: the same function as in the simulators, with names instead of numbers."""

from __future__ import annotations

from collections import deque
from random import Random

import numpy as np
import pytest

from nearcast.core.controller.gateways import Assigner, AssignmentRule, Gateway, on_sphere
from nearcast.core.model.planning import SubscriberSnapshot
from nearcast.core.wire.bus import GatewayReport
from nearcast.policies.multistage import Assignment, Demand, Multistage, MultistageBalancer, MultistageConfig, Scheme
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.policy import arrays_of, least_loaded, nearest, round_robin

EAGER = MultistageConfig(alpha=0.1, beta_bytes_per_s=0, gamma=10.0, theta_bytes_per_s=0)


def crowd(seed: int, users: int = 300, gateways: int = 4, *, shuffle: bool = False) -> SubscriberSnapshot:
    """More subscribers at the first gateways than at the last ones."""
    rng = Random(seed)
    names = [f"b{number}" for number in range(gateways)]
    rates = {f"k{number}": float(rng.randint(1, 100)) for number in range(60)}
    online: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in names}
    for number in range(users):
        home = names[int(gateways * rng.random() ** 2)]
        online[home][f"u{number}"] = tuple(rng.sample(list(rates), rng.randint(1, 8)))
    return SubscriberSnapshot(online, dict.fromkeys(names, (rates, rates)), shuffle)


@pytest.mark.parametrize("scheme", Scheme)
@pytest.mark.parametrize("shuffle", [False, True])
def test_live_and_simulated_are_the_same_function(scheme: Scheme, shuffle: bool) -> None:
    """What the controller gets is what the policy says about arrays that are made another way."""
    snapshot = crowd(1, shuffle=shuffle)
    config = MultistageConfig(scheme=scheme, alpha=0.1, beta_bytes_per_s=0, gamma=10.0, theta_bytes_per_s=0)
    home = {user: number for number, name in enumerate(snapshot.online) for user in snapshot.online[name]}
    users = sorted(home)
    rates = snapshot.rates["b0"][0]
    wanted = {user: subs for online in snapshot.online.values() for user, subs in online.items()}
    order: dict[str, int] = {}
    for user in users:
        for name in wanted[user]:
            order.setdefault(name, len(order))
    demand = Demand.of([[order[name] for name in wanted[user]] for user in users], [rates[name] for name in order])
    assignment = Assignment(4, np.array([home[user] for user in users], dtype=np.int32))
    plan = Multistage(config).propose(demand, assignment, shuffle=shuffle)
    proposal = MultistageBalancer(config).propose(snapshot)
    assert proposal.moves == tuple(plan.changes(users, list(snapshot.online)))
    assert (proposal.cov_before, proposal.cov_after, proposal.problem) == (
        plan.before.cov,
        plan.after.cov,
        plan.problem,
    )
    assert proposal.cov_before > 0.3 > proposal.cov_after
    assert proposal.moves


def test_the_same_snapshot_gives_the_same_assignment_and_is_not_changed() -> None:
    balancer = MultistageBalancer(EAGER)
    snapshot = crowd(2)
    assert balancer.propose(snapshot) == balancer.propose(crowd(2))
    assert snapshot == crowd(2)


def test_loads_of_the_arrays_are_those_that_gateways_report_of_themselves() -> None:
    """Equations 1-5 in plain Python, for people and the placement LL, and with arrays, for the policy."""
    snapshot = crowd(3)
    users, demand, assignment = arrays_of(snapshot)
    loads = BrokerLoads(demand, assignment)
    assert len(users) == 300
    for number, name in enumerate(sorted(snapshot.online)):
        report = GatewayReport(name, "", online=dict(snapshot.online[name]))
        gateway = Gateway(report, 0.0, deque(dict(rates) for rates in snapshot.rates[name]))
        assert gateway.load_bytes_per_s == pytest.approx(loads.total[number])
        assert gateway.load[1] == pytest.approx(loads.incoming[number])


def test_a_user_at_two_gateways_counts_once_and_a_subscription_without_a_rate_costs_nothing() -> None:
    snapshot = SubscriberSnapshot(
        {"b1": {"ada": ("k1",)}, "b2": {"ada": ("k1",), "ben": ("k2",)}}, {"b1": (), "b2": ()}
    )
    users, demand, assignment = arrays_of(snapshot)
    assert users == ["ada", "ben"]
    assert assignment.home.tolist() == [0, 1]
    assert demand.rates.tolist() == [0.0, 0.0]
    assert MultistageBalancer(EAGER).propose(snapshot).moves == ()


def test_nobody_online_is_balanced() -> None:
    assert (
        MultistageBalancer(EAGER)
        .propose(SubscriberSnapshot({"b1": {}, "b2": {}}, {"b1": (), "b2": ()}, shuffle=True))
        .moves
        == ()
    )


def test_below_the_thresholds_only_a_person_can_ask_for_a_shuffle() -> None:
    quiet = MultistageBalancer(MultistageConfig())  # 300 MB/s
    assert quiet.propose(crowd(4)).moves == ()
    proposal = quiet.propose(crowd(4, shuffle=True))
    assert len(proposal.moves) > 100
    assert proposal.cov_after < 0.05


# --- newcomers: one at a time in the controller, arrays in the simulators


def gateways_at(positions: list[tuple[float, float]], loads: list[float]) -> dict[str, Gateway]:
    return {
        f"b{number}": Gateway(
            GatewayReport(f"b{number}", "", "x", *position, {"u": ("k",)}, {}), 0.0, deque([{"k": loads[number] / 2}])
        )
        for number, position in enumerate(positions)
    }


def test_newcomers_are_placed_as_the_arrays_say() -> None:
    rng = Random(5)

    def anywhere() -> tuple[float, float]:
        return rng.uniform(-90, 90), rng.uniform(-180, 180)

    sites, users = [anywhere() for _ in range(8)], [anywhere() for _ in range(200)]
    loads = [rng.uniform(1.0, 2.0) for _ in sites]
    gateways = gateways_at(sites, loads)
    found = {
        rule: [Assigner(rule, Random(1)).choose(gateways, *user) for user in users]
        for rule in (AssignmentRule.NR, AssignmentRule.LL)
    }
    rows = np.array([on_sphere(*user) for user in users])
    expected = nearest(rows, np.array([on_sphere(*site) for site in sites]))
    assert found[AssignmentRule.NR] == [f"b{number}" for number in expected]
    assert found[AssignmentRule.LL] == [f"b{number}" for number in least_loaded(len(users), np.array(loads))]
    in_turn = Assigner(AssignmentRule.RR, Random(1))
    assert [in_turn.choose(gateways, *user) for user in users] == [f"b{number}" for number in round_robin(200, 8)]
