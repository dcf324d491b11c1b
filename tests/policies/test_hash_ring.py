"""Consistent hashing as a policy: topics on their ring owners, and one more broker whenever the load is too high."""

from __future__ import annotations

import pytest
from cluster_model import CAPACITY, Cluster, traffic

from nearcast.core.model.membership import Ring
from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import AddBroker, Cause, PlaceTopic
from nearcast.errors import UsageError
from nearcast.policies.hash_ring import HashRing


def hashed_cluster(brokers: int, load_ratio: float, virtual_nodes: int = 128, spare: int = 0) -> Cluster:
    """400 equal topics on their owners, with this mean load ratio."""
    cluster = Cluster({f"b{number}": CAPACITY for number in range(brokers)}, spare)
    ring = Ring(cluster.capacities, virtual_nodes)
    for number in range(400):
        topic = f"t{number}"
        cluster.put(topic, traffic(load_ratio * brokers * CAPACITY / 400), ring.owner(topic.encode()))
    return cluster


@pytest.mark.parametrize("virtual_nodes", [1, 8, 128])
def test_every_topic_goes_to_its_owner(virtual_nodes: int) -> None:
    cluster = hashed_cluster(4, 0.1)
    for topic in cluster.placements:
        cluster.put(topic, cluster.loads[topic], "b0")
    proposal = cluster.step(HashRing(virtual_nodes))
    ring = Ring(cluster.capacities, virtual_nodes)
    assert all(place.brokers == (ring.owner(topic.encode()),) for topic, place in cluster.placements.items())
    assert {change.reason.cause for change in proposal.changes} == {Cause.RING}
    assert proposal.predicted == pytest.approx(cluster.ratios)
    assert cluster.step(HashRing(virtual_nodes)).changes == ()


def test_a_replicated_topic_becomes_single() -> None:
    cluster = hashed_cluster(3, 0.1)
    owner = cluster.placements["t0"].brokers[0]
    cluster.put("t0", traffic(90.0), "b0", "b1", "b2", mode=Mode.ALL_SUBSCRIBERS)
    (change,) = cluster.step(HashRing()).changes
    assert (change.topic, change.mode, change.brokers) == ("t0", Mode.SINGLE, (owner,))
    assert change.moved_bytes_per_s == pytest.approx(60.0)


def test_a_broker_is_added_at_high_load_and_takes_its_share() -> None:
    cluster = hashed_cluster(3, 0.8, spare=5)
    (change,) = cluster.step(HashRing()).changes
    assert isinstance(change, AddBroker)
    assert change.reason.cause is Cause.HIGH_LOAD
    moved = cluster.step(HashRing())
    assert {change.brokers for change in moved.placements} == {("rented1",)}
    assert len(moved.placements) == pytest.approx(100, abs=30)  # 1/N of 400
    assert not any(isinstance(change, AddBroker) for change in moved.changes)
    assert cluster.step(HashRing()).changes == ()


def test_the_load_is_judged_after_the_moves() -> None:
    """Far above capacity: one broker, its share, the next broker; never a broker while topics still have to move."""
    cluster = hashed_cluster(3, 1.2, spare=2)
    kinds = [sorted({type(change) for change in cluster.step(HashRing()).changes}, key=str) for _ in range(5)]
    assert kinds == [[AddBroker], [PlaceTopic], [AddBroker], [PlaceTopic], []]


def test_none_is_added_while_one_is_coming_or_none_is_left() -> None:
    for spare, coming, says in ((0, 0, "allow more brokers"), (3, 1, "that is coming")):
        cluster = hashed_cluster(3, 0.9, spare=spare)
        cluster.coming = coming
        proposal = cluster.step(HashRing())
        assert proposal.changes == ()
        assert says in proposal.problem


def test_a_broker_that_is_being_removed_owns_nothing() -> None:
    cluster = hashed_cluster(3, 0.2)
    cluster.draining = ["b1"]
    moved = cluster.step(HashRing()).placements
    assert {broker for change in moved for broker in change.brokers} == {"b0", "b2"}
    assert sorted(cluster.capacities) == ["b0", "b2"]


def test_topics_of_a_broker_that_is_gone_are_taken_back() -> None:
    cluster = hashed_cluster(3, 0.2)
    cluster.put("lost", traffic(10.0), "dead")
    (change,) = cluster.step(HashRing()).changes
    assert change.brokers[0] in cluster.capacities


@pytest.mark.parametrize("arguments", [(0, 0.8), (128, 0.0), (128, float("nan"))])
def test_arguments_are_checked(arguments: tuple[int, float]) -> None:
    with pytest.raises(UsageError, match="give"):
        HashRing(*arguments)
