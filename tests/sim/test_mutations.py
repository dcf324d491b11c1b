"""The checkers find planted bugs: a rule of the protocol that is taken out shows within a few seeds."""

from __future__ import annotations

import mutations
import mutations_control
import mutations_ending
import mutations_logs
import mutations_loss
import mutations_replicas
import mutations_timers
import pytest
from planting import World

from nearcast.sim.campaign import run_world
from nearcast.sim.faults import FaultPlan

MUTATIONS = (
    mutations.MUTATIONS
    | mutations_control.MUTATIONS
    | mutations_ending.MUTATIONS
    | mutations_logs.MUTATIONS
    | mutations_loss.MUTATIONS
    | mutations_replicas.MUTATIONS
    | mutations_timers.MUTATIONS
)
SEEDS = 100  # most show within ten, and all within about fifty

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("name", MUTATIONS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    mutation.plant(monkeypatch)
    for seed in range(SEEDS):
        outcome = run_world(seed, mutation.world.setup, FaultPlan(mutation.world.profile))
        if any(mutation.caught_by in violation for violation in outcome.violations):
            return
    pytest.fail(f"no checker found {name} in {SEEDS} seeds")


def _worlds() -> dict[str, World]:
    """Each once, under the name of the first bug that is planted in it."""
    found: dict[str, World] = {}
    for name, mutation in MUTATIONS.items():
        if mutation.world not in found.values():
            found[name] = mutation.world
    return found


WORLDS = _worlds()


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_worlds_are_clean_without_the_bug(name: str) -> None:
    world = WORLDS[name]
    for seed in range(3):
        outcome = run_world(seed, world.setup, FaultPlan(world.profile))
        assert not outcome.violations, outcome
