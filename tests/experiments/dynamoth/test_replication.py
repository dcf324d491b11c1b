"""Figures 4a and 4b: what counts as supported, the shapes in the flow simulator, and a small run on real servers."""

from __future__ import annotations

import asyncio
import math

import msgspec
import pytest

from nearcast.errors import UsageError
from nearcast.experiments.dynamoth.replication import (
    PUBLISHERS,
    SUBSCRIBERS,
    Crowd,
    FlowSizes,
    Point,
    report,
    run_flow,
    supported,
)
from nearcast.experiments.dynamoth.replication_live import LIVE, LiveSettings, run_live
from nearcast.flow.network import LognormalDelays


def point(servers: int, clients: int, response_ms: float | None = 80.0, delivered_share: float = 1.0) -> Point:
    return Point(
        servers=servers,
        clients=clients,
        response_ms=response_ms,
        p99_ms=response_ms,
        delivered_share=delivered_share,
    )


def test_supported_ends_at_the_first_point_that_is_not_good() -> None:
    assert supported([point(1, 10), point(1, 20, 149.0), point(1, 30, 151.0), point(1, 40)], 1) == 20
    assert supported([point(1, 10), point(1, 20, delivered_share=0.98)], 1) == 10
    assert supported([point(1, 10, None)], 1) == 0
    assert supported([point(3, 10)], 1) == 0


def test_a_ratio_is_a_lower_bound_where_the_range_ended() -> None:
    points = [point(1, 10), point(1, 20, 900.0), point(3, 10), point(3, 20)]
    figures = report(SUBSCRIBERS, "flow", {}, points).figures
    assert (figures.supported_one, figures.supported_three, figures.ratio, figures.range_ended) == (10, 20, 2.0, True)
    assert ("ratio", "at least 2.00") in report(SUBSCRIBERS, "flow", {}, points).rows
    assert report(SUBSCRIBERS, "flow", {}, [point(1, 10, 900.0), point(3, 10)]).figures.ratio is None


@pytest.mark.parametrize(
    ("crowd", "one", "three", "ratio"), [(SUBSCRIBERS, 500, 800, 1.6), (PUBLISHERS, 200, 600, 3.0)]
)
def test_the_flow_simulator_breaks_where_the_paper_does(crowd: Crowd, one: int, three: int, ratio: float) -> None:
    figures = run_flow(crowd, LognormalDelays()).figures
    assert (figures.supported_one, figures.supported_three, figures.ratio) == (one, three, ratio)
    found = {(each.servers, each.clients): each for each in figures.points}
    assert 70 < found[3, 100].response_ms < 90  # two delays of 37.5 ms on average, and a server at rest
    assert found[1, 800].failed


def test_response_time_on_one_server_grows_with_the_subscribers() -> None:
    figures = run_flow(
        SUBSCRIBERS, LognormalDelays(), sizes=FlowSizes(counts=(100, 500), seconds=10, counted_s=5)
    ).figures
    few, many = [each.response_ms for each in figures.points if each.servers == 1]
    assert many - few == pytest.approx(400 * 0.185 / 2, rel=0.05)  # half of what sending to 400 more takes


def test_sizes_are_checked() -> None:
    with pytest.raises(UsageError, match="counts"):
        FlowSizes(counts=())
    with pytest.raises(UsageError, match="counted_s"):
        FlowSizes(seconds=1.0, counted_s=2.0)
    with pytest.raises(UsageError, match="growing"):
        LiveSettings(deliveries_per_s=100, counts=(20, 10))
    with pytest.raises(UsageError, match="above 0"):
        LiveSettings(deliveries_per_s=0)


@pytest.mark.live
def test_three_real_servers_carry_what_is_too_much_for_one() -> None:
    settings = msgspec.structs.replace(
        LIVE[PUBLISHERS.name], counts=(6, 15), seconds=0.8, delay_s=0.005, deliveries_per_s=100.0
    )
    figures = asyncio.run(run_live(PUBLISHERS, settings)).figures
    found = {(each.servers, each.clients): each for each in figures.points}
    assert figures.supported_one == 6
    assert found[1, 6].response_ms < 60
    assert found[1, 15].response_ms > 120  # 150 a second where 100 fit
    assert found[3, 15].response_ms < found[1, 15].response_ms
    assert found[3, 15].delivered_share == pytest.approx(1.0)
    assert not math.isnan(found[3, 15].p99_ms)
