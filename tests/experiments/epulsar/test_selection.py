"""Broker selection: it chooses what the policy chooses, and the figures follow from true latencies."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import astuple
from typer.testing import CliRunner

from nearcast.cli import reproduce_selection
from nearcast.cli.app import app
from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Candidate, Centroids, TopicDistances
from nearcast.core.model.placement import Plan, single
from nearcast.core.model.planning import BrokerLoad, Snapshot, TopicLoad
from nearcast.errors import UsageError
from nearcast.experiments.epulsar import placements
from nearcast.experiments.epulsar.broker_selection import Selection, run_cities, run_zones
from nearcast.experiments.epulsar.placements import Job, Town, players, run_job, swarms
from nearcast.experiments.epulsar.selection import Selector, Tally, Topics, Way
from nearcast.experiments.epulsar.topology import Topology, apart, city_matrix, city_topology, zone_topology
from nearcast.experiments.result import run_jobs
from nearcast.policies.epulsar import EPulsar, EPulsarConfig, Ranking
from nearcast.workloads.uav import generated_stations, zone_centres

LOCAL = partial(run_jobs, workers=1)


def made(seed: int, brokers: int = 12, clients: int = 9) -> Topology:
    """Everything known exactly, by coordinates."""
    rng = np.random.default_rng(seed)
    at_brokers, at_clients = (rng.uniform(0.0, 0.1, (count, 4)) for count in (brokers, clients))
    rtt_s = apart(at_clients, at_brokers)
    names = tuple(f"b{number:02}" for number in range(brokers))
    return Topology(names, rtt_s, rtt_s, at_clients, at_brokers)


def drawn(seed: int, count: int = 40) -> Topics:
    rng = np.random.default_rng(seed)
    return Topics(
        tuple(f"t{n:02}" for n in range(count)), rng.integers(9, size=count), rng.integers(9, size=(count, 5))
    )


def decided(topology: Topology, topics: Topics, ranking: Ranking) -> list[str]:
    """What the policy does with these topics if each misses its bound where it is, and none can be kept."""
    far = "zz"
    distances = {}
    for number, name in enumerate(topics.names):
        one, others = topics.one[number], topics.others[number]
        up_s, down_s = topology.rtt_s[one] / 2, topology.rtt_s[others].max(axis=0) / 2
        best = [
            Candidate(topology.brokers[broker], up_s[broker], down_s[broker], 0.0)
            for broker in np.argsort(up_s + down_s)[:8]
        ]
        middle = topology.client_coordinates[others].mean(axis=0)
        away_s = apart(topology.client_coordinates[others], middle[None]).max()
        own = topology.client_coordinates[one]
        centroids = Centroids(tuple(own), tuple(middle), 2 * own[-1] + away_s)
        distances[name] = TopicDistances(Candidate(far, 9.0, 9.0, 9.0), tuple(best), centroids)
    load = {"capacity_bytes_per_s": 1e9, "output_bytes_per_s": 0.0}
    brokers = {
        name: BrokerLoad(**load, coordinate=tuple(topology.broker_coordinates[number]))
        for number, name in enumerate(topology.brokers)
    }
    brokers[far] = BrokerLoad(**load, coordinate=(9.0, 9.0, 9.0, 9.0))
    snapshot = Snapshot(
        0.0,
        brokers,
        dict.fromkeys(topics.names, TopicLoad(1, 1, 5, 5, 1, 5)),
        distances=distances,
        bounds=dict.fromkeys(topics.names, Bound(0.001)),
    )
    plan = Plan(1, {name: single(1, far, 1) for name in topics.names})
    found = EPulsar(EPulsarConfig(ranking=ranking)).propose(snapshot, plan)
    places = {change.topic: change.brokers[0] for change in found.placements}
    return [places[name] for name in topics.names]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("way", "ranking"), [(Way.TOP8, Ranking.TOP8), (Way.CENTROIDS, Ranking.CENTROIDS)])
def test_the_selection_is_the_policys(seed: int, way: Way, ranking: Ranking) -> None:
    topology, topics = made(seed), drawn(seed)
    chosen, _ = Selector(topology).choose(topics, way)
    assert [topology.brokers[broker] for broker in chosen] == decided(topology, topics, ranking)


def test_with_exact_knowledge_all_pairs_and_top8_are_perfect() -> None:
    topology, topics = made(1), drawn(1)
    selector = Selector(topology)
    found = {way: selector.tally(topics, way, 0.25) for way in Way}
    assert found[Way.ALL_PAIRS] == found[Way.TOP8] == found[Way.ESTIMATED] == found[Way.PERFECT]
    assert found[Way.PERFECT].sum_worst_s <= found[Way.CENTROIDS].sum_worst_s <= found[Way.HASHING].sum_worst_s


def test_a_tally_counts_pairs_by_both_conventions() -> None:
    rtt_s = np.array([[0.03, 0.2], [0.08, 0.2]])
    topology = Topology(("a", "b"), rtt_s, rtt_s, np.zeros((2, 3)), np.zeros((2, 3)))
    topics = Topics(("t",), np.array([0]), np.array([[0, 1, 1]]))
    found = Selector(topology).tally(topics, Way.PERFECT, 0.1)  # 60, 110 and 110 ms over a
    assert (found.pairs, found.violations, found.violations_halved, found.hopeless) == (3, 2, 0, 1)
    assert found.worst_s == pytest.approx(0.11)
    assert (found + Tally(worst_s=0.2)).worst_s == 0.2


def test_players_hear_the_others_of_their_group() -> None:
    topics = players(np.random.default_rng(0), 20)
    assert (len(set(topics.names)), topics.others.shape) == (1024, (1024, 7))
    assert topics.one.max() < 20


def test_a_swarm_is_in_one_place() -> None:
    town = Town(np.array([[0.0, 0.0], [10.0, 10.0]]), np.array([[0.0, 0.0], [10.0, 10.0]]))
    topics = swarms(np.random.default_rng(0), town)
    assert (len(set(topics.names)), topics.others.shape) == (32, (32, 7))
    assert (topics.others == topics.one[:, None]).all()
    assert set(topics.one.tolist()) == {0, 1}


def test_the_figures_do_not_depend_on_the_jobs() -> None:
    topology = made(2, clients=12)
    whole = run_job(Job(topology, 0.25, 0, 0, 4))
    halves = [run_job(Job(topology, 0.25, 0, first, 2)) for first in (0, 2)]
    for way in Way:
        both = halves[0][way] + halves[1][way]
        assert astuple(both) == pytest.approx(astuple(whole[way]))


def test_mobile_clients_have_their_sites_coordinate_and_their_access_as_height() -> None:
    topology = zone_topology(3, 0)
    assert topology.rtt_s.tolist() == [[0.016, 0.046, 0.046], [0.046, 0.016, 0.046], [0.046, 0.046, 0.016]]
    assert (topology.coordinate_rtt_s().argmin(axis=1) == np.arange(3)).all()


def test_no_swarm_misses_its_bound_in_any_number_of_zones() -> None:
    selection = Selection(name="epulsar-5", title="", x_label="", bound_s=0.04, source="", placements=5)
    figures = run_zones(generated_stations(0), selection, LOCAL).figures
    assert list(figures.sizes) == list(range(2, 11))
    assert figures.violations_top8 == 0
    assert figures.violation_ratio["centroids"] == 0.0
    assert figures.violation_ratio["hashing"] > 0.5
    assert figures.within_gap


def test_in_cities_top8_is_as_good_as_all_pairs_and_hashing_is_not() -> None:
    names, rtt_s = city_matrix(None, 0)
    selection = Selection(name="epulsar-4", title="", x_label="", bound_s=0.1, source="", placements=2)
    figures = run_cities(names[:11], rtt_s[:11, :11], selection, LOCAL).figures
    assert list(figures.sizes) == [5, 10, 11]
    assert figures.within_gap
    for ways in figures.sizes.values():
        assert ways["hashing"].violation_ratio > 3 * ways["top8"].violation_ratio
        assert ways["top8"].mean_worst_ms >= ways["perfect"].mean_worst_ms
        assert ways["centroids"].hopeless_ratio >= ways["perfect"].hopeless_ratio


def test_more_cities_than_there_are_is_a_usage_error() -> None:
    names, rtt_s = city_matrix(None, 0)
    with pytest.raises(UsageError, match="choose 2 to 64"):
        city_topology(names, rtt_s, 65, 0)


def test_a_matrix_is_read_in_ms_and_averaged(tmp_path: Path) -> None:
    path = tmp_path / "matrix.csv"
    path.write_text(",A,B\nA,0.3,10\nB,20,0\n")
    names, rtt_s = city_matrix(path, 0)
    assert names == ("A", "B")
    assert rtt_s.tolist() == [[0.0, 0.015], [0.015, 0.0]]


@pytest.mark.parametrize("command", ["epulsar-3", "epulsar-4", "epulsar-5", "epulsar-6"])
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", command, "--help"])
    assert f"Example: nearcast reproduce {command}" in " ".join(result.stdout.split())


def test_the_command_writes_its_files(tmp_path: Path) -> None:
    stations = tmp_path / "stations.csv"
    rows = [f"{-37.8 + x / 100},{144.9 + y / 100}" for x in range(5) for y in range(5)]
    stations.write_text("\n".join(["lat,lon", *rows]))
    options = ["--stations", str(stations), "--placements", "2", "--workers", "1", "--json", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["reproduce", "epulsar-5", *options])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["placements"], figures["source"], figures["violations_top8"]) == (2, "stations.csv", 0)
    assert (tmp_path / "epulsar-5.png").stat().st_size > 10_000
    assert json.loads((tmp_path / "epulsar-5.json").read_text())["figures"] == figures


def test_the_command_has_the_settings_of_the_experiment() -> None:
    assert reproduce_selection.PLACEMENTS == placements.PLACEMENTS
    assert len(zone_centres(generated_stations(0), 10, 0)) == 10
