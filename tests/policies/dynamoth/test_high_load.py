"""Algorithm 2: overloaded brokers are relieved to below `lr_safe`, and nobody else is overloaded by it."""

from __future__ import annotations

import pytest
from cluster_model import CAPACITY, Cluster, traffic

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Cause, Proposal
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig

POLICY = Dynamoth()  # lr_high 0.8, lr_safe 0.6


def moves(proposal: Proposal) -> list[tuple[str, tuple[str, ...]]]:
    return [(change.topic, change.brokers) for change in proposal.placements]


def test_the_busiest_topics_go_to_the_lightest_broker_until_it_is_safe() -> None:
    cluster = Cluster.of({"b1": [0.05, 0.2, 0.3, 0.35], "b2": [0.3], "b3": [0.2]})
    proposal = cluster.step(POLICY)
    assert moves(proposal) == [("b1.3", ("b3",))]
    assert cluster.ratios == pytest.approx({"b1": 0.55, "b2": 0.3, "b3": 0.55})
    assert proposal.predicted == pytest.approx(cluster.ratios)
    change = proposal.placements[0]
    assert change.reason.cause is Cause.HIGH_LOAD
    assert (change.reason.value, change.reason.threshold) == (pytest.approx(0.9), 0.8)
    assert change.moved_bytes_per_s == pytest.approx(0.35 * CAPACITY)


def test_a_broker_between_safe_and_high_is_left_alone() -> None:
    assert Cluster.of({"b1": [0.4, 0.39], "b2": [0.1]}).step(POLICY) == Proposal(
        "dynamoth", (), pytest.approx({"b1": 0.79, "b2": 0.1}), ""
    )


def test_at_lr_high_it_acts() -> None:
    assert Cluster.of({"b1": [0.5, 0.3], "b2": [0.1]}).step(POLICY).changes


def test_the_busiest_that_fits_goes_where_the_busiest_does_not() -> None:
    """The paper's choice, 0.5 onto 0.35, would make the receiver the next overloaded broker."""
    cluster = Cluster.of({"b1": [0.5, 0.2, 0.15], "b2": [0.35]})
    assert moves(cluster.step(POLICY)) == [("b1.1", ("b2",))]
    assert cluster.ratios == pytest.approx({"b1": 0.65, "b2": 0.55})


def test_a_receiver_is_filled_to_safe_while_that_is_enough() -> None:
    """0.5 onto 0.25 would stay below lr_high, but far above lr_safe."""
    cluster = Cluster.of({"b1": [0.1, 0.15, 0.15, 0.5], "b2": [0.25]})
    assert moves(cluster.step(POLICY)) == [("b1.2", ("b2",)), ("b1.1", ("b2",))]
    assert cluster.ratios == pytest.approx({"b1": 0.6, "b2": 0.55})


def test_the_estimate_is_used_for_the_receiver_too() -> None:
    """Five topics leave; with the measured ratios all would go to b2."""
    cluster = Cluster.of({"b1": [0.1] * 11, "b2": [0.1], "b3": [0.1] * 2, "b4": [0.1] * 2})
    cluster.step(POLICY)
    assert cluster.ratios["b1"] < 0.6
    assert max(cluster.ratios.values()) < 0.6 + 1e-9
    assert min(cluster.ratios.values()) > 0.25


def test_several_overloaded_brokers_are_relieved_in_one_proposal() -> None:
    cluster = Cluster.of({"b1": [0.1] * 10, "b2": [0.1] * 9, "b3": [], "b4": [0.1]})
    proposal = cluster.step(POLICY)
    assert max(cluster.ratios.values()) < 0.6 + 1e-9
    assert len(proposal.changes) == 5 + 4
    assert cluster.step(POLICY).changes == ()


def test_a_cluster_whose_mean_is_above_safe_is_relieved_to_the_mean() -> None:
    cluster = Cluster.of({"b1": [0.05] * 18, "b2": [0.05] * 13, "b3": [0.05] * 12})
    cluster.step(POLICY)
    assert max(cluster.ratios.values()) <= 0.75 + 1e-9  # the mean is 0.717
    assert cluster.step(POLICY).changes == ()


def test_capacities_count() -> None:
    """The lightest broker by ratio is too small for the topic; the large one has room."""
    cluster = Cluster({"b1": 1000.0, "large": 4000.0, "small": 200.0})
    for number in range(3):
        cluster.put(f"t{number}", traffic(300.0), "b1")
    cluster.put("u", traffic(800.0), "large")
    assert moves(cluster.step(POLICY)) == [("t2", ("large",)), ("t1", ("large",))]
    assert cluster.ratios == pytest.approx({"b1": 0.3, "large": 0.35, "small": 0.0})


def test_topics_on_one_broker_move_before_shares_of_replicated_ones() -> None:
    cluster = Cluster.of({"b1": [0.2, 0.2], "b2": [], "b3": []})
    cluster.put("r", traffic(1000.0), "b1", "b2", mode=Mode.ALL_SUBSCRIBERS)
    assert moves(cluster.step(POLICY)) == [("b1.1", ("b3",)), ("b1.0", ("b3",))]


def test_a_share_of_a_replicated_topic_moves_to_a_broker_that_has_none() -> None:
    cluster = Cluster.of({"b1": [], "b2": [], "b3": [], "b4": []})
    for name in ("r", "s"):
        cluster.put(name, traffic(900.0), "b1", "b2", mode=Mode.ALL_PUBLISHERS)
    assert moves(cluster.step(POLICY)) == [("s", ("b3", "b4"))]
    assert cluster.ratios == pytest.approx(dict.fromkeys(cluster.capacities, 0.45))
    assert cluster.placements["s"].mode is Mode.ALL_PUBLISHERS


def test_a_broker_that_is_being_removed_receives_nothing() -> None:
    cluster = Cluster.of({"b1": [0.1] * 9, "b2": [0.1] * 3, "b3": []})
    cluster.kept = ["b3"]
    cluster.draining = ["b3"]
    cluster.put("x", traffic(10.0), "b3")  # so that it is still there
    for _ in range(3):
        assert all("b3" not in brokers for _, brokers in moves(cluster.step(POLICY)))


def test_no_change_names_a_broker_that_is_being_removed() -> None:
    """Also not for the shares of a replicated topic that stay where they are."""
    cluster = Cluster({"b1": CAPACITY, "b2": CAPACITY, "leaving": 10 * CAPACITY})
    cluster.kept = cluster.draining = ["leaving"]
    for name in ("r", "s"):
        cluster.put(name, traffic(900.0), "b1", "leaving", mode=Mode.ALL_SUBSCRIBERS)
    cluster.put("t", traffic(50.0), "b1")
    assert sorted(moves(cluster.step(POLICY))) == [("r", ("b1", "b2")), ("t", ("b2",))]
    assert moves(cluster.step(POLICY)) == []  # s fits nowhere else


def test_thresholds_can_be_set() -> None:
    cautious = Dynamoth(DynamothConfig(lr_high=0.5, lr_safe=0.3, lr_low=0.1))
    cluster = Cluster.of({"b1": [0.1] * 5, "b2": []})
    cluster.step(cautious)
    assert cluster.ratios == pytest.approx({"b1": 0.3, "b2": 0.2})
    assert cluster.step(cautious).changes == ()
