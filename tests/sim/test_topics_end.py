"""Topics end and are used again while agents and controllers die at step boundaries, those of ending among them."""

from __future__ import annotations

import pytest

from nearcast.core.agent.machine import Agent
from nearcast.core.model.settings import Timing
from nearcast.sim.campaign import run_world
from nearcast.sim.faults import LEADER, FaultPlan, Profile
from nearcast.sim.script import Add
from nearcast.sim.world import Setup, World

SEED = 11
BEGINS_S = 3.0  # the first topics have been used, and end
SETUP = Setup(
    topics=8,
    controllers=2,
    rate_per_s=2.5,
    early_subscribers=1,
    late_subscribers=3,
    hasty_subscribers=4,
    pattern_subscribers=1,
    moves_per_s=0,
    traffic_s=6.0,
    script=(Add(4.0, "late"),),  # some topics change their directory
    timing=Timing(idle_s=1.3),
)
SHARE = 307  # `make test` runs every 307th boundary, `make test-full` every 7th
PARTS = 8  # that those are shared out to
VICTIMS = ("", "agent b0", "agent b1", LEADER)  # the first: any process that comes to the boundary
AWAY_S = (0.05, 0.3, 1.0, 4.0)


def calm_world() -> World:
    world = World(SEED, SETUP, FaultPlan(Profile.CALM, counted_from_s=BEGINS_S))
    world.run()
    return world


def die_at_every(share: int, first: int = 1) -> None:
    for number, boundary in enumerate(range(first, calm_world().faults.boundaries, share)):
        victim, away_s = VICTIMS[number % len(VICTIMS)], AWAY_S[number // len(VICTIMS) % len(AWAY_S)]
        plan = FaultPlan(Profile.CALM, frozenset((boundary,)), counted_from_s=BEGINS_S, victim=victim, down_s=away_s)
        outcome = run_world(SEED, SETUP, plan)
        assert outcome.faults, f"nobody died: {plan}"
        assert not outcome.violations, (plan, outcome)


def test_records_end_in_this_world() -> None:
    world = calm_world()
    agents = [process.machine for process in world.controls.values() if isinstance(process.machine, Agent)]
    assert sum(agent._ending.ended for agent in agents) > 5
    assert world.faults.boundaries >= 1000


def test_nothing_is_lost_or_left_no_matter_who_dies_while_topics_end() -> None:
    die_at_every(SHARE)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_or_left_no_matter_who_dies_at_which_step_while_topics_end(part: int) -> None:
    die_at_every(7 * PARTS, 1 + 7 * part)
