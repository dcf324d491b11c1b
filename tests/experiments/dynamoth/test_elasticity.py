"""Figure 7 on a small map: servers follow the load, none is added in vain."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.errors import UsageError
from nearcast.experiments.checks import ReplaySettings
from nearcast.experiments.dynamoth.elasticity import ElasticitySettings, Game, run_elasticity
from nearcast.experiments.result import Result
from nearcast.flow.model import ChangeKind
from nearcast.workloads.rgame import Ramp

SMALL = ElasticitySettings(
    game=Game(tiles_per_side=5, servers=4),
    players=Ramp(((0.0, 20), (200.0, 250), (260.0, 40), (380.0, 40), (480.0, 180))),
    messages=ReplaySettings(publishers=2, subscribers=12, rate_per_s=30.0, quiet_max_s=0.4),
)


@pytest.fixture(scope="module")
def result() -> Result:
    return run_elasticity(SMALL)


def test_servers_follow_the_players_up_and_down_and_up(result: Result) -> None:
    servers = [servers for _, _, servers in result.figures.servers_at_points]
    assert servers[0] == 1
    assert servers[1] >= 3
    assert servers[3] < servers[1]
    assert servers[4] > servers[3]


def test_no_server_was_added_in_vain(result: Result) -> None:
    assert result.figures.additions >= 3
    assert result.figures.single_move_would_have_sufficed == 0


def test_the_changes_of_the_plan_are_there_in_order(result: Result) -> None:
    changes = result.series["changes"]
    assert [change.at_s for change in changes] == sorted(change.at_s for change in changes)
    kinds = [change.kind for change in changes]
    assert kinds.count(ChangeKind.JOINED) == result.figures.additions
    assert kinds.count(ChangeKind.RELEASED) == result.figures.removals >= 1


def test_the_same_changes_lose_nothing_at_message_level(result: Result) -> None:
    replayed = result.figures.message_level
    assert result.figures.lost_messages == 0
    assert replayed.faults == []
    assert (replayed.joined, replayed.left) == (result.figures.additions, result.figures.removals)
    assert replayed.moves >= result.figures.rebalancings - result.figures.additions
    assert replayed.deliveries > 100


def test_the_same_seed_gives_the_same_result() -> None:
    short = msgspec.structs.replace(SMALL, players=Ramp(((0.0, 20), (60.0, 160))))
    one, again, other = (run_elasticity(msgspec.structs.replace(short, seed=seed)) for seed in (3, 3, 4))
    assert msgspec.json.encode((one.figures, one.series)) == msgspec.json.encode((again.figures, again.series))
    assert msgspec.json.encode(one.series) != msgspec.json.encode(other.series)


def test_players_must_change() -> None:
    with pytest.raises(UsageError, match="two points"):
        ElasticitySettings(players=Ramp.steady(5))
