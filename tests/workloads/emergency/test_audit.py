"""The audit of notifications finds each kind of fault, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nearcast.workloads.emergency.audit import NotificationAudit, NotificationVerdict

Delivery = tuple[int, list[dict[str, Any]]]

ROWS = {1: [{"id": 1}], 2: [], 3: [{"id": 3}, {"id": 3}], 4: [{"id": 4, "shelter": "s"}], 5: [{"id": 5}]}
CORRECT: list[Delivery] = [(3, ROWS[3]), (4, ROWS[4]), (5, ROWS[5])]


def audited(deliveries: list[Delivery], from_execution: int = 2, ended: bool = False) -> NotificationVerdict:
    audit = NotificationAudit()
    audit.subscribed("ann", "near-1", "near", {"kind": "fire"}, from_execution)
    audit.subscribed("bob", "near-1", "near", {"kind": "fire"}, from_execution)
    for execution, rows in deliveries:
        audit.got("ann", "near-1", execution, rows)
    for execution, rows in CORRECT:
        audit.got("bob", "near-1", execution, rows)
    if ended:
        audit.unsubscribed("ann", "near-1")
    return audit.verdict({"near": ROWS}, lambda channel, parameters, execution: ROWS[execution])


def test_all_rows_of_each_execution_once_and_in_order_is_exact() -> None:
    verdict = audited([(3, ROWS[3]), (4, ROWS[4]), (5, list(reversed(ROWS[5])))])
    assert verdict.exact, verdict
    assert (verdict.subscribers, verdict.subscriptions, verdict.expected, verdict.delivered) == (2, 2, 6, 6)
    assert verdict.rows == 8
    assert verdict.examples == []


PLANTED: dict[str, Callable[[], NotificationVerdict]] = {
    "lost": lambda: audited([CORRECT[0], CORRECT[2]]),
    "repeated": lambda: audited([*CORRECT, CORRECT[2]]),
    "reordered": lambda: audited([CORRECT[1], CORRECT[0], CORRECT[2]]),
    "unexpected": lambda: audited([(1, ROWS[1]), *CORRECT]),  # from before the subscription
    "wrong": lambda: audited([(3, [{"id": 3}]), *CORRECT[1:]]),  # one of two equal rows
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_is_the_only_one(fault: str) -> None:
    verdict = PLANTED[fault]()
    found = {name: getattr(verdict, name) for name in PLANTED}
    assert found == {name: int(name == fault) for name in PLANTED}
    assert not verdict.exact
    assert verdict.examples[0].startswith(f"{fault}: ann")


def test_a_result_for_an_execution_without_rows_is_unexpected() -> None:
    assert audited([(2, [{"id": 9}]), *CORRECT]).unexpected == 1


def test_a_result_that_nobody_asked_for_is_unexpected() -> None:
    audit = NotificationAudit()
    audit.got("eve", "near-2", 1, ROWS[1])
    assert audit.verdict({}, lambda channel, parameters, execution: []).unexpected == 1


def test_who_unsubscribed_is_owed_a_beginning() -> None:
    assert audited(CORRECT[:1], ended=True).exact
    assert audited([CORRECT[0], CORRECT[2]], ended=True).lost == 1
    assert audited(CORRECT[:1]).lost == 2
