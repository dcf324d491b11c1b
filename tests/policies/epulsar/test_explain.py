"""Why a topic is where it is: every broker, with what rules it out."""

from __future__ import annotations

import pytest
from geo_model import GeoCluster, random_geography

from nearcast.core.model.bounds import Bound
from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import ExplainingPolicy, Explanation
from nearcast.errors import UsageError
from nearcast.policies.epulsar import EPulsar, EPulsarConfig, Ranking, explain

WEST, MIDDLE, EAST = (0.0, 0.0), (0.05, 0.0), (0.1, 0.0)


def world() -> GeoCluster:
    cluster = GeoCluster({"west": WEST, "middle": MIDDLE, "east": EAST, "also east": EAST, "leaves": EAST})
    cluster.topic("game", "west", [EAST], [EAST], 0.04, load=100.0)
    cluster.topic("busy", "east", [EAST], [EAST], load=800.0)
    cluster.draining = ["leaves"]
    return cluster


def of(cluster: GeoCluster, topic: str, **config: object) -> Explanation:
    return explain(cluster.snapshot, cluster.plan, topic, EPulsarConfig(**config))


@pytest.mark.parametrize("ranking", list(Ranking))
def test_every_broker_is_there_with_what_rules_it_out(ranking: Ranking) -> None:
    said = of(world(), "game", ranking=ranking)
    assert (said.brokers, said.bound, said.violated) == (("west",), Bound(0.04), True)
    assert said.latency_s == pytest.approx(0.2)
    assert {one.broker: one.ruled_out for one in said.candidates} == {
        "also east": "",
        "east": "network 0.9 > 0.85",
        "middle": "bound 0.1 > 0.04",
        "west": "bound 0.2 > 0.04",
        "leaves": "unknown, draining",
    }
    assert isinstance(EPulsar(), ExplainingPolicy)
    assert [one.broker for one in said.candidates[:4]] == ["also east", "east", "middle", "west"]
    assert said.best is not None
    assert said.best.broker == "also east"


def test_a_quorum_and_full_memory_rule_out() -> None:
    cluster = world()
    cluster.quorums["game"] = 2
    cluster.rows = {"also east": {"memory_share": 0.9}, "middle": {"replicas": 1}}
    said = {one.broker: one.ruled_out for one in of(cluster, "game").candidates}
    assert said["also east"] == "unknown, memory 0.9 > 0.85, replicas 0 < 1"
    assert said["middle"] == "bound 0.1 > 0.04"


def test_the_threshold_of_a_profiled_broker_rules_out() -> None:
    cluster = world()
    cluster.rows = {
        "also east": {"messages_per_s": 90.0, "messages_high_per_s": 100.0},
        "middle": {"messages_per_s": 90.0},
    }
    said = {one.broker: one.ruled_out for one in of(cluster, "game", messages_high_per_s=150.0).candidates}
    assert said["also east"] == "messages 190 > 100"
    assert said["middle"] == "bound 0.1 > 0.04, messages 190 > 150"


def test_why_a_topic_stays_is_said() -> None:
    cluster = world()
    cluster.settling = frozenset({"game"})
    assert of(cluster, "game").stays.startswith("it moves, has just moved")
    cluster.put("wide", cluster.loads["game"], "west", "east", mode=Mode.ALL_PUBLISHERS)
    assert "several brokers" in of(cluster, "wide").stays
    assert of(cluster, "busy").stays == ""


def test_a_topic_without_a_bound_or_distances_has_candidates_too() -> None:
    cluster = world()
    cluster.put("plain", cluster.loads["game"], "west")
    said = of(cluster, "plain")
    assert (said.bound, said.latency_s, said.violated) == (None, None, False)
    assert [one.broker for one in said.candidates] == ["also east", "leaves", "middle", "west", "east"]
    assert of(cluster, "busy").latency_s == 0.0


def test_an_unknown_topic_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no plan names"):
        of(world(), "gone")


def test_the_explanation_agrees_with_the_policy() -> None:
    """Of a topic that alone misses its bound, the policy takes the first broker that nothing rules out."""
    seen = 0
    for seed in range(200):
        cluster = random_geography(seed)
        missed = [topic for topic in cluster.missed if topic not in cluster.settling]
        alone = missed[:1]
        cluster.bounds = {topic: cluster.bounds[topic] for topic in alone}
        proposal = EPulsar().propose(cluster.snapshot, cluster.plan)
        if not alone or len(proposal.placements) != 1 or proposal.placements[0].topic != alone[0]:
            continue
        best = of(cluster, alone[0]).best
        if best is not None and best.latency_s is not None:
            assert proposal.placements[0].brokers == (best.broker,), f"seed {seed}"
            seen += 1
    assert seen > 20
