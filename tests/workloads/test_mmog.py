"""A game in several cities: groups, who hears whom, and distances."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.errors import UsageError
from nearcast.workloads.located.play import Ignore, Listen, Play
from nearcast.workloads.mmog import (
    CITIES,
    Distances,
    Game,
    Lifetimes,
    Met,
    avatar,
    homes_of,
    memberships,
    met_by,
    mmog_play,
    read_round_trips,
    server_of,
)


def heard_at(play: Play, at_s: float) -> set[tuple[str, str]]:
    heard = set(play.subscriptions)
    for change in play.changes:
        if change.at_s > at_s:
            break
        if isinstance(change, Listen):
            assert (change.client, change.topic) not in heard
            heard.add((change.client, change.topic))
        elif isinstance(change, Ignore):
            heard.remove((change.client, change.topic))
    return heard


def test_the_same_seed_gives_the_same_play() -> None:
    first, again, other = (mmog_play(Game(seed=seed), 120.0) for seed in (1, 1, 2))
    assert first == again != other


def test_a_game_server_hears_whoever_shares_a_group_with_one_of_its_players() -> None:
    game = Game(players=12, groups=3, seed=5)
    play = mmog_play(game, 200.0)
    homes = homes_of(game, CITIES)
    groups, joined = memberships(game, 200.0)
    assert len(joined) > 20
    for change in joined:
        groups[change.player] = change.group
        expected = {
            (server_of(homes[other]), avatar(player))
            for player in range(12)
            for other in range(12)
            if groups[player] == groups[other] and homes[player] != homes[other]
        }
        assert heard_at(play, change.at_s) == expected
    assert set(play.publications) == {(server_of(home), avatar(player)) for player, home in enumerate(homes)}


def test_lifetimes_are_as_they_are_named() -> None:
    _, joined = memberships(Game(players=200, seed=1), 60.0)
    assert min(each.at_s for each in joined) >= 30
    _, often = memberships(Game(players=200, seed=1, lifetimes=Lifetimes.EXPONENTIAL), 60.0)
    assert min(each.at_s for each in often) < 5


def test_whom_a_player_meets() -> None:
    game = Game(players=3, groups=2, seed=2)
    groups, joined = memberships(game, 100.0)
    met = met_by(game, 100.0, 0)
    for at_s in (0.0, 29.0, 61.0, 99.0):
        now = list(groups)
        for change in joined:
            if change.at_s <= at_s:
                now[change.player] = change.group
        beside = {other for other in (1, 2) if now[other] == now[0]}
        assert {each.player for each in met if each.from_s <= at_s < each.to_s} == beside
    assert all(isinstance(each, Met) and each.from_s < each.to_s for each in met)


def test_round_trips_count_once_or_half() -> None:
    paper, halved = (mmog_play(Game(distances=distances), 1.0) for distances in Distances)
    assert paper.delay_s("newyork", "newyork.game", "b1") == pytest.approx(0.005)
    assert paper.delay_s("newyork", "newyork.game", "b5") == pytest.approx(0.005 + 0.068)
    assert halved.delay_s("newyork", "newyork.game", "b5") == pytest.approx(0.005 + 0.034)
    assert paper.control_site == "newyork"


def test_round_trips_are_read_from_a_table(tmp_path: Path) -> None:
    file = tmp_path / "matrix.csv"
    file.write_text(",a,b,c\na,0,10,20\nb,12,0,30\nc,20,30,0\n")
    assert read_round_trips(file, ("a", "b")) == {("a", "b"): 11.0}
    with pytest.raises(UsageError, match="cannot read round trips of a, d"):
        read_round_trips(file, ("a", "d"))
    for wrong in (("a",), ("a", "b", "a")):
        with pytest.raises(UsageError, match="two or more cities"):
            read_round_trips(file, wrong)
    with pytest.raises(UsageError, match="mmog needs"):
        Game(groups=1)
