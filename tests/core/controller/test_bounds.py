"""Bounds are set by people, and kept in the membership."""

from __future__ import annotations

from typing import Any

import pytest
from parts import Surroundings, journal_of

from nearcast.core.controller import bounds as module
from nearcast.core.controller.bounds import SetBounds
from nearcast.core.model.bounds import Bound
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.wire import bus

FAST = Bound(0.04)


class Setting(Surroundings):
    def __init__(self) -> None:
        super().__init__(journal_of("b1"))
        members: Any = self
        self.bounds = SetBounds(self.office, members)

    def next_membership(self, now: Membership, brokers: dict[str, BrokerInfo], ring: tuple[str, ...]) -> Membership:
        return Membership(now.version + 1, now.term, brokers, ring, bounds=now.bounds)

    def ask(self, number: int, topics: str, bound: Bound | None) -> None:
        self.bounds.heard(bus.SetBound(f"me.{number}", topics, bound), 0.0)

    def answers(self) -> list[tuple[str, str]]:
        """Requests that were answered since the last look, and why not."""
        return [(state.request, state.problem) for state in self.said()]

    def written(self) -> None:
        self.commit()
        self.bounds.tick(0.0)


def test_a_bound_is_answered_when_it_is_written() -> None:
    one = Setting()
    one.ask(1, "swarm.*", FAST)
    assert one.answers() == []
    assert one.ledger.pending(MEMBERSHIP_KEY)
    one.written()
    assert one.answers() == [("me.1", "")]
    assert one.journal.membership.bounds == {"swarm.*": FAST}


def test_requests_that_come_meanwhile_share_the_next_membership() -> None:
    one = Setting()
    one.ask(1, "a", FAST)
    one.ask(2, "b", Bound(0.1, 90.0))
    one.ask(3, "c", FAST)
    one.written()
    assert one.answers() == [("me.1", "")]
    one.written()
    assert one.answers() == [("me.2", ""), ("me.3", "")]
    one.ask(4, "b", None)
    one.written()
    assert one.answers() == [("me.4", "")]
    assert one.journal.membership.bounds == {"a": FAST, "c": FAST}


def test_the_same_again_changes_nothing() -> None:
    one = Setting()
    one.ask(1, "a", FAST)
    one.written()
    one.ask(1, "a", FAST)
    assert not one.ledger.pending(MEMBERSHIP_KEY)
    assert one.answers() == [("me.1", ""), ("me.1", "")]


@pytest.mark.parametrize(
    ("topics", "bound", "problem"),
    [
        ("", FAST, "a topic or pattern must have 1 to 512 bytes"),
        ("x" * 513, FAST, "a topic or pattern must have 1 to 512 bytes"),
        ("a", None, "'a' has no bound of its own; bounds are set for: nothing"),
    ],
)
def test_what_cannot_be_set_is_refused(topics: str, bound: Bound | None, problem: str) -> None:
    one = Setting()
    one.ask(1, topics, bound)
    assert one.answers() == [("me.1", problem)]


def test_bounds_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOUNDS_MAX", 1)
    one = Setting()
    one.ask(1, "a", FAST)
    one.written()
    one.ask(2, "b", FAST)
    one.ask(3, "a", Bound(0.05))
    assert [problem for _, problem in one.answers()] == ["", "there are 1 bounds: remove one, or set one for a pattern"]
    one.written()
    assert one.journal.membership.bounds == {"a": Bound(0.05)}
