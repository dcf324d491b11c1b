"""Which replicas are listed, and which of them holds the parts of a life that has ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.controller.replicas import Replicas
from nearcast.core.model.logs import FormerLife, Log, PartState, Sealed
from nearcast.core.model.membership import BrokerInfo, Membership

LIFE = "b1@3"
A, B, C = "redis://a:1", "redis://b:1", "redis://c:1"


class Desk:
    """Stands for the office, its orders and the members."""

    term = 1

    def __init__(self) -> None:
        self.ledger = self.orders = self
        self.ordered: list[tuple[str, str]] = []

    def log(self, note: str) -> None:
        pass

    def heard_now(self, now_s: float) -> list[str]:
        return ["b2", "b1"]

    def need(self, key: Any, broker: str, make: Any, done: Any, now_s: float) -> None:
        self.ordered.append((key[2], broker))


def decided(quorum: int, sealed: dict[str, Sealed | None], *, replicas: tuple[str, ...] = (A, B)) -> FormerLife:
    """What becomes of a life with these replicas; None is one that has not answered."""
    desk: Any = Desk()
    replicas_of = Replicas(desk, desk)
    replicas_of._sealed = {(LIFE, url): found for url, found in sealed.items() if found is not None}
    former = FormerLife(LIFE, 9, PartState.SEALING, replicas={url: f"run of {url}" for url in replicas})
    logs = (Log("orders", 1, ("*",), 60.0, 1 << 20, quorum),)
    membership = Membership(version=9, term=1, brokers={}, logs=logs, former=(former,))
    found = replicas_of._decided(former, membership, 0.0)
    assert {url for url, _ in desk.ordered} == (
        {url for url in replicas if sealed.get(url) is None} if found.state is PartState.SEALING else set()
    )
    return found


def at(url: str, offset: int) -> Sealed:
    return Sealed(f"run of {url}", LIFE, offset)


def test_the_replica_that_had_come_farthest_holds() -> None:
    found = decided(2, {A: at(A, 7), B: at(B, 9)})
    assert (found.state, found.url) == (PartState.HELD, B)


@pytest.mark.parametrize(("quorum", "state"), [(2, PartState.SEALING), (3, PartState.HELD)])
def test_as_many_are_needed_as_may_be_without_what_was_acknowledged(quorum: int, state: PartState) -> None:
    assert decided(quorum, {A: at(A, 7), B: None}).state is state


def test_a_replica_that_never_had_anything_counts_and_does_not_hold() -> None:
    found = decided(2, {A: at(A, 7), B: Sealed(f"run of {B}", "", 5)})
    assert (found.state, found.url) == (PartState.HELD, A)


def test_a_replica_that_was_restarted_may_have_lost_something() -> None:
    assert decided(2, {A: at(A, 7), B: Sealed("another run", "", -1)}).state is PartState.LOST
    assert decided(2, {A: at(A, 7), B: Sealed("another run", LIFE, 6)}).url == A, "it has caught up since"


def test_what_nobody_ever_had_is_lost_without_a_loss() -> None:
    found = decided(2, {url: Sealed(f"run of {url}", "", -1) for url in (A, B)})
    assert (found.state, found.counts) == (PartState.LOST, {"orders@1": 0})


def test_three_replicas_and_a_quorum_of_two_need_all_three() -> None:
    three = (A, B, C)
    assert decided(2, {A: at(A, 1), B: at(B, 2), C: None}, replicas=three).state is PartState.SEALING
    assert decided(2, {A: at(A, 1), B: at(B, 2), C: at(C, 3)}, replicas=three).url == C


def test_without_a_log_with_a_quorum_nothing_is_held() -> None:
    assert decided(1, {A: at(A, 7), B: at(B, 9)}).state is PartState.LOST


def test_a_replica_is_listed_for_one_life_at_a_time() -> None:
    from nearcast.core.controller.replicas import _is_taken

    held = FormerLife(LIFE, 9, PartState.HELD, A, {A: "1", B: "1"})
    sealing = msgspec.structs.replace(held, state=PartState.SEALING, url="")
    other = {"b2": BrokerInfo("redis://b2", replicas={C: "1"})}
    for former, taken in ((held, {A, C}), (sealing, {A, B, C})):
        membership = Membership(version=9, term=1, brokers=other, former=(former,))
        assert {url for url in (A, B, C) if _is_taken(url, "b1", membership)} == taken
