"""The mailbox: its limit, its three policies, and Gaps that tell the truth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.client.mailbox import Mailbox, Overflow, parse_overflow
from nearcast.core.model.message import Event, Gap, Interrupted, Message
from nearcast.errors import UsageError

BYTES = 1 << 20


def box(limit: int = 8, limit_bytes: int = BYTES, overflow: Overflow = Overflow.DROP_OLDEST, **options: Any) -> Mailbox:
    return Mailbox(limit, limit_bytes, overflow, accept_foreign=options.get("accept_foreign", False))


def message(sequence: int, publisher: int = 1, topic: str = "t", payload: bytes = b"xy") -> Message:
    return Message(topic, payload, publisher, sequence, 0.0, 0.0)


def foreign(payload: bytes = b"hello") -> Message:
    return Message("t", payload, None, None, 0.0, 0.0)


def put(mailbox: Mailbox, *events: Event) -> None:
    """As a topic subscriber does: what it says of bytes includes headers."""
    mailbox.put(list(events), sum(len(event.payload) + 32 for event in events if isinstance(event, Message)))


def numbers(events: list[Event]) -> list[int | None]:
    return [event.sequence for event in events if isinstance(event, Message)]


def gaps(events: list[Event]) -> list[tuple[str, int, int, int]]:
    return [(event.topic, event.publisher, event.first, event.last) for event in events if isinstance(event, Gap)]


def test_events_are_taken_all_at_once_and_in_order() -> None:
    mailbox = box()
    put(mailbox, message(1), message(2))
    put(mailbox, Gap("t", 1, 3, 3, "lost"), message(4))
    assert len(mailbox) == 4
    assert mailbox.take() == [message(1), message(2), Gap("t", 1, 3, 3, "lost"), message(4)]
    assert mailbox.take() == []


@pytest.mark.parametrize("overflow", Overflow)
def test_a_mailbox_just_full_loses_nothing(overflow: Overflow) -> None:
    mailbox = box(limit=3, overflow=overflow)
    put(mailbox, *map(message, (1, 2, 3)))
    assert mailbox.full
    assert not mailbox.ended
    assert mailbox.take() == [*map(message, (1, 2, 3))]
    assert not mailbox.full


@pytest.mark.parametrize("overflow", Overflow)
def test_an_ended_mailbox_takes_nothing_more(overflow: Overflow) -> None:
    mailbox = box(overflow=overflow)
    mailbox.ended = True
    put(mailbox, message(1))
    assert mailbox.take() == []


# --- foreign messages


@pytest.mark.parametrize(("accept", "taken"), [(False, [message(1)]), (True, [foreign(), message(1)])])
def test_foreign_messages_come_in_only_where_they_are_wanted(accept: bool, taken: list[Event]) -> None:
    mailbox = box(accept_foreign=accept)
    put(mailbox, foreign(), message(1))
    assert mailbox.take() == taken


@pytest.mark.parametrize("overflow", Overflow)
def test_foreign_messages_that_are_not_wanted_take_no_room(overflow: Overflow) -> None:
    mailbox = box(limit_bytes=100, overflow=overflow)
    put(mailbox, message(1))
    for _ in range(50):
        put(mailbox, foreign(b"x" * 40))
    assert not mailbox.ended
    assert mailbox.take() == [message(1)]


# --- drop the oldest


def test_the_oldest_are_dropped_and_reported_first() -> None:
    mailbox = box(limit=4)
    put(mailbox, *map(message, range(1, 11)))
    taken = mailbox.take()
    assert gaps(taken) == [("t", 1, 1, 6)]
    assert taken[0] == Gap("t", 1, 1, 6, "the subscriber is too slow")
    assert numbers(taken) == [7, 8, 9, 10]
    assert mailbox.dropped == 6


def test_dropping_is_done_in_steps_of_an_eighth() -> None:
    mailbox = box(limit=80)
    put(mailbox, *map(message, range(1, 82)))
    assert len(mailbox) == 70


def test_gaps_are_merged_per_topic_and_publisher() -> None:
    mailbox = box(limit=2)
    for sequence in range(1, 6):
        for publisher in (1, 2):
            for topic in ("a", "b"):
                put(mailbox, message(sequence, publisher, topic))
    taken = mailbox.take()
    assert sorted(gaps(taken)) == [("a", 1, 1, 5), ("a", 2, 1, 4), ("b", 1, 1, 5), ("b", 2, 1, 4)]
    assert taken[-2:] == [message(5, 2, "a"), message(5, 2, "b")]


def test_a_gap_that_is_dropped_is_part_of_the_reported_one() -> None:
    mailbox = box(limit=2)
    put(mailbox, Gap("t", 1, 1, 5, "not repaired in time"), *map(message, (6, 7, 8)))
    assert gaps(mailbox.take()) == [("t", 1, 1, 6)]
    assert mailbox.dropped == 1


def test_a_new_gap_begins_after_the_last_one_was_taken() -> None:
    mailbox = box(limit=1)
    put(mailbox, message(1), message(2))
    mailbox.take()
    put(mailbox, message(3), message(4))
    assert gaps(mailbox.take()) == [("t", 1, 3, 3)]


def test_interruptions_are_never_dropped_silently() -> None:
    mailbox = box(limit=1)
    put(mailbox, Interrupted("a", 1.0, None, "cut"), Interrupted("b", 2.0, None, "cut"))
    put(mailbox, Interrupted("a", 1.0, 3.0, "cut"), Interrupted("a", 5.0, 6.0, "again"), message(1, topic="a"))
    assert mailbox.take() == [
        Interrupted("a", 1.0, 6.0, "again"),
        Interrupted("b", 2.0, None, "cut"),
        message(1, topic="a"),
    ]


def test_dropped_foreign_messages_are_counted_only() -> None:
    mailbox = box(limit=1, accept_foreign=True)
    put(mailbox, foreign(), foreign(b"last"))
    assert mailbox.take() == [foreign(b"last")]
    assert mailbox.dropped == 1


def test_bytes_are_limited_too() -> None:
    mailbox = box(limit=1000, limit_bytes=100)
    put(mailbox, *(message(sequence, payload=b"x" * 30) for sequence in range(1, 6)))
    taken = mailbox.take()
    kept = [event for event in taken if isinstance(event, Message)]
    assert sum(len(event.payload) for event in kept) <= 100
    assert numbers(taken) == []  # an eighth of the limit in messages is dropped beyond what is needed
    assert gaps(taken) == [("t", 1, 1, 5)]


def test_a_long_stall_does_not_eat_up_the_limit() -> None:
    """Headers of dropped messages must not stay in the count of bytes."""
    mailbox = box(limit=10, limit_bytes=2000)
    for sequence in range(1, 1001):
        put(mailbox, message(sequence, payload=b"x" * 100))
    assert len(mailbox) >= 9


events = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from("ab"), st.sampled_from(["message", "hole", "interrupted", "foreign"])),
    max_size=60,
)


@given(events, st.integers(1, 20), st.integers(10, 200), st.lists(st.integers(0, 60), max_size=4), st.booleans())
def test_what_is_taken_is_complete_and_no_gap_covers_a_message(
    script: list[tuple[int, str, str]], limit: int, limit_bytes: int, takes: list[int], block: bool
) -> None:
    mailbox = box(limit, limit_bytes, Overflow.BLOCK if block else Overflow.DROP_OLDEST)
    last: dict[tuple[str, int], int] = {}
    taken: list[Event] = []
    for index, (publisher, topic, kind) in enumerate(script):
        sequence = last.get((topic, publisher), 0) + 1
        if kind in ("message", "hole"):
            last[topic, publisher] = sequence
        put(
            mailbox,
            {
                "message": message(sequence, publisher, topic),
                "hole": Gap(topic, publisher, sequence, sequence, "lost"),
                "interrupted": Interrupted(topic, float(index), None, "cut"),
                "foreign": foreign(),
            }[kind],
        )
        assert len(mailbox) <= 2 * limit
        if index in takes:
            taken += mailbox.take()
    taken += mailbox.take()
    told: dict[tuple[str, int], list[int]] = {}
    for event in taken:
        if isinstance(event, Message):
            told.setdefault((event.topic, event.publisher or 0), []).append(event.sequence or 0)
        elif isinstance(event, Gap):
            told.setdefault((event.topic, event.publisher), []).extend(range(event.first, event.last + 1))
    # Each number once, in order, none missing: so no Gap covers a message, and none is dropped without one.
    assert told == {line: list(range(1, end + 1)) for line, end in last.items()}
    assert mailbox.dropped + sum(isinstance(event, Message) for event in taken) == sum(
        kind == "message" for _, _, kind in script
    )
    interrupted = {topic for _, topic, kind in script if kind == "interrupted"}
    assert {event.topic for event in taken if isinstance(event, Interrupted)} == interrupted


# --- disconnect and block


@pytest.mark.parametrize("limits", [{"limit": 2}, {"limit_bytes": 5}])
def test_disconnect_ends_the_mailbox_and_keeps_what_came(limits: dict[str, int]) -> None:
    mailbox = box(overflow=Overflow.DISCONNECT, **limits)
    put(mailbox, *map(message, (1, 2, 3)))
    assert (mailbox.ended, mailbox.overflowed) == (True, True)
    assert mailbox.take() == [*map(message, (1, 2, 3))]
    assert mailbox.dropped == 0


def test_block_keeps_what_was_already_read_up_to_twice_the_limit() -> None:
    mailbox = box(limit=4, overflow=Overflow.BLOCK)
    put(mailbox, *map(message, range(1, 9)))
    assert mailbox.full
    assert mailbox.dropped == 0
    put(mailbox, message(9))
    taken = mailbox.take()
    assert gaps(taken) == [("t", 1, 1, 5)]
    assert numbers(taken) == [6, 7, 8, 9]


def test_block_keeps_at_most_twice_the_limit_in_bytes() -> None:
    mailbox = box(limit=1000, limit_bytes=1000, overflow=Overflow.BLOCK)
    for sequence in range(1, 100):
        put(mailbox, message(sequence, payload=b"x" * 100))
        assert len(mailbox) <= 20
    assert mailbox.dropped > 0


def test_a_policy_is_named_as_in_the_documentation() -> None:
    assert [parse_overflow(policy) for policy in Overflow] == list(Overflow)
    with pytest.raises(UsageError, match="unknown overflow policy 'keep': use one of drop_oldest, disconnect, block"):
        parse_overflow("keep")
