"""RGame and its walk: where players are, how they move, and that one seed gives one walk."""

from __future__ import annotations

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.workloads.hot_topic import HotTopic
from nearcast.workloads.rgame import Movement, Ramp, RGame, Walk


def walk(players: int = 50, seed: int = 1, movement: Movement | None = None, side: int = 10) -> Walk:
    return Walk(players, side, side, movement or Movement(), seed)


def test_a_walk_is_the_same_in_any_steps() -> None:
    fine, coarse = walk(), walk()
    for tenth in range(3001):
        seen = fine.tiles(tenth / 10, 50)
    assert (seen == coarse.tiles(300.0, 50)).all()


def test_a_player_s_walk_does_not_depend_on_the_other_players() -> None:
    assert (walk(players=500).tiles(77.0, 500)[:50] == walk(players=50).tiles(77.0, 50)).all()
    late = walk()
    late.tiles(50.0, 10)  # the others are looked at later
    assert (late.tiles(99.0, 50) == walk().tiles(99.0, 50)).all()


def test_a_walk_can_start_over() -> None:
    again = walk()
    again.tiles(500.0, 50)
    assert (again.tiles(80.0, 50) == walk().tiles(80.0, 50)).all()


def test_another_seed_is_another_walk() -> None:
    assert (walk(seed=1).tiles(60.0, 50) != walk(seed=2).tiles(60.0, 50)).mean() > 0.9


def test_players_begin_anywhere_and_gather_a_little_in_the_middle() -> None:
    players, side = 40_000, 10
    crowd = walk(players, side=side)
    begin = np.bincount(crowd.tiles(0.0, players), minlength=side * side) / (players / side**2)
    assert begin.min() > 0.8
    assert begin.max() < 1.2
    crowd.tiles(100.0, players)
    later = np.bincount(crowd.tiles(500.0, players), minlength=side * side).reshape(side, side) / (players / side**2)
    middle, corners = later[4:6, 4:6].mean(), later[[0, 0, -1, -1], [0, -1, 0, -1]].mean()
    assert 1.7 < middle < 2.4  # random waypoints: 36 x (1 - x) y (1 - y) has 2.25 in the middle
    assert 0.02 < corners < 0.25
    assert later.max() < 2.6


def test_players_keep_their_speed_and_pause() -> None:
    """Tiles 1,000 to the length of a leg tell positions finely enough."""
    movement = Movement(speed_tiles_per_s=50.0, pause_min_s=2.0, pause_max_s=2.0)
    one = Walk(200, 1000, 1, movement, seed=3)
    before, moving = one.tiles(0.0, 200), []
    for step in range(1, 400):
        now = one.tiles(step * 0.1, 200)
        moving.append(np.abs(now - before))
        before = now
    steps = np.array(moving)
    assert steps.max() <= 6  # 5 tiles in 0.1 s, and rounding
    legs_s = 1000 / 3 / 50  # the mean distance of two points on a line is a third of it
    assert (steps == 0).mean() == pytest.approx(2.0 / (2.0 + legs_s), abs=0.05)


def test_players_publish_where_they_are_subscribed() -> None:
    demand = RGame(3, 2, Ramp(((0, 10), (10, 20))), seed=5, updates_per_s=2.0, message_bytes=80.0).demand(5.0)
    assert demand.clients == 15
    assert demand.all_hear_themselves
    assert demand.publications.rate_per_s.tolist() == [2.0] * 15
    assert demand.message_bytes == 80.0


def test_tiles_have_names() -> None:
    assert RGame(2, 3, Ramp.steady(1)).topics == (
        "tile.0.0",
        "tile.0.1",
        "tile.0.2",
        "tile.1.0",
        "tile.1.1",
        "tile.1.2",
    )


def test_a_wrong_game_is_refused() -> None:
    with pytest.raises(UsageError, match="0 x 3 tiles"):
        RGame(0, 3, Ramp.steady(1))
    with pytest.raises(UsageError, match="updates_per_s"):
        RGame(1, 1, Ramp.steady(1), updates_per_s=0.0)
    with pytest.raises(UsageError, match="movement needs"):
        Movement(speed_tiles_per_s=0.0)
    with pytest.raises(UsageError, match="movement needs"):
        Movement(pause_min_s=3.0, pause_max_s=2.0)


def test_a_hot_topic_has_publishers_and_subscribers_apart() -> None:
    demand = HotTopic(3, 2, name="t").demand(0.0)
    assert demand.publications.client.tolist() == [0, 1, 2]
    assert demand.subscriptions.client.tolist() == [3, 4]
    assert not demand.heard_by_themselves().any()
    with pytest.raises(UsageError, match="must not be negative"):
        HotTopic(-1, 2)
