"""The flow simulator as a whole: conservation, response times, the paper's figures, one seed one series."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import numpy as np
import pytest

from nearcast.core.model.placement import Mode
from nearcast.errors import UsageError
from nearcast.flow.model import Demand, FlowSettings, Publications, Series, Subscriptions
from nearcast.flow.network import MatrixDelays
from nearcast.flow.simulation import FlowSimulation
from nearcast.policies.dynamoth import Dynamoth
from nearcast.workloads.hot_topic import HotTopic
from nearcast.workloads.rgame import Ramp, RGame

THREE = ("b1", "b2", "b3")
REST_S = 0.075  # two network delays


def hot(publishers: int, subscribers: int, mode: Mode = Mode.SINGLE, seconds: float = 60) -> Series:
    brokers = ("b1",) if mode is Mode.SINGLE else THREE
    workload = HotTopic(publishers, subscribers)
    return FlowSimulation(workload, None, brokers=len(brokers), placements={"hot": (mode, brokers)}).run(seconds)


def mean_response_s(series: Series) -> float:
    return float(np.mean(series.response_s))


def delivered_share(series: Series) -> float:
    return series.deliveries / (series.deliveries + series.lost)


# --- conservation


@pytest.mark.parametrize("mode", [Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS])
def test_every_publication_reaches_every_subscriber(mode: Mode) -> None:
    series = hot(5, 40, mode, seconds=10)
    assert series.publications_per_s == pytest.approx([50.0] * 10)
    assert series.deliveries_per_s == pytest.approx([2000.0] * 10)
    assert series.lost == 0


def test_deliveries_of_the_game_are_publications_times_subscribers() -> None:
    game, same = (RGame(6, 6, Ramp(((0, 20), (30, 200))), seed=4) for _ in range(2))
    series = FlowSimulation(game, None, brokers=4).run(30)
    for at_s, deliveries_per_s in zip(series.at_s, series.deliveries_per_s, strict=True):
        players = np.bincount(same.demand(at_s).subscriptions.topic)
        assert deliveries_per_s == pytest.approx(3.0 * (players**2).sum())


def test_what_is_not_delivered_is_lost_or_still_held() -> None:
    """At twice a server's limit, until it is full and beyond."""
    settings = FlowSettings(cpu_s_per_delivery=1e-9, capacity_bytes_per_s=264e3, fail_ratio=1.0, backlog_max_s=5.0)
    series = FlowSimulation(HotTopic(200, 1), None, settings).run(30)  # 2000 deliveries/s asked for, 1000 possible
    assert series.deliveries_per_s == pytest.approx([1000.0] * 30)
    assert series.deliveries + series.lost == pytest.approx(2000 * 30 - 5 * 1000)
    assert series.lost_per_s[:5] == pytest.approx([0.0] * 5)
    assert series.load_ratio_max == pytest.approx([1.0] * 30)


# --- response times


def test_at_rest_the_response_time_is_the_network_s() -> None:
    series = FlowSimulation(RGame(10, 10, Ramp.steady(100), seed=1), None).run(30)
    assert mean_response_s(series) == pytest.approx(REST_S, abs=0.002)
    assert 0.14 < np.mean(series.response_p99_s) < 0.18  # of two lognormal delays


def test_a_matrix_gives_the_network_s_part() -> None:
    delays = MatrixDelays(("here", "there"), np.array([[0.0, 0.1], [0.1, 0.0]]), broker_places=("here",))
    series = FlowSimulation(RGame(10, 10, Ramp.steady(400), seed=1), None, delays=delays, brokers=4).run(5)
    assert mean_response_s(series) == pytest.approx(0.05, abs=0.01)  # half of the players are there
    assert max(series.response_p99_s) < 0.11


def test_nobody_publishes_nobody_waits() -> None:
    series = FlowSimulation(HotTopic(0, 5), None).run(2)
    assert np.isnan(series.response_s).all()
    assert series.deliveries == 0


