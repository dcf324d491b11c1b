"""The policy decides what Algorithm 1 in plain Python decides, on small random worlds; and it keeps its promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from epulsar_reference import Reference
from geo_model import random_geography

from nearcast.bench.geography import spread_cluster
from nearcast.policies.epulsar import EPulsar, EPulsarConfig, Ranking
from nearcast.policies.epulsar.centroids import CentroidReach
from nearcast.policies.epulsar.reach import Ranked, Today, Top8

SEEDS = 300


@pytest.mark.parametrize("config", [EPulsarConfig(), EPulsarConfig(resource_high=0.5, gain_min=0.0)])
def test_the_policy_does_what_the_algorithm_says(config: EPulsarConfig) -> None:
    moves = 0
    for seed in range(SEEDS):
        cluster = random_geography(seed)
        proposal = EPulsar(config).propose(cluster.snapshot, cluster.plan)
        found = {change.topic: change.brokers[0] for change in proposal.placements}
        assert found == Reference(cluster.snapshot, cluster.plan, config).run(), f"seed {seed}"
        moves += len(found)
    assert moves > 5 * SEEDS


def test_a_bound_that_is_kept_is_never_given_up() -> None:
    for seed in range(SEEDS):
        cluster = random_geography(seed)
        leaving = {topic for topic, place in cluster.placements.items() if set(place.brokers) & set(cluster.draining)}
        before = set(cluster.missed) | leaving | cluster.quorums.keys()  # these may have no such broker left
        proposal = cluster.step(EPulsar())
        moved = {change.topic: change for change in proposal.placements}
        assert set(cluster.missed) <= before, f"seed {seed}"
        for topic in moved.keys() & cluster.bounds.keys() - set(cluster.missed):
            if moved[topic].predicted_s is not None:
                assert moved[topic].predicted_s <= cluster.bounds[topic].seconds


def test_most_bounds_are_kept_after_one_plan() -> None:
    """Those that are not have no broker with room, and the problem says so."""
    before = after = 0
    for seed in range(SEEDS):
        cluster = random_geography(seed)
        before += len(cluster.missed)
        proposal = cluster.step(EPulsar())
        left = [topic for topic in cluster.missed if topic not in cluster.settling]
        assert bool(left) <= bool(proposal.problem), f"seed {seed}"
        after += len(left)
    assert after < before / 2


@pytest.mark.parametrize("ranking", list(Ranking))
def test_brokers_are_not_ranked_for_every_topic_if_all_are_full(
    ranking: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a plan for many topics would take minutes just when every broker is overloaded."""
    snapshot, plan = spread_cluster(2000, 40)
    rows = {
        name: msgspec.structs.replace(row, capacity_bytes_per_s=row.output_bytes_per_s / 1.5)
        for name, row in snapshot.brokers.items()
    }
    ranked: list[int] = []
    for kind in (Top8, CentroidReach):
        monkeypatch.setattr(kind, "ranked", _noted(kind.ranked, ranked))
    looked: list[Today] = []
    violated = Today.violated.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Today, "violated", property(lambda today: (looked.append(today), violated(today))[1]))
    full = msgspec.structs.replace(snapshot, brokers=rows)
    proposal = EPulsar(EPulsarConfig(ranking=ranking)).propose(full, plan)
    assert proposal.placements == []
    assert "has room" in proposal.problem
    assert len(ranked) < 50
    assert len(looked) < 5, "each looks at all topics"


def _noted(ranked: Callable[[Any, int], Ranked], seen: list[int]) -> Callable[[Any, int], Ranked]:
    def noting(self: Any, place: int) -> Ranked:
        seen.append(place)
        return ranked(self, place)

    return noting
