"""The audit finds each planted fault, and names it by its right name."""

from __future__ import annotations

from nearcast.core.model.message import Event, Gap, Interrupted, Message
from nearcast.testing.audit import EXAMPLES_MAX, ON_ITS_WAY_S, Audit, Verdict, stamp

PUBLISHER = 7
JOINED_S = 100.0


def audit_of(count: int, *, acknowledged: bool = True) -> Audit:
    """One subscriber since 100 s; message n was published at 100 + n s and acknowledged half a second later."""
    audit = Audit()
    audit.joined("s", ["t"], JOINED_S)
    for number in range(1, count + 1):
        assert audit.published(PUBLISHER, "t", JOINED_S + number) == number
        if acknowledged:
            audit.acknowledged(PUBLISHER, "t", number, JOINED_S + number + 0.5)
    return audit


def message(number: int, *, topic: str = "t", publisher: int = PUBLISHER, payload: bytes | None = None) -> Message:
    payload = stamp(publisher, topic, number) + b"..." if payload is None else payload
    return Message(topic, payload, publisher, number, 0.0, 0.0)


def verdict_of(audit: Audit, *events: Event | int) -> Verdict:
    audit.saw("s", [message(event) if isinstance(event, int) else event for event in events])
    return audit.verdict()


def gap(first: int, last: int) -> Gap:
    return Gap("t", PUBLISHER, first, last, "")


def wrong(verdict: Verdict) -> dict[str, int]:
    """The counts of a verdict that are not zero, without those that are no fault."""
    harmless = ("published", "acknowledged", "delivered", "examples")
    return {name: value for name, value in vars(verdict).items() if value and name not in harmless}


def test_everything_once_and_in_order_is_exact() -> None:
    verdict = verdict_of(audit_of(4), 1, 2, 3, 4)
    assert verdict.exact
    assert verdict.honest
    assert wrong(verdict) == {}
    assert (verdict.published, verdict.acknowledged, verdict.delivered, verdict.lost) == (4, 4, 4, 0)


def test_a_lost_beginning_is_a_prefix() -> None:
    verdict = verdict_of(audit_of(4), 3, 4)
    assert wrong(verdict) == {"lost_prefix": 2, "untold": 2}
    assert verdict.lost == 2
    assert not verdict.honest
    assert verdict.examples == ["s misses 2 of t 7 from #1 on, lost_prefix, not reported"]


def test_a_hole_is_a_middle() -> None:
    assert wrong(verdict_of(audit_of(5), 1, 2, 4, 5)) == {"lost_middle": 1, "untold": 1}


def test_a_lost_end_is_a_suffix() -> None:
    assert wrong(verdict_of(audit_of(5), 1, 2)) == {"lost_suffix": 3, "untold": 3}


def test_a_line_of_which_nothing_came_is_lost_from_its_beginning() -> None:
    assert wrong(verdict_of(audit_of(2))) == {"lost_prefix": 2, "untold": 2}


def test_every_subscriber_is_owed_everything() -> None:
    audit = audit_of(2)
    audit.joined("other", ["t"], JOINED_S)
    assert audit.owed == 4
    assert wrong(verdict_of(audit, 1, 2)) == {"lost_prefix": 2, "untold": 2}


def test_what_came_twice_is_duplicated() -> None:
    assert wrong(verdict_of(audit_of(3), 1, 2, 2, 3, 1)) == {"duplicated": 2}


def test_what_came_late_is_reordered_and_not_lost() -> None:
    verdict = verdict_of(audit_of(4), 1, 3, 2, 4)
    assert wrong(verdict) == {"reordered": 1}
    assert not verdict.honest


def test_what_came_late_twice_is_both() -> None:
    assert wrong(verdict_of(audit_of(4), 1, 4, 2, 2, 3)) == {"reordered": 2, "duplicated": 1}


def test_what_nobody_published_is_unexpected() -> None:
    assert wrong(verdict_of(audit_of(1), 1, 2, message(1, publisher=8), message(1, topic="u"), message(0))) == {
        "unexpected": 4
    }


def test_a_changed_payload_is_unexpected() -> None:
    mixed_up = message(1, payload=stamp(PUBLISHER, "t", 2))
    assert wrong(verdict_of(audit_of(1), mixed_up)) == {"unexpected": 1, "lost_prefix": 1, "untold": 1}


def test_a_message_without_our_envelope_is_unexpected() -> None:
    foreign = Message("t", b"hello", None, None, 0.0, 0.0)
    assert wrong(verdict_of(audit_of(1), 1, foreign)) == {"unexpected": 1}


