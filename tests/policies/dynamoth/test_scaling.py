"""Renting: no broker is added while one move would do, and none that would not help."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from random import Random

import pytest
from cluster_model import CAPACITY, Cluster, random_cluster, traffic

from nearcast.core.model.placement import Mode, Placement
from nearcast.core.model.planning import AddBroker, Cause, PlaceTopic, Proposal, TopicLoad
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig
from nearcast.policies.dynamoth.draft import Draft
from nearcast.policies.dynamoth.rebalancing import lowered
from nearcast.policies.dynamoth.replication import replicate
from nearcast.policies.dynamoth.scaling import single_move
from nearcast.policies.loads import Loads

POLICY = Dynamoth()
CONFIG = DynamothConfig()


def added(proposal: Proposal) -> int:
    return sum(change.count for change in proposal.changes if isinstance(change, AddBroker))


def single_moves(cluster: Cluster) -> Iterator[Cluster]:
    """Every cluster that differs by one move: all topics, all brokers, tried one by one."""
    usable = [broker for broker in cluster.capacities if broker not in cluster.draining]
    for topic, placement in cluster.placements.items():
        for source in placement.brokers:
            for target in usable:
                brokers = tuple(target if broker == source else broker for broker in placement.brokers)
                others = [broker for broker in placement.brokers if broker != source]
                if target not in placement.brokers and not set(others) & set(cluster.draining):
                    moved = deepcopy(cluster)
                    moved.placements[topic] = Placement(2, placement.mode, brokers)
                    yield moved


def one_move_is_enough(cluster: Cluster) -> bool:
    return any(max(moved.ratios.values()) < CONFIG.lr_high for moved in single_moves(cluster))


def tight_cluster(seed: int) -> Cluster:
    """Few brokers, large topics, one of them overloaded: Algorithm 2 is often at its end here."""
    rng = Random(seed)
    count = rng.randint(2, 4)
    ratios = {f"b{number}": [rng.uniform(0.05, 0.45) for _ in range(rng.randint(1, 3))] for number in range(count)}
    ratios["b0"] += [rng.uniform(0.1, 0.4) for _ in range(2)]
    cluster = Cluster.of(ratios, spare=3)
    if seed % 3 == 0:
        cluster.put("r", traffic(rng.uniform(100, 700)), "b0", "b1", mode=Mode.ALL_SUBSCRIBERS)
    return cluster


def test_the_search_finds_a_single_move_exactly_when_there_is_one() -> None:
    """Against trying them all."""
    found = 0
    for seed in range(150):
        cluster = tight_cluster(seed) if seed % 5 else random_cluster(seed)
        draft = Draft(Loads.of(cluster.snapshot, cluster.plan))
        if draft.highest_ratio >= CONFIG.lr_high:
            moved = single_move(draft, CONFIG)
            assert (moved is not None) == one_move_is_enough(cluster), f"seed {seed}"
            assert moved is None or (moved.highest_ratio < CONFIG.lr_high and len(moved.placements()) == 1)
            found += moved is not None
    assert 20 < found < 120


def test_no_broker_is_added_while_one_move_is_enough() -> None:
    asked = 0
    for seed in range(250):
        cluster = tight_cluster(seed)
        proposal = POLICY.propose(cluster.snapshot, cluster.plan)
        if added(proposal):
            asked += 1
            assert not one_move_is_enough(cluster), f"seed {seed}"
        elif max(cluster.ratios.values()) >= CONFIG.lr_high:
            assert max(proposal.predicted.values()) < CONFIG.lr_high, f"seed {seed}"
    assert asked > 20


def test_a_broker_is_asked_for_when_the_receivers_would_overload() -> None:
    cluster = Cluster.of({"b1": [0.42, 0.42], "b2": [0.41, 0.38], "b3": [0.4, 0.38]}, spare=2)
    proposal = cluster.step(POLICY)
    (change,) = [change for change in proposal.changes if isinstance(change, AddBroker)]
    assert (change.count, change.reason.cause, change.reason.threshold) == (1, Cause.HIGH_LOAD, 0.8)
    assert "until the new broker joins" in proposal.problem
    assert cluster.step(POLICY).placements[0].reason.cause is Cause.NEW_BROKER
    assert max(cluster.ratios.values()) < CONFIG.lr_high
    assert min(cluster.ratios.values()) > 0.2


def test_not_while_one_is_coming_and_not_if_none_can_be_had() -> None:
    ratios = {"b1": [0.45] * 2, "b2": [0.45] * 2}
    waiting = Cluster.of(ratios, spare=2)
    waiting.coming = 1
    proposal = POLICY.propose(waiting.snapshot, waiting.plan)
    assert (added(proposal), "a new broker is coming" in proposal.problem) == (0, True)
    full = Cluster.of(ratios)
    proposal = POLICY.propose(full.snapshot, full.plan)
    assert (added(proposal), "allow more brokers" in proposal.problem) == (0, True)


def test_a_cluster_far_above_its_capacity_asks_for_several() -> None:
    cluster = Cluster.of({"b1": [0.1] * 20, "b2": [0.1] * 20}, spare=9)  # 4.0 in all: five brokers at 0.8
    assert added(cluster.step(POLICY)) == 3
    cluster.spare = 0
    cluster.step(POLICY)
    assert max(cluster.ratios.values()) == pytest.approx(0.8, abs=0.11)


def test_a_topic_that_nothing_divides_asks_for_no_broker() -> None:
    cluster = Cluster.of({"b1": [], "b2": [0.3]}, spare=5)
    cluster.put("stream", TopicLoad(1, 100, 1, 100, 1.0, 1.2 * CAPACITY), "b1")
    proposal = cluster.step(POLICY)
    assert proposal.changes == ()
    assert "'stream' alone is too much for a broker" in proposal.problem


def test_load_of_no_topic_asks_for_no_broker() -> None:
    cluster = Cluster.of({"b1": [0.4, 0.45], "b2": [0.4]}, spare=5)
    snapshot, plan = cluster.snapshot, cluster.plan
    plan = type(plan)(1, {topic: place for topic, place in plan.topics.items() if topic.startswith("b2")})
    proposal = POLICY.propose(snapshot, plan)
    assert proposal.changes == ()
    assert "comes from no topic" in proposal.problem


def test_the_one_move_that_algorithm_2_misses_is_proposed() -> None:
    """Large topics are divided first, and after that neither Algorithm 2 nor levelling gets below lr_high."""
    shares = {
        "b0": (2000.0, [669, 726, 173, 774]),
        "b1": (1000.0, [399, 67, 176, 156]),
        "b2": (500.0, [168]),
        "b3": (2000.0, [632]),
        "b4": (500.0, [67, 102, 14]),
    }
    cluster = Cluster({broker: capacity for broker, (capacity, _) in shares.items()}, spare=3)
    for broker, (_, loads) in shares.items():
        for number, load in enumerate(loads):
            cluster.put(f"{broker}.{number}", traffic(float(load)), broker)
    draft = Draft(Loads.of(cluster.snapshot, cluster.plan))
    replicate(draft, CONFIG)
    assert lowered(draft, CONFIG).highest_ratio >= CONFIG.lr_high
    assert one_move_is_enough(cluster)
    proposal = cluster.step(POLICY)
    assert [type(change) for change in proposal.changes] == [PlaceTopic]
    assert max(cluster.ratios.values()) < CONFIG.lr_high
