"""New brokers are used at once."""

from __future__ import annotations

import pytest
from cluster_model import Cluster

from nearcast.core.model.planning import Cause
from nearcast.policies.dynamoth import Dynamoth

POLICY = Dynamoth()


def test_brokers_above_safe_are_levelled_onto_a_new_one() -> None:
    cluster = Cluster.of({"b1": [0.05] * 15, "b2": [0.05] * 14, "b3": [0.05] * 8, "new": []})
    cluster.fresh = ["new"]
    proposal = cluster.step(POLICY)
    assert {change.reason.cause for change in proposal.placements} == {Cause.NEW_BROKER}
    assert {change.brokers for change in proposal.placements} == {("new",)}
    assert cluster.ratios["b3"] == pytest.approx(0.4)  # below lr_safe: left alone
    mean = (0.75 + 0.7) / 3
    for broker in ("b1", "b2", "new"):
        assert cluster.ratios[broker] == pytest.approx(mean, abs=0.06)


def test_without_a_broker_above_safe_the_busiest_gives() -> None:
    cluster = Cluster.of({"b1": [0.1] * 4, "b2": [0.1] * 5, "new": []})
    cluster.fresh = ["new"]
    cluster.step(POLICY)
    assert cluster.ratios == pytest.approx({"b1": 0.4, "b2": 0.3, "new": 0.2})


def test_one_that_cannot_give_is_passed_over() -> None:
    """The busiest has one topic: moving it would only change places."""
    cluster = Cluster.of({"b1": [0.1] * 4, "b2": [0.55], "new": []})
    cluster.fresh = ["new"]
    cluster.step(POLICY)
    assert cluster.ratios == pytest.approx({"b1": 0.2, "b2": 0.55, "new": 0.2})


@pytest.mark.parametrize("load", [0.001, 0.05, 0.3])
def test_small_loads_are_shared_too(load: float) -> None:
    cluster = Cluster.of({"b1": [load / 8] * 8, "new": []})
    cluster.fresh, cluster.kept = ["new"], ["b1", "new"]
    cluster.step(POLICY)
    assert 0.2 * load < cluster.ratios["new"] < 0.8 * load


def test_of_many_brokers_one_gives_half() -> None:
    """A hundredth of everybody's load would be as even, at fifty times the moves."""
    cluster = Cluster.of({**{f"b{number:02}": [0.05] * 10 for number in range(60)}, "new": []})
    cluster.fresh = ["new"]
    assert len(cluster.step(POLICY).changes) == 5
    assert cluster.ratios["new"] == pytest.approx(0.25)


def test_a_broker_that_is_not_new_is_not_filled() -> None:
    assert Cluster.of({"b1": [0.1] * 7, "b2": [0.1] * 5, "empty": []}).step(POLICY).placements == []
