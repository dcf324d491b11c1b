"""Clients far from their servers: everything takes longer, and everything ends."""

from __future__ import annotations

import pytest

from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.network import LinkModel
from nearcast.sim.programs import Subscriber
from nearcast.sim.world import Setup, World


@pytest.mark.parametrize("round_trip_s", [0.5, 0.7, 1.0, 1.5])
def test_subscribe_returns_however_far_the_server_is(round_trip_s: float) -> None:
    world = World(3, Setup(brokers=1, controllers=1, topics=1, moves_per_s=0.0), FaultPlan(Profile.CALM))
    world.timeline.run_until(3.0)
    world.network.place("subscriber 0", "b0", LinkModel(round_trip_s / 2, 0.001, 0.0))
    subscriber = Subscriber(world, 0, world.topics[0])
    world.timeline.run_until(20.0)
    assert subscriber.joined_s is not None
    assert subscriber.joined_s - 3.0 < 8 * round_trip_s
