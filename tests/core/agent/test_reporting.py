"""Distances in an agent's reports: what is new first, and everything again in turn."""

from __future__ import annotations

from typing import Any

from nearcast.core.agent.reporting import AGAIN_S, DISTANCES_MAX, EVERY_S, Reporting
from nearcast.core.model.distances import Candidate, TopicDistances

NOBODY: Any = None  # no bus: the tests ask for what would be sent


def near(worst_s: float = 0.01) -> TopicDistances:
    return TopicDistances(Candidate("b1", worst_s / 2, worst_s / 2, worst_s))


def test_news_are_reported_once_and_then_everything_in_turn() -> None:
    reporting = Reporting("b1", 1, NOBODY)
    topics = [f"t{number}" for number in range(50)]
    reporting.estimated(dict.fromkeys(topics, near()), {}, 0.0)
    assert list(reporting._distances_due()) == topics
    turns = round(AGAIN_S / EVERY_S)
    again = [set(reporting._distances_due()) for _ in range(turns)]
    assert {len(turn) for turn in again} == {len(topics) // turns}
    assert set().union(*again) == set(topics)


def test_a_topic_that_changes_often_waits_once_and_is_reported_as_it_is_now() -> None:
    reporting = Reporting("b1", 1, NOBODY)
    for number in range(100):
        reporting.estimated({"t": near(0.01 + number / 1000)}, {}, 0.0)
    assert len(reporting._news) == 1
    assert reporting._distances_due() == {"t": near(0.109)}


def test_a_report_has_a_limited_number_of_topics_and_the_others_come_next() -> None:
    reporting = Reporting("b1", 1, NOBODY)
    reporting.estimated({f"t{number}": near() for number in range(2 * DISTANCES_MAX + 10)}, {}, 0.0)
    due = [reporting._distances_due() for _ in range(3)]
    assert [len(one) for one in due[:2]] == [DISTANCES_MAX] * 2
    assert len(due[0] | due[1] | due[2]) == 2 * DISTANCES_MAX + 10


def test_a_topic_without_clients_is_reported_no_more() -> None:
    reporting = Reporting("b1", 1, NOBODY)
    reporting.estimated({"t": near(), "u": near()}, {}, 0.0)
    reporting.estimated({"t": None}, {}, 0.0)
    assert reporting._distances_due().keys() == {"u"}
