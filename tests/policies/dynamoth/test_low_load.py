"""Low load: the least loaded broker is emptied step by step, and kept when the load rises."""

from __future__ import annotations

import pytest
from cluster_model import CAPACITY, Cluster, traffic

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Cause, KeepBroker, PlaceTopic, Proposal, RemoveBroker, TopicLoad
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig

SLOW = Dynamoth(DynamothConfig(topics_per_step=3))  # lr_low 0.4, lr_safe 0.6


def removed(proposal: Proposal) -> list[str]:
    return [change.broker for change in proposal.changes if isinstance(change, RemoveBroker)]


def kept(proposal: Proposal) -> list[str]:
    return [change.broker for change in proposal.changes if isinstance(change, KeepBroker)]


def idle_cluster() -> Cluster:
    """Global load ratio 0.3; b3 is the least loaded."""
    return Cluster.of({"b1": [0.04] * 10, "b2": [0.04] * 9, "b3": [0.02] * 7})


def test_the_least_loaded_broker_is_emptied_in_steps_and_released() -> None:
    cluster = idle_cluster()
    first = cluster.step(SLOW)
    assert removed(first) == ["b3"]
    assert first.changes[0].reason.cause is Cause.LOW_LOAD
    assert first.changes[0].reason.value == pytest.approx(0.3)
    assert len(first.placements) == 3
    assert [len(cluster.step(SLOW).placements) for _ in range(3)] == [3, 1, 0]
    assert sorted(cluster.capacities) == ["b1", "b2"]
    assert cluster.ratios == pytest.approx({"b1": 0.45, "b2": 0.45}, abs=0.021)


def test_nobody_is_given_more_than_safe() -> None:
    cluster = idle_cluster()
    while cluster.step(SLOW).changes:
        assert max(cluster.ratios.values()) < 0.6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda cluster: cluster.put("more", traffic(0.31 * CAPACITY), "b1"), "the global ratio is 0.403"),
        (lambda cluster: setattr(cluster, "kept", ["b1", "b2", "b3"]), "none may be removed"),
        (lambda cluster: setattr(cluster, "coming", 1), "one is coming"),
    ],
)
def test_no_broker_is_removed_if(change: object, why: str) -> None:
    cluster = idle_cluster()
    change(cluster)  # type: ignore[operator]
    assert removed(cluster.step(SLOW)) == [], why


def test_the_last_brokers_stay() -> None:
    cluster = idle_cluster()
    assert cluster.step(Dynamoth(DynamothConfig(brokers_min=3))).changes == ()
    alone = Cluster.of({"b1": [0.01]})
    assert alone.step(SLOW).changes == ()


def test_a_broker_whose_topics_fit_nowhere_stays_and_the_next_goes() -> None:
    cluster = Cluster.of({"b1": [0.35], "b2": [0.06] * 6, "b3": [0.05] * 7, "b4": [0.31], "b5": [0.31]})
    assert removed(cluster.step(SLOW)) == ["b3"]  # 0.31 onto 0.31 is not below 0.6


def test_a_removal_goes_on_while_the_load_stays_low() -> None:
    cluster = idle_cluster()
    cluster.step(SLOW)
    cluster.put("more", traffic(0.34 * CAPACITY), "b1")  # 0.413 in all: above lr_low, within the margin
    proposal = cluster.step(SLOW)
    assert kept(proposal) == []
    assert len(proposal.placements) == 3


def test_a_removal_that_was_begun_may_fill_the_others_a_little_more() -> None:
    """0.64 is above lr_safe: a removal would not begin, but noise shall not end one."""
    cluster = Cluster.of({"b1": [0.44], "b2": [0.45], "b3": [0.2]})
    assert removed(cluster.step(SLOW)) == []
    cluster.draining = ["b3"]
    assert [change.brokers for change in cluster.step(SLOW).placements] == [("b1",)]
    assert sorted(cluster.capacities) == ["b1", "b2"]


def test_a_removal_is_called_off_when_the_load_rises() -> None:
    cluster = idle_cluster()
    cluster.step(SLOW)
    cluster.put("more", traffic(0.2 * CAPACITY), "b1")
    cluster.put("still more", traffic(0.25 * CAPACITY), "b2")
    proposal = cluster.step(SLOW)
    assert kept(proposal) == ["b3"]
    assert proposal.changes[0].reason.cause is Cause.LOAD_ROSE
    assert proposal.changes[0].reason.value == pytest.approx(0.45)
    assert proposal.placements == []
    assert cluster.step(SLOW).changes == ()


