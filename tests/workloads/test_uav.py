"""Swarms over a city: zones, walks and topics, all determined by the seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.workloads.located.play import GoTo
from nearcast.workloads.uav import (
    BOUND_S,
    Swarms,
    generated_stations,
    nearest_zone,
    read_stations,
    uav_play,
    zone_centres,
)


def test_the_same_seed_gives_the_same_play() -> None:
    first, again, other = (uav_play(Swarms(seed=seed), 60.0) for seed in (1, 1, 2))
    assert first == again
    assert first.changes != other.changes


def test_a_swarm_has_a_leader_that_all_others_hear_and_that_hears_them() -> None:
    play = uav_play(Swarms(swarms=2, drones=3), 1.0)
    assert play.topics_of("swarm2") == ["swarm2.follow_leader", "swarm2.sensor_data"]
    said = [(client, topic) for client, topic in play.publications if topic.startswith("swarm1")]
    heard = [(client, topic) for client, topic in play.subscriptions if topic.startswith("swarm1")]
    leader, follower, last = "swarm1.drone0", "swarm1.drone1", "swarm1.drone2"
    command, report = "swarm1.follow_leader", "swarm1.sensor_data"
    assert said == [(leader, command), (follower, report), (last, report)]
    assert heard == [(leader, report), (follower, command), (last, command)]


def test_the_own_zone_keeps_the_bound_and_any_other_does_not() -> None:
    play = uav_play(Swarms(), 1.0)
    own, other = play.delay_s("zone2", "swarm1", "b2"), play.delay_s("zone2", "swarm1", "b3")
    assert (2 * own, 2 * other) == (pytest.approx(0.016), pytest.approx(0.046))
    assert 2 * own < BOUND_S < 2 * other
    assert play.world.delay_s("cloud", "zone1") == pytest.approx(0.040)


def test_swarms_change_zones_in_order_and_never_to_the_one_they_are_in() -> None:
    play = uav_play(Swarms(seed=3), 300.0)
    assert 20 < len(play.changes) < 200
    for name, station in play.endpoints.items():
        zones = [
            station.site,
            *(each.site for each in play.changes if isinstance(each, GoTo) and each.endpoint == name),
        ]
        assert all(one != other for one, other in pairwise(zones))
    slow = uav_play(Swarms(seed=3, speed_m_per_s=5.0), 300.0)
    assert len(slow.changes) < len(play.changes) / 3


def test_zones_are_where_the_stations_are() -> None:
    towns = np.array([[0.0, 0.0], [1000.0, 0.0], [0.0, 1000.0]])
    stations = np.concatenate([town + np.random.default_rng(1).normal(0, 10, (50, 2)) for town in towns])
    centres = zone_centres(stations, 3, seed=4)
    assert {int(zone) for zone in nearest_zone(towns, centres)} == {0, 1, 2}
    assert max(np.sqrt(np.square(towns[:, None] - centres[None]).sum(axis=2)).min(axis=1)) < 10
    assert generated_stations(1).shape == (400, 2)


def test_stations_are_read_in_metres(tmp_path: Path) -> None:
    file = tmp_path / "stations.csv"
    file.write_text("SITE,LATITUDE,LONGITUDE\na,-37.0,145.0\nb,-37.01,145.01\n")
    metres = read_stations(file)
    assert metres[0] == pytest.approx([0.0, 1112.0], abs=1)
    assert metres[1] == pytest.approx([888.0, 0.0], abs=1)


def test_mistakes_say_what_to_do(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("lat,lon\nhere,there\n")
    empty = tmp_path / "empty.csv"
    empty.write_text("lat,lon\n")
    for path in (wrong, empty, tmp_path / "none.csv"):
        with pytest.raises(UsageError, match="give a CSV with lat and lon"):
            read_stations(path)
    with pytest.raises(UsageError, match="do not make 4 zones"):
        zone_centres(np.zeros((3, 2)), 4, 0)
    for settings in ({"drones": 1}, {"speed_m_per_s": 0.0}):
        with pytest.raises(UsageError, match="uav needs"):
            Swarms(**settings)  # type: ignore[arg-type]