def test_a_topic_that_was_not_subscribed_is_unexpected() -> None:
    audit = audit_of(0)
    audit.published(PUBLISHER, "u", JOINED_S + 1)
    assert wrong(verdict_of(audit, message(1, topic="u"))) == {"unexpected": 1}


def test_a_gap_tells_of_a_hole() -> None:
    verdict = verdict_of(audit_of(5), 1, gap(2, 4), 5)
    assert wrong(verdict) == {"lost_middle": 3, "gaps": 1}
    assert verdict.honest
    assert not verdict.exact


def test_a_gap_that_ends_too_early_leaves_the_rest_untold() -> None:
    assert wrong(verdict_of(audit_of(5), 1, gap(2, 3), 5)) == {"lost_middle": 3, "gaps": 1, "untold": 1}


def test_a_gap_over_delivered_messages_is_found_whichever_came_first() -> None:
    verdict = verdict_of(audit_of(5), 1, 2, gap(2, 4), 4, 5)
    assert wrong(verdict) == {"lost_middle": 1, "gaps": 1, "gap_over_delivered": 2}
    assert not verdict.honest


def test_a_gap_of_another_line_tells_nothing() -> None:
    other = Gap("t", PUBLISHER + 1, 2, 2, "")
    assert wrong(verdict_of(audit_of(3), 1, other, 3)) == {"lost_middle": 1, "untold": 1, "gaps": 1}


def test_an_interruption_tells_of_the_ends_in_its_time() -> None:
    # 103 to 105 s: 3, 4 and 5 were on their way then; 1 and 2 had been acknowledged too long before.
    since_s = JOINED_S + 2.6 + ON_ITS_WAY_S
    begun, ended = Interrupted("t", since_s, None, ""), Interrupted("t", since_s, JOINED_S + 5, "")
    verdict = verdict_of(audit_of(7), begun, ended)
    assert wrong(verdict) == {"lost_prefix": 7, "interrupted": 1, "untold": 4}


def test_an_interruption_without_an_end_lasts() -> None:
    verdict = verdict_of(audit_of(3), 1, Interrupted("t", JOINED_S + 2, None, ""))
    assert wrong(verdict) == {"lost_suffix": 2, "interrupted": 1}
    assert verdict.honest
    assert not verdict.exact


def test_an_interruption_of_another_topic_tells_nothing() -> None:
    verdict = verdict_of(audit_of(2), 1, Interrupted("u", JOINED_S, None, ""))
    assert wrong(verdict) == {"lost_suffix": 1, "untold": 1, "interrupted": 1}


def test_a_hole_in_the_middle_needs_a_gap_whatever_was_interrupted() -> None:
    verdict = verdict_of(audit_of(3), 1, Interrupted("t", JOINED_S, None, ""), 3)
    assert wrong(verdict) == {"lost_middle": 1, "untold": 1, "interrupted": 1}


def test_what_was_not_acknowledged_or_published_too_early_is_not_owed() -> None:
    assert wrong(verdict_of(audit_of(3, acknowledged=False), 2)) == {}
    audit = audit_of(3)
    audit.joined("late", ["t"], JOINED_S + 2)
    audit.saw("late", [message(3)])
    assert wrong(verdict_of(audit, 1, 2, 3)) == {}


def test_the_examples_are_some_of_many() -> None:
    verdict = verdict_of(audit_of(1), *([1] * (2 * EXAMPLES_MAX)))
    assert verdict.duplicated == 2 * EXAMPLES_MAX - 1
    assert len(verdict.examples) == EXAMPLES_MAX
    assert "duplicated 39" in str(verdict)


def test_a_verdict_does_not_change_later() -> None:
    audit = audit_of(2)
    before = verdict_of(audit, 1)
    after = verdict_of(audit, 2)
    assert (before.delivered, before.lost_suffix) == (1, 1)
    assert (after.delivered, after.lost_suffix) == (2, 0)


def test_the_time_of_an_acknowledgement_can_be_asked() -> None:
    assert audit_of(2).acknowledged_s(PUBLISHER, "t", 2) == JOINED_S + 2.5
    assert audit_of(2, acknowledged=False).acknowledged_s(PUBLISHER, "t", 2) == float("inf")


def test_who_leaves_is_owed_what_was_published_before() -> None:
    audit = audit_of(5)
    audit.all_leave(JOINED_S + 3.5)
    assert verdict_of(audit, 1, 2, 3).exact
    audit = audit_of(5)
    audit.all_leave(JOINED_S + 3.5)
    assert wrong(verdict_of(audit, 1, 2)) == {"lost_suffix": 1, "untold": 1}
