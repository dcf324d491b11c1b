"""While clients that travel together arrive one by one, the leader waits; but never long, and not again and again."""

from __future__ import annotations

from typing import Any

from nearcast.core.agent.reporting import Reporting
from nearcast.core.agent.steadying import LONGEST_S, REST_S, STEADY_S, Steadying
from nearcast.core.model.distances import Candidate, TopicDistances

NOBODY: Any = None


def test_the_leader_waits_until_nothing_changes_for_a_moment() -> None:
    steadying = Steadying()
    assert not steadying.waits("t", 0.0)
    steadying.changed("t", 0.0)
    steadying.changed("t", 0.8)
    assert steadying.waits("t", 0.8 + STEADY_S * 0.9)
    assert steadying.tick(0.8 + STEADY_S * 0.9) == []
    assert not steadying.waits("t", 0.8 + STEADY_S)
    assert steadying.tick(0.8 + STEADY_S) == ["t"]


def test_clients_that_never_rest_keep_a_topic_from_moving_for_a_short_time_only() -> None:
    steadying = Steadying()
    waited = 0
    for tenth in range(1000):
        steadying.changed("t", tenth / 10)
        waited += steadying.waits("t", tenth / 10)
        steadying.tick(tenth / 10)
    assert waited / 1000 <= LONGEST_S / REST_S + 0.02
    assert steadying.tick(1000.0) == ["t"]
    assert steadying.tick(1001.0) == []


def test_the_leader_hears_it_with_the_distances_and_when_it_is_over() -> None:
    reporting = Reporting("b1", 1, NOBODY)
    reporting._measure_at_s = 1e9  # it is not asked for reports
    for now_s, one_way_s in ((0.0, 0.050), (1.0, 0.051), (2.0, 0.150)):
        reporting.estimated({"t": TopicDistances(Candidate("b1", one_way_s, one_way_s, one_way_s))}, {}, now_s)
        assert reporting._distances_due()["t"].measuring is (now_s == 2.0)
    server: Any = object()
    reporting.tick(server, 2.0 + STEADY_S, 0.0)
    assert not reporting._distances_due()["t"].measuring
