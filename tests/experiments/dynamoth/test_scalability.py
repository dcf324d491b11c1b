"""Figures 5 and 6 on a small map: bounds, determinism and what the JSON says."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.errors import UsageError
from nearcast.experiments.dynamoth.elasticity import Game
from nearcast.experiments.dynamoth.scalability import Growth, Run, Way, make_run, make_runs, run_scalability
from nearcast.experiments.dynamoth.server_load import run_server_load
from nearcast.experiments.result import Result

SMALL = Growth(
    game=Game(tiles_per_side=4, servers=3),
    players_first=40,
    players_last=290,
    join_every_s=0.5,
    hold_s=15.0,
    seeds=(0, 1),
    virtual_nodes=(1, 128),
)


@pytest.fixture(scope="module")
def result() -> Result:
    return run_scalability(SMALL, workers=1)


def test_dynamoth_sustains_more_than_hashing_and_no_more_than_the_ideal(result: Result) -> None:
    figures = result.figures
    assert figures.players_hashing < figures.players_dynamoth <= figures.players_ideal
    assert 0.8 <= figures.efficiency <= 1.0
    assert figures.ratio > 1.0
    assert figures.by_virtual_nodes[1].ratio >= figures.by_virtual_nodes[128].ratio
    assert figures.ratio == figures.by_virtual_nodes[128].ratio
    assert not figures.range_ended


def test_a_ramp_that_ends_too_early_is_told() -> None:
    few = msgspec.structs.replace(SMALL, players_last=80, hold_s=1.0, seeds=(0,), virtual_nodes=(8,))
    result = run_scalability(few, workers=1)
    assert result.figures.range_ended
    assert any("--players" in text for _, text in result.rows)
    assert run_server_load(few, workers=1).figures.players_at_all_servers is None


def test_the_json_states_what_the_figures_depend_on(result: Result) -> None:
    data = msgspec.to_builtins(result.figures)
    assert {"players_dynamoth", "players_hashing", "players_ideal", "ratio", "efficiency"} <= data.keys()
    for name in ("players_dynamoth", "players_hashing", "players_ideal", "ratio", "efficiency"):
        low, high = data[f"{name}_ci95"]
        assert low <= data[name] <= high
    assert data["conditions"]["tiles"] == 16
    assert data["conditions"]["movement"]["speed_tiles_per_s"] > 0
    assert data["conditions"]["servers"] == 3
    assert tuple(data["seeds"]) == (0, 1)
    assert "150 ms" in data["sustained_means"]
    assert data["paper"]["ratio"] == 1.6


def test_two_processes_find_what_one_finds() -> None:
    short = msgspec.structs.replace(SMALL, players_last=100, hold_s=1.0)
    runs = [Run(growth=short, way=way, seed=3, virtual_nodes=8) for way in (Way.DYNAMOTH, Way.SHEDDING)]
    one, two = (make_runs(runs, workers=workers) for workers in (1, 2))
    assert [done.run.way for done in two] == [Way.DYNAMOTH, Way.SHEDDING]
    assert msgspec.json.encode([done.series for done in one]) == msgspec.json.encode([done.series for done in two])


def test_seeds_differ_in_their_walks_and_in_their_rings() -> None:
    one, two = (make_run(Run(growth=SMALL, way=Way.HASHING, seed=seed, virtual_nodes=128)) for seed in (0, 1))
    assert one.series.deliveries_per_s != two.series.deliveries_per_s
    places = [{change.topic.split(".", 1)[1] for change in done.series.changes if change.topic} for done in (one, two)]
    assert places[0] != places[1]


def test_hashing_adds_a_server_whenever_it_rebalances_for_load() -> None:
    series = make_run(Run(growth=SMALL, way=Way.HASHING, seed=0, virtual_nodes=8)).series
    assert series.brokers[-1] == 3
    assert sum(later > earlier for earlier, later in zip(series.brokers, series.brokers[1:], strict=False)) == 2


def test_the_load_ratios_of_the_servers() -> None:
    result = run_server_load(SMALL, workers=1)
    figures = result.figures
    assert 0.95 < figures.mean_below_one_before <= 1.0
    assert figures.busiest_below_one_before <= figures.busiest_below_fail_ratio_before <= 1.0
    assert figures.busiest_below_one_before > 0.5
    assert SMALL.players_first < figures.players_at_all_servers < figures.players
    assert max(result.series["servers"]) == 3


@pytest.mark.parametrize(
    "changed", [{"players_first": 0}, {"players_last": 40}, {"seeds": ()}, {"hold_s": 0.0}, {"virtual_nodes": ()}]
)
def test_growth_is_checked(changed: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        msgspec.structs.replace(SMALL, **changed)
