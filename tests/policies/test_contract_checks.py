"""The contract can fail: each check finds the planted fault it is there for, and that policy breaks no other check."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from cluster_model import Cluster
from policy_contract import (
    CHECKS,
    Check,
    capacity_is_kept_or_the_problem_said,
    changes_are_valid,
    comes_to_rest,
    every_change_has_a_reason,
    input_is_not_changed,
    objective_is_never_worse,
    overload,
    prediction_comes_true,
    same_input_same_proposal,
)

from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import (
    AddBroker,
    Cause,
    KeepBroker,
    PlaceTopic,
    Proposal,
    ProposedChange,
    Reason,
    RemoveBroker,
    Snapshot,
)

REASON = Reason(Cause.HIGH_LOAD, "test", 1.0, 0.5)
Propose = Callable[[Snapshot, Plan], Proposal]


class Planted:
    name = "planted"

    def __init__(self, propose: Propose) -> None:
        self.propose = propose


def cluster() -> Cluster:
    made = Cluster.of({"b1": [0.3, 0.2], "b2": [0.1], "b3": [0.1]})
    made.draining = ["b3"]
    return made


def changing(*changes: ProposedChange, predicted: dict[str, float] | None = None) -> Propose:
    return lambda snapshot, plan: Proposal("planted", changes, predicted or {})


def move(topic: str, *brokers: str, mode: Mode = Mode.SINGLE, reason: Reason = REASON) -> PlaceTopic:
    return PlaceTopic(topic, mode, brokers, reason)


def good(snapshot: Snapshot, plan: Plan) -> Proposal:
    """Keeps every rule: moves one topic once, and says what comes of it."""
    ratios = {name: broker.load_ratio for name, broker in snapshot.brokers.items()}
    if plan.topics["b1.1"].brokers != ("b1",):
        return Proposal("planted", (), ratios)
    return Proposal("planted", (move("b1.1", "b2"),), ratios | {"b1": ratios["b1"] - 0.2, "b2": ratios["b2"] + 0.2})


def test_a_good_policy_passes() -> None:
    for check in CHECKS:
        assert check(Planted(good), cluster()) == []
    assert capacity_is_kept_or_the_problem_said(Planted(good), cluster(), 0.8) == []
    assert objective_is_never_worse(Planted(good), cluster(), lambda made: overload(made, 0.2)) == []


def with_dice() -> Propose:
    tosses = count()
    return lambda snapshot, plan: Proposal("planted", (move("b1.0", "b2"),) if next(tosses) % 2 else ())


def by_order(snapshot: Snapshot, plan: Plan) -> Proposal:
    return Proposal("planted", (move(next(iter(plan.topics)), "b2"),))


def mutating(snapshot: Snapshot, plan: Plan) -> Proposal:
    plan.topics.pop("b1.0")  # type: ignore[attr-defined]
    return good(snapshot, plan)


def ping_pong(snapshot: Snapshot, plan: Plan) -> Proposal:
    other = "b2" if plan.topics["b1.0"].brokers == ("b1",) else "b1"
    return Proposal("planted", (move("b1.0", other),))


def restless(snapshot: Snapshot, plan: Plan) -> Proposal:
    """Never in the same state twice, and never done."""
    return Proposal("planted", (AddBroker(REASON),))


@pytest.mark.parametrize(
    ("propose", "check", "says"),
    [
        (with_dice(), same_input_same_proposal, "another proposal"),
        (by_order, same_input_same_proposal, "another proposal"),
        (mutating, input_is_not_changed, "changed"),
        (changing(move("b1.0", "dead")), changes_are_valid, "unknown broker 'dead'"),
        (changing(move("b1.0", "b3")), changes_are_valid, "unknown broker 'b3'"),  # it is being removed
        (changing(move("b1.0", "b2"), RemoveBroker("b2", REASON)), changes_are_valid, "unknown broker 'b2'"),
        (changing(move("gone", "b2")), changes_are_valid, "no such topic"),
        (changing(move("b1.0", "b1")), changes_are_valid, "changes nothing"),
        (changing(move("b1.0", "b2"), move("b1.0", "b2")), changes_are_valid, "placed twice"),
        (changing(move("b1.0", "b1", "b2")), changes_are_valid, "mode single takes one"),
        (changing(move("b1.0", "b1", "b1", mode=Mode.ALL_SUBSCRIBERS)), changes_are_valid, "names a broker twice"),
        (changing(AddBroker(REASON)), changes_are_valid, "no broker may be rented"),
        (changing(RemoveBroker("b3", REASON)), changes_are_valid, "not removable"),
        (changing(KeepBroker("b1", REASON)), changes_are_valid, "not ours to keep"),
        (
            changing(move("b1.0", "b2", reason=Reason(Cause.RING, "", 1.0, 0.0))),
            every_change_has_a_reason,
            "has no reason",
        ),
        (
            changing(move("b1.0", "b2"), predicted={"b1": 0.5, "b2": 0.1, "b3": 0.1}),
            prediction_comes_true,
            "b1 was predicted at 0.5",
        ),
        (changing(move("b1.0", "b2"), predicted={"b1": 0.2}), prediction_comes_true, "no prediction"),
        (ping_pong, comes_to_rest, "a state it had left"),
        (restless, comes_to_rest, "still changes things after 60"),
    ],
)
def test_a_fault_is_found(propose: Propose, check: Check, says: str) -> None:
    assert any(says in line for line in check(Planted(propose), cluster()))


def test_overload_without_a_word_is_found() -> None:
    silent = changing(move("b1.0", "b2"), move("b1.1", "b2"), predicted={"b1": 0.0, "b2": 0.6, "b3": 0.1})
    assert capacity_is_kept_or_the_problem_said(Planted(silent), cluster(), 0.55)
    honest = Planted(lambda snapshot, plan: Proposal("planted", (), {"b2": 0.6}, "no room"))
    assert capacity_is_kept_or_the_problem_said(honest, cluster(), 0.55) == []


def test_a_worse_objective_is_found() -> None:
    worse = Planted(changing(move("b2.0", "b1")))
    assert objective_is_never_worse(worse, cluster(), lambda made: overload(made, 0.2)) != []
    assert objective_is_never_worse(worse, cluster(), lambda made: overload(made, 0.7)) == []
