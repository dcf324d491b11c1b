"""Scripts: brokers added and removed and topics placed as written, under traffic and without a trace."""

from __future__ import annotations

import pytest

from nearcast.core.model.placement import Mode
from nearcast.sim.campaign import run_world
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.script import Add, Place, Remove
from nearcast.sim.world import Setup, World

TILES = tuple(f"tile.{x}.{y}" for x in range(4) for y in range(4))
SCRIPT = (
    Place(2.0, dict.fromkeys(TILES, (Mode.SINGLE, ("b1",)))),
    Add(2.5, "b2"),
    Place(3.0, dict.fromkeys(TILES[::2], (Mode.SINGLE, ("b2",)))),
    Place(4.0, {TILES[0]: (Mode.ALL_PUBLISHERS, ("b1", "b2")), TILES[1]: (Mode.ALL_SUBSCRIBERS, ("b2", "b1"))}),
    Add(4.0, "b3"),
    Place(4.5, dict.fromkeys(TILES[::3], (Mode.SINGLE, ("b3",)))),
    Remove(6.0, "b2"),
    Remove(7.0, "b3"),
)
SETUP = Setup(
    broker_names=("b1",),
    topic_names=TILES,
    publishers=6,
    early_subscribers=12,
    late_subscribers=12,
    pattern_subscribers=1,
    traffic_s=9.0,
    moves_per_s=0,
    script=SCRIPT,
)


@pytest.mark.parametrize("seed", range(5))
def test_a_script_is_carried_out_and_nobody_notices(seed: int) -> None:
    outcome = run_world(seed, SETUP, FaultPlan(Profile.CALM))
    assert outcome.violations == []
    assert outcome.moves >= 16 + 8 + 2
    assert outcome.forced == 0


def test_the_brokers_of_a_script_come_and_go() -> None:
    world = World(1, SETUP, FaultPlan(Profile.CALM))
    world.run()
    assert world.brokers == ["b1"]
    assert not world.hosts["b2"].up
    assert not world.operator.steps


def test_a_step_that_cannot_be_done_is_found() -> None:
    setup = Setup(broker_names=("b1", "b2"), moves_per_s=0, script=(Place(2.0, {"t": (Mode.SINGLE, ("b9",))}),))
    outcome = run_world(1, setup, FaultPlan(Profile.CALM))
    assert any("was not carried out" in violation for violation in outcome.violations)
