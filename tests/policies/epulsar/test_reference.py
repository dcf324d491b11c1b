"""The policy decides what Algorithm 1 in plain Python decides, on small random worlds; and it keeps its promises."""

from __future__ import annotations

import pytest
from epulsar_reference import Reference
from geo_model import random_geography

from nearcast.policies.epulsar import EPulsar, EPulsarConfig

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
