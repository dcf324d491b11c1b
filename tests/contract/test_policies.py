"""The contract of a policy, on fixed and on random clusters. Every policy keeps it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nearcast.core.model.membership import Ring
from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import Policy, Snapshot, TopicLoad
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig
from nearcast.policies.epulsar import EPulsar, EPulsarConfig, Ranking
from nearcast.policies.hash_ring import HashRing

sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))

from cluster_model import CAPACITY, Cluster, random_cluster, traffic
from geo_model import random_geography
from policy_contract import (
    CHECKS,
    Check,
    capacity_is_kept_or_the_problem_said,
    objective_is_never_worse,
    overload,
)

SEEDS = 60


class Subject:
    """A policy with what it promises."""

    def __init__(self, policy: Policy, lr_high: float, objective: Callable[[Cluster], float]) -> None:
        self.policy = policy
        self.lr_high = lr_high
        self.objective = objective


def dynamoth(config: DynamothConfig) -> Subject:
    return Subject(Dynamoth(config), config.lr_high, lambda cluster: overload(cluster, config.lr_high))


def epulsar(config: EPulsarConfig) -> Subject:
    high = config.resource_high + 1e-9  # exactly at the threshold is allowed
    return Subject(EPulsar(config), high, lambda cluster: overload(cluster, high))


def hash_ring(virtual_nodes: int) -> Subject:
    def off_owner(cluster: Cluster) -> float:
        """Topics that are not where the ring of the brokers that stay puts them."""
        ring = Ring([broker for broker in cluster.capacities if broker not in cluster.draining], virtual_nodes)
        places = cluster.placements.items()
        return float(sum(place.brokers != (ring.owner(topic.encode()),) for topic, place in places))

    return Subject(HashRing(virtual_nodes), 0.8, off_owner)


SUBJECTS = {
    "dynamoth": dynamoth(DynamothConfig()),
    "dynamoth, tight": dynamoth(
        DynamothConfig(lr_high=0.95, lr_safe=0.9, lr_low=0.7, topics_per_step=3, brokers_min=2)
    ),
    "dynamoth, replicates early": dynamoth(
        DynamothConfig(all_subs_threshold=1, publication_threshold=5, all_pubs_threshold=1, subscriber_threshold=5)
    ),
    "epulsar": epulsar(EPulsarConfig()),
    "epulsar, centroids": epulsar(EPulsarConfig(ranking=Ranking.CENTROIDS, gain_min=0.0)),
    "epulsar, tight": epulsar(EPulsarConfig(resource_high=0.6, messages_high_per_s=1000.0)),
    "hash_ring": hash_ring(128),
    "hash_ring, one node": hash_ring(1),
}

subjects = pytest.mark.parametrize("subject", SUBJECTS.values(), ids=SUBJECTS.keys())


def balanced() -> Cluster:
    return Cluster.of({f"b{number}": [0.05] * 10 for number in range(4)})


def fixed_clusters() -> dict[str, Cluster]:
    no_topics = Cluster.of({"b1": [], "b2": []})
    one = Cluster.of({"b1": [0.3] * 4}, spare=3)
    leaving = Cluster.of({"b1": [0.1] * 3, "b2": [0.1] * 3, "b3": [0.1] * 2})
    leaving.draining = ["b3"]
    all_leave = Cluster.of({"b1": [0.1], "b2": [0.1]})
    all_leave.draining = ["b1", "b2"]
    orphaned = balanced()
    orphaned.put("orphan", traffic(10.0), "dead")
    orphaned.put("half", traffic(10.0), "b1", "dead", mode=Mode.ALL_PUBLISHERS)
    giant = Cluster.of({"b1": [0.1], "b2": [0.1], "b3": []}, spare=1)
    giant.put("giant", TopicLoad(40, 120, 40, 4800, 1.0, 5 * CAPACITY), "b1")
    unequal = Cluster({"small": 100.0, "large": 10_000.0}, spare=1)
    for number in range(20):
        unequal.put(f"t{number}", traffic(20.0), "small")
    two_new = Cluster.of({"b1": [0.1] * 12, "n1": [], "n2": []})
    two_new.fresh = ["n1", "n2"]
    return {
        "no topics": no_topics,
        "balanced": balanced(),
        "one broker": one,
        "one leaves": leaving,
        "all leave": all_leave,
        "dead brokers": orphaned,
        "giant topic": giant,
        "unequal brokers": unequal,
        "two new brokers": two_new,
    }


@subjects
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", fixed_clusters())
def test_fixed_clusters(subject: Subject, check: Check, name: str) -> None:
    assert check(subject.policy, fixed_clusters()[name]) == []


@subjects
def test_a_cluster_that_cannot_carry_anything_says_so(subject: Subject) -> None:
    leaving = fixed_clusters()["all leave"]
    assert "start one" in subject.policy.propose(leaving.snapshot, leaving.plan).problem
    assert "start one" in subject.policy.propose(Snapshot(0.0, {}, {}), Plan(1, {})).problem


@subjects
@pytest.mark.parametrize("check", CHECKS)
def test_random_clusters(subject: Subject, check: Check) -> None:
    for seed in range(SEEDS):
        assert check(subject.policy, random_cluster(seed)) == [], f"seed {seed}"


@subjects
@pytest.mark.parametrize("check", CHECKS)
def test_random_places(subject: Subject, check: Check) -> None:
    for seed in range(SEEDS):
        assert check(subject.policy, random_geography(seed)) == [], f"seed {seed}"


@subjects
def test_capacity_is_kept_or_the_problem_said(subject: Subject) -> None:
    clusters = [*fixed_clusters().values(), *map(random_cluster, range(SEEDS)), *map(random_geography, range(SEEDS))]
    for number, cluster in enumerate(clusters):
        assert capacity_is_kept_or_the_problem_said(subject.policy, cluster, subject.lr_high) == [], number


@subjects
def test_the_objective_is_never_worse(subject: Subject) -> None:
    for seed in range(SEEDS):
        found = objective_is_never_worse(subject.policy, random_cluster(seed), subject.objective)
        assert found == [], f"seed {seed}"


@subjects
def test_nothing_moves_on_a_balanced_cluster(subject: Subject) -> None:
    cluster = balanced()
    ring = isinstance(subject.policy, HashRing)
    while ring and cluster.step(subject.policy).changes:
        pass  # balanced, for a ring, is where the ring puts the topics
    if subject is SUBJECTS["dynamoth, replicates early"]:
        cluster.loads = dict.fromkeys(cluster.loads, TopicLoad(1, 1, 1, 1, 5.0, 50.0))
    if subject is SUBJECTS["dynamoth, tight"]:
        cluster.kept = list(cluster.capacities)  # half full is low load by its thresholds
    assert cluster.step(subject.policy).changes == ()