def test_a_removal_is_called_off_when_its_topics_no_longer_fit() -> None:
    cluster = Cluster.of({"b1": [0.28], "b2": [0.28], "b3": [0.2, 0.2], "b4": [0.29]})
    cluster.draining = ["b3"]
    cluster.loads["b3.0"] = traffic(0.45 * CAPACITY)  # the global ratio is 0.375
    proposal = cluster.step(SLOW)
    assert kept(proposal) == ["b3"]
    assert proposal.changes[0].reason.measure == "topics that fit on no other broker"


def test_a_broker_that_is_to_go_helps_against_high_load_before_one_is_rented() -> None:
    """The global ratio, 0.42, is not high enough to call the removal off by itself."""
    cluster = Cluster.of({"b1": [0.42, 0.45], "b2": [0.001], "b3": [0.39]}, spare=4)
    cluster.draining = ["b2"]
    proposal = cluster.step(SLOW)
    assert kept(proposal) == ["b2"]
    assert {type(change) for change in proposal.changes} == {KeepBroker, PlaceTopic}
    assert max(cluster.ratios.values()) < 0.8


def test_high_load_goes_before_a_removal() -> None:
    cluster = Cluster.of({"b1": [0.1] * 9, "b2": [0.1], "b3": [0.02] * 5, "b4": []})
    cluster.draining = ["b3"]
    proposal = cluster.step(SLOW)
    assert {change.reason.cause for change in proposal.changes} == {Cause.HIGH_LOAD}


def test_what_a_person_removes_is_emptied_whatever_the_load() -> None:
    cluster = Cluster.of({"b1": [0.1] * 5, "b2": [0.1] * 5, "b3": [0.1] * 4})
    cluster.draining, cluster.kept = ["b3"], ["b3"]
    assert [kept(cluster.step(SLOW)) for _ in range(3)] == [[]] * 3
    assert sorted(cluster.capacities) == ["b1", "b2"]


def test_what_a_person_removes_but_does_not_fit_is_said() -> None:
    cluster = Cluster.of({"b1": [0.1] * 7, "b2": [0.1] * 7, "b3": [0.3, 0.05]})
    cluster.draining, cluster.kept = ["b3"], ["b3"]
    proposal = cluster.step(SLOW)
    assert [change.topic for change in proposal.placements] == ["b3.1"]
    assert "1 topics of b3 fit on no other broker" in proposal.problem


def test_idle_topics_leave_too() -> None:
    cluster = Cluster.of({"b1": [0.1], "b2": [0.0] * 5})
    while cluster.step(SLOW).changes:
        pass
    assert list(cluster.capacities) == ["b1"]


def test_a_replicated_topic_changes_one_broker_or_does_with_one_less() -> None:
    hot = traffic(0.3 * CAPACITY)
    config = DynamothConfig(collapse_share=0.1)
    for brokers, after in ((("b1", "b3"), {"b1", "b2"}), (("b1", "b2", "b3"), {"b1", "b2"})):
        cluster = Cluster.of({"b1": [0.05] * 4, "b2": [0.05] * 4, "b3": [0.05]})
        cluster.put("hot", hot, *brokers, mode=Mode.ALL_SUBSCRIBERS)
        cluster.draining = ["b3"]
        cluster.loads["hot"] = type(hot)(50, 2900, 10, 29_000, 100, 0.3 * CAPACITY)  # wants two or three brokers
        cluster.step(Dynamoth(config))
        assert set(cluster.placements["hot"].brokers) == after
        assert cluster.placements["hot"].mode is Mode.ALL_SUBSCRIBERS


def test_a_replicated_topic_leaves_two_brokers_at_once() -> None:
    cluster = Cluster.of({"b1": [0.05] * 4, "b2": [0.05] * 3, "b3": [], "b4": []})
    cluster.draining, cluster.kept = ["b3", "b4"], ["b1", "b2"]
    cluster.put("hot", TopicLoad(50, 1400, 1, 1400, 100, 0.2 * CAPACITY), "b3", "b4", mode=Mode.ALL_SUBSCRIBERS)
    assert [(change.topic, change.brokers) for change in cluster.step(SLOW).placements] == [("hot", ("b2", "b1"))]
    assert sorted(cluster.capacities) == ["b1", "b2"]
    assert cluster.step(SLOW).changes == ()
