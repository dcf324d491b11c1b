"""The move protocol under faults: thousands of seeds, and a crash at every single step boundary."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from nearcast.sim.campaign import Outcome, draw_plan, run_seed, run_seeds, run_world
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.world import START_S, Setup, World

SEEDS = 500
BATCH = 50


def _explain(outcome: Outcome) -> str:
    lines = [f"seed {outcome.seed} failed; replay it with: {outcome.replay}", *outcome.violations[:5], *outcome.faults]
    return "\n".join(lines)


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_seeds_keep_every_invariant(first: int) -> None:
    for seed in range(first, first + BATCH):
        outcome = run_seed(seed)
        assert not outcome.violations, _explain(outcome)


def test_every_seed_draws_a_world_whose_timers_keep_the_rules() -> None:
    for seed in range(2_000):
        draw_plan(seed)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_many_seeds_keep_every_invariant() -> None:
    for outcome in run_seeds(range(100_000, 108_000)):
        assert not outcome.violations, _explain(outcome)


def test_a_leader_that_is_stopped_in_good_order_is_not_missed() -> None:
    """As in a run without any fault nobody is told anything, however long it stays away."""
    for seed in range(20):
        outcome = run_world(seed, msgspec.structs.replace(SMALL, controllers=2), FaultPlan(Profile.CALM, stops=2))
        assert not outcome.violations, _explain(outcome)
        assert any("shut down" in fault for fault in outcome.faults)


def test_some_seeds_stop_the_leader_and_no_calm_one_does() -> None:
    plans = [draw_plan(seed)[1] for seed in range(100)]
    assert any(plan.stops for plan in plans)
    assert not any(plan.stops for plan in plans if plan.profile is Profile.CALM)


def test_one_seed_gives_one_run() -> None:
    assert run_seed(11) == run_seed(11)


def test_one_seed_gives_one_run_in_every_process() -> None:
    """Hashes of strings differ from process to process: nothing may follow the order of a set."""
    script = "from nearcast.sim.campaign import run_seed; print(run_seed(11))"
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


def test_seeds_differ() -> None:
    assert run_seed(11).messages != run_seed(12).messages


# --- a crash at every step boundary

SMALL = Setup(
    topics=1, publishers=2, early_subscribers=2, late_subscribers=1, traffic_s=3.0, moves_per_s=12, rate_per_s=40
)
STEPS = 12  # parts that the boundaries are shared out to, so that workers can share the test


MOVING = 5  # a seed with several moves


def _boundaries(seed: int) -> int:
    world = World(seed, SMALL, FaultPlan(Profile.CALM, counted_from_s=START_S))
    world.run()
    return world.faults.boundaries


@pytest.mark.parametrize("part", range(STEPS))
def test_a_crash_at_every_step_boundary(part: int) -> None:
    """The process that comes to the boundary, an agent or the controller, dies there and comes back."""
    for boundary in range(1 + part, _boundaries(MOVING) + 1, STEPS):
        plan = FaultPlan(Profile.CALM, frozenset((boundary,)), counted_from_s=START_S)
        outcome = run_world(MOVING, SMALL, plan)
        assert outcome.faults, f"nobody died at boundary {boundary}"
        assert not outcome.violations, f"crash at boundary {boundary}: {outcome.violations[:5]} {outcome.faults}"


def test_boundaries_cover_moves() -> None:
    world = World(MOVING, SMALL, FaultPlan(Profile.CALM, counted_from_s=START_S))
    world.run()
    assert world.history.moves >= 4
    assert world.faults.boundaries >= 150