def test_the_own_update_counts_not_those_of_others() -> None:
    """Two topics on two servers, one of them overloaded; only the other one's publisher hears itself."""

    class TwoTopics:
        topics = ("busy", "own")

        def demand(self, at_s: float) -> Demand:
            return Demand(
                701,
                Subscriptions(np.arange(701), np.array([0] * 700 + [1])),
                Publications(np.array([700, 700]), np.array([0, 1]), np.array([10.0, 10.0])),
                200.0,
            )

    places = {"busy": (Mode.SINGLE, ("b1",)), "own": (Mode.SINGLE, ("b2",))}
    series = FlowSimulation(TwoTopics(), None, brokers=2, placements=places).run(20)
    assert max(series.response_s) < 0.08


# --- the paper's figures


def test_figure_4a_one_server_breaks_above_500_subscribers() -> None:
    means_s = {count: mean_response_s(hot(1, count)) for count in range(100, 900, 100)}
    assert means_s[100] < REST_S + 0.015
    assert all(means_s[count] < means_s[count + 100] for count in range(100, 800, 100))
    assert REST_S + 0.035 < means_s[500] < 0.150
    assert means_s[600] > 1.0
    assert means_s[800] > 5.0


def test_figure_4a_three_servers_stay_low_up_to_800_subscribers() -> None:
    for count in (100, 500, 800):
        series = hot(1, count, Mode.ALL_PUBLISHERS)
        assert mean_response_s(series) < 0.110
        assert series.lost == 0


def test_figure_4b_one_server_fails_above_200_publishers() -> None:
    series = {count: hot(count, 1, seconds=120) for count in (100, 200, 300, 800)}
    assert delivered_share(series[200]) == 1.0
    assert mean_response_s(series[200]) < 0.080
    assert delivered_share(series[300]) < 0.8
    assert sum(series[300].connections_dropped) >= 2  # the output buffer was full, CPU and bandwidth were not
    assert max(series[300].cpu_max) < 0.75
    assert max(series[300].load_ratio_max) < 0.5
    assert delivered_share(series[800]) < 0.4


def test_figure_4b_three_servers_hold_up_to_600_publishers() -> None:
    series = {count: hot(count, 1, Mode.ALL_SUBSCRIBERS, seconds=120) for count in (600, 700, 800)}
    assert delivered_share(series[600]) == 1.0
    assert mean_response_s(series[600]) < 0.080
    assert mean_response_s(series[700]) > 1.0
    assert delivered_share(series[800]) < 0.8


def test_dynamoth_carries_a_growing_game_with_more_and_more_servers() -> None:
    game = RGame(12, 12, Ramp(((0, 120), (400, 800))), seed=1)
    series = FlowSimulation(game, Dynamoth(), seed=1).run(400)
    assert series.brokers[0] == 1
    assert series.brokers[-1] >= 5
    assert series.brokers == sorted(series.brokers)
    assert series.lost == 0
    assert np.quantile(series.response_s, 0.95) < 0.150


# --- one seed, one series


def encoded(seed: int) -> bytes:
    game = RGame(8, 8, Ramp(((0, 50), (60, 400))), seed)
    return msgspec.json.encode(FlowSimulation(game, Dynamoth(), seed=seed).run(60))


def test_one_seed_gives_one_series() -> None:
    assert encoded(3) == encoded(3)
    assert encoded(3) != encoded(4)


def test_another_process_gives_the_same_series() -> None:
    """Every process orders sets of strings differently."""
    command = [
        "-m",
        "nearcast",
        "simulate",
        "flow",
        "--tiles",
        "8x8",
        "--players",
        "50:500",
        "--seconds",
        "90",
        "--json",
    ]
    outputs = {
        subprocess.run([sys.executable, *command], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(msgspec.json.decode(outputs.pop())["rebalancings"]) >= 2


def test_a_run_can_go_on() -> None:
    def fresh() -> FlowSimulation:
        return FlowSimulation(RGame(4, 4, Ramp(((0, 5), (20, 60))), seed=1), None)

    parts, told = fresh(), []
    parts.run(8)
    assert parts.run(12, told.append) == fresh().run(20)
    assert told[-1] == 20.0


# --- what is refused


def test_a_placement_must_name_what_is_there() -> None:
    with pytest.raises(UsageError, match="no topic 'cold'"):
        FlowSimulation(HotTopic(1, 1), None, placements={"cold": (Mode.SINGLE, ("b1",))})
    with pytest.raises(UsageError, match="unknown broker 'b2'; the cluster has: b1"):
        FlowSimulation(HotTopic(1, 1), None, placements={"hot": (Mode.SINGLE, ("b2",))})
