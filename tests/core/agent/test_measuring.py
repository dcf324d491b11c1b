"""Clients are asked to measure the distances to a topic's best brokers, and the leader waits for them, but not long."""

from __future__ import annotations

from typing import Any

from nearcast.core.agent import measuring as module
from nearcast.core.agent.measuring import ASK_AGAIN_S, GIVEN_S, REST_S, Measuring
from nearcast.core.agent.reporting import Reporting
from nearcast.core.model.distances import Candidate, Sought, TopicDistances
from nearcast.core.wire.frames import decode_control

NOBODY: Any = None


class Link:
    """Stands for the server: keeps what was told."""

    def __init__(self) -> None:
        self.told: list[tuple[bytes, object]] = []

    def tell(self, channel: bytes, payload: bytes) -> None:
        self.told.append((channel, decode_control(payload)))


def seek(measuring: Measuring, topic: str, brokers: list[str], now_s: float) -> bool:
    """Returns whether the leader is to wait."""
    measuring.seek(topic, brokers, now_s)
    return measuring.waits(topic, now_s)


def tick(measuring: Measuring, link: Link, now_s: float) -> list[str]:
    server: Any = link
    return measuring.tick(server, now_s)


def test_clients_are_asked_at_once_and_again_until_their_time_is_up() -> None:
    measuring, link = Measuring(), Link()
    assert seek(measuring, "t", ["b1", "b2"], 0.0)
    over = [topic for tenth in range(100) for topic in tick(measuring, link, tenth / 10)]
    assert link.told == [(b"nc:c:t", Sought(("b1", "b2")))] * round(GIVEN_S / ASK_AGAIN_S)
    assert over == ["t"], "the leader is told once"
    assert not seek(measuring, "t", ["b1", "b2"], 10.0), "they have had their time"


def test_who_asks_for_others_asks_at_once_but_gets_no_more_time() -> None:
    measuring, link = Measuring(), Link()
    seek(measuring, "t", ["b1"], 0.0)
    tick(measuring, link, 0.0)
    assert seek(measuring, "t", ["b2"], 0.5)
    tick(measuring, link, 0.5)
    assert [told for _, told in link.told] == [Sought(("b1",)), Sought(("b2",))]
    assert not seek(measuring, "t", ["b3"], GIVEN_S)


def test_what_has_been_measured_is_not_waited_for_and_may_be_asked_again() -> None:
    measuring, link = Measuring(), Link()
    seek(measuring, "t", ["b1"], 0.0)
    assert not seek(measuring, "t", [], 1.0)
    assert tick(measuring, link, 1.0) == []
    assert link.told == []
    assert seek(measuring, "t", ["b1"], 2.0)


def test_clients_that_did_not_answer_are_left_alone_for_a_while() -> None:
    measuring, link = Measuring(), Link()
    seek(measuring, "t", ["b1"], 0.0)
    for now_s in (0.0, GIVEN_S, REST_S - 0.1):
        tick(measuring, link, now_s)
        seek(measuring, "t", ["b1"], now_s)
    assert len(link.told) == 1
    tick(measuring, link, REST_S)
    assert seek(measuring, "t", ["b1"], REST_S)


def test_not_too_many_topics_are_asked_at_once(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 3)
    measuring = Measuring()
    assert [seek(measuring, f"t{number}", ["b1"], 0.0) for number in range(5)] == [True] * 3 + [False] * 2


def test_the_leader_hears_that_a_topic_is_measured_and_when_it_is_not_any_more() -> None:
    reporting, link = Reporting("b1", 1, NOBODY), Link()
    server: Any = link
    reporting._measure_at_s = 1e9  # it is not asked for reports
    found = TopicDistances(Candidate("b1", 0.05, 0.05, 0.1))
    reporting.estimated({"t": found, "u": found}, {"t": {"b2"}}, 0.0)
    assert {topic: one.measuring for topic, one in reporting._distances_due().items()} == {"t": True, "u": False}
    reporting.tick(server, 0.1, 0.0)
    assert link.told == [(b"nc:c:t", Sought(("b2",)))]
    reporting.tick(server, GIVEN_S, 0.0)
    assert "t" in reporting._news
    assert not reporting._distances_due()["t"].measuring
