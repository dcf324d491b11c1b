"""Levelling: a cluster without room stays balanced up to its capacity, and comes to rest."""

from __future__ import annotations

from random import Random

import pytest
from cluster_model import CAPACITY, Cluster, traffic

from nearcast.core.model.planning import AddBroker, TopicLoad
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig

POLICY = Dynamoth()
GAP = DynamothConfig().level_gap


def test_a_saturated_cluster_is_levelled_to_its_mean() -> None:
    """Nothing gets below lr_high, but nobody has to stay at 1.4."""
    cluster = Cluster.of({"b1": [0.05] * 28, "b2": [0.05] * 12, "b3": [0.05] * 17})
    proposal = cluster.step(POLICY)
    assert cluster.ratios == pytest.approx(dict.fromkeys(cluster.capacities, 0.95), abs=GAP)
    assert len(proposal.changes) == 9
    assert "no broker can be rented: allow more brokers" in proposal.problem
    assert cluster.step(POLICY).changes == ()


def test_what_differs_by_less_than_the_gap_is_left_alone() -> None:
    assert Cluster.of({"b1": [0.01] * 91, "b2": [0.01] * 87}).step(POLICY).changes == ()


def test_two_topics_are_exchanged_where_no_single_move_helps() -> None:
    """0.6 and 0.5 against 0.4 and 0.4: moving any makes it worse, exchanging 0.5 for 0.4 evens out."""
    cluster = Cluster.of({"b1": [0.6, 0.5], "b2": [0.4, 0.45]})
    proposal = cluster.step(POLICY)
    assert {change.topic: change.brokers for change in proposal.placements} == {"b1.1": ("b2",), "b2.0": ("b1",)}
    assert cluster.ratios == pytest.approx({"b1": 1.0, "b2": 0.95})


def test_a_topic_may_pass_beyond_the_mean_if_both_brokers_end_lower() -> None:
    cluster = Cluster.of({"b1": [0.55, 0.5], "b2": [0.4], "b3": [0.55, 0.3]})
    cluster.step(POLICY)
    assert max(cluster.ratios.values()) == pytest.approx(0.9)


def test_crumbs_are_not_moved() -> None:
    """Fifty topics of a ten-thousandth each, beside large ones: their moves would cost more than they bring."""
    cluster = Cluster.of({"b1": [0.55, 0.55, *[0.0001] * 50], "b2": [0.45, 0.4], "b3": [0.45, 0.4]})
    moved = cluster.step(POLICY).placements
    assert moved
    assert min(change.moved_bytes_per_s for change in moved) > 0.01 * CAPACITY


def test_levelling_heeds_capacities() -> None:
    cluster = Cluster({"large": 4 * CAPACITY, "small": CAPACITY})
    for number in range(95):
        cluster.put(f"t{number:02}", traffic(0.05 * CAPACITY), "small" if number % 2 else "large")
    cluster.step(POLICY)
    assert cluster.ratios == pytest.approx({"large": 0.95, "small": 0.95}, abs=GAP)


@pytest.mark.parametrize(("side", "bound"), [(6, 0.93), (8, 0.95), (12, 0.96)])
def test_a_crowded_game_map_is_spread_over_eight_brokers(side: int, bound: float) -> None:
    """Tiles whose load grows with the square of their players, many more in the middle. The bound is the share of the
    capacity that can be used: mean over highest load ratio."""
    used = []
    for seed in range(5):
        cluster = game_map(Random(seed), side, mean_ratio=0.9)
        cluster.step(POLICY)
        used.append(0.9 / max(cluster.ratios.values()))
        assert cluster.step(POLICY).changes == ()
    assert min(used) > bound - 0.05
    assert sum(used) / len(used) > bound


def game_map(rng: Random, side: int, mean_ratio: float) -> Cluster:
    players = [0] * (side * side)
    for _ in range(1000):
        x, y = (int(side * (rng.random() + rng.random()) / 2) for _ in range(2))
        players[side * x + y] += 1
    cluster = Cluster({f"b{number}": CAPACITY for number in range(8)})
    unit = mean_ratio * 8 * CAPACITY / sum(count * count for count in players)
    for tile, count in enumerate(players):
        load = TopicLoad(count, 3.0 * count, count, 3.0 * count * count, 100.0 * count, unit * count * count)
        cluster.put(f"tile{tile:03}", load, f"b{rng.randrange(8)}")
    return cluster


def test_relief_comes_with_the_request_for_a_broker() -> None:
    cluster = Cluster.of({"b1": [0.1] * 12, "b2": [0.1] * 6}, spare=1)
    proposal = POLICY.propose(cluster.snapshot, cluster.plan)
    assert sum(isinstance(change, AddBroker) for change in proposal.changes) == 1
    assert max(proposal.predicted.values()) == pytest.approx(0.9)


def test_nothing_is_exchanged_with_a_broker_that_is_being_removed() -> None:
    cluster = Cluster.of({"b1": [0.6, 0.5], "b2": [0.4, 0.45]})
    cluster.draining = cluster.kept = ["b1"]
    assert all(change.brokers == ("b2",) for change in cluster.step(POLICY).placements)
