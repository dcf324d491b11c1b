"""Round trips of users to gateways that they have not measured, and what a placement rule makes of them."""

from __future__ import annotations

from collections import deque
from math import dist
from random import Random

import pytest

from nearcast.core.controller.gateways import Assigner, AssignmentRule, Gateway, estimated_s
from nearcast.core.wire.bus import GatewayReport

NEARER = {"b2": 0.01, "b3": 0.02}


def gateways(*names: str, **positions: tuple[float, float]) -> dict[str, Gateway]:
    return {
        name: Gateway(GatewayReport(name, "", "x", *positions.get(name, (None, None))), 0.0, deque()) for name in names
    }


def test_an_estimate_is_within_what_the_triangle_inequality_allows() -> None:
    between = {"b1": {"b3": 0.05}, "b3": {"b2": 0.03, "b1": 0.052}}
    found = estimated_s({"b1": 0.02, "b2": 0.04}, between, ["b1", "b2", "b3", "b4"])
    # By b1 between 0.03 and 0.07, by b2 between 0.01 and 0.07; nobody knows how far b4 is.
    assert found == pytest.approx({"b1": 0.02, "b2": 0.04, "b3": 0.03 + 0.2 * 0.04})


def test_estimates_find_gateways_that_are_nearer_than_the_measured_ones() -> None:
    rng = Random(7)
    places = {f"b{number:02}": (rng.uniform(0, 0.2), rng.uniform(0, 0.2)) for number in range(30)}
    between = {one: {other: dist(here, there) for other, there in places.items()} for one, here in places.items()}
    excess_s, measured_excess_s = [], []
    for _ in range(200):
        user = (rng.uniform(0, 0.2), rng.uniform(0, 0.2))
        true_s = {name: dist(user, place) + 0.005 for name, place in places.items()}
        measured = {name: true_s[name] for name in rng.sample(sorted(places), 8)}
        found = estimated_s(measured, between, places)
        excess_s.append(true_s[min(found, key=lambda name: found[name])] - min(true_s.values()))
        measured_excess_s.append(min(measured.values()) - min(true_s.values()))
    assert sum(measured_excess_s) / 200 > 0.01
    assert sum(excess_s) / 200 < 0.002


@pytest.mark.parametrize("lie", [0.0, -0.1, 11.0, float("nan"), float("inf")])
def test_what_is_no_round_trip_says_nothing(lie: float) -> None:
    assert estimated_s({"b1": lie}, {"b1": {"b2": 0.01}}, ["b1", "b2"]) == {}
    found = estimated_s({"b1": lie, "b2": 0.02}, {"b1": {"b2": 0.01}}, ["b1", "b2"])
    assert found == pytest.approx({"b1": 0.014, "b2": 0.02})


def test_the_nearest_by_latency_then_by_position_then_in_turn() -> None:
    there = gateways("b1", "b2", "b3", b1=(48.0, 16.0))
    assigner = Assigner(AssignmentRule.NR, Random(1))
    assert assigner.choose(there, 48.0, 16.0, NEARER) == "b2"
    assert assigner.choose(there, 48.0, 16.0) == "b1"
    assert [assigner.choose(there, None, None) for _ in range(3)] == ["b1", "b2", "b3"]


def test_other_rules_do_not_look_at_latencies() -> None:
    there = gateways("b1", "b2", "b3")
    for rule in (AssignmentRule.RR, AssignmentRule.LL):
        assigner = Assigner(rule, Random(1))
        assert assigner.choose(there, None, None, NEARER) == "b1"
        assert assigner.stays("b1", NEARER)


def test_who_has_measured_stays_where_nothing_is_clearly_nearer() -> None:
    assigner = Assigner(AssignmentRule.NR, Random(1))
    assert [assigner.stays(home, NEARER | {"b4": 0.0115}) for home in ("b1", "b2", "b3", "b4")] == [
        False,
        True,
        False,
        True,
    ]
    assert assigner.stays("b1", {})
