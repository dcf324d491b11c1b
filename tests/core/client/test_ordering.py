"""Publisher order: frames are put in order by publisher; what is missing is asked for, waited for, and then told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.client.ordering import PublisherOrder
from nearcast.core.model.message import Gap, Message
from nearcast.core.model.settings import DEFAULT_TIMING, Limits
from nearcast.core.wire.batches import encode_batch
from nearcast.core.wire.frames import DATA, HEADER, MARK, SKIP, USER_DATA, UserPayload

GAP_S = DEFAULT_TIMING.gap_s


class Gate:
    """The place frames come through: admits the epochs it was told."""

    def __init__(self, *roles: int, floor: int = 0, newest: int = 1) -> None:
        self.roles = roles
        self.floor = floor
        self.newest = newest

    def admits(self, epoch: int) -> bool:
        return epoch in self.roles


class Reader:
    """A publisher order with a gate, a clock and a set of epochs that are still open somewhere."""

    def __init__(self, **limits: int) -> None:
        self.open: set[int] = set()  # epochs whose place may still yield frames
        self.gate = Gate(1)
        self.now_s = 0.0
        self.order = PublisherOrder("t", self, DEFAULT_TIMING, Limits(**limits))

    def older_open(self, publisher: int, epoch: int) -> bool:
        return any(older < epoch for older in self.open)

    def run(self, *frames: bytes, gate: Gate | None = None) -> list[Any]:
        self.order.run(list(frames), gate or self.gate, self.now_s, 1000.0)
        return self.taken()

    def repair(self, frame: bytes) -> list[Any]:
        self.order.repair(frame, self.now_s, 1000.0)
        return self.taken()

    def release(self) -> list[Any]:
        self.order.release(self.now_s, 1000.0)
        return self.taken()

    def wait(self, seconds: float) -> list[Any]:
        self.now_s += seconds
        self.order.tick(self.now_s, 1000.0)
        return self.taken()

    def taken(self) -> list[Any]:
        """Numbers of messages, (first, last) of Gaps, payloads of foreign messages."""
        events, self.order.out = self.order.out, []
        return [short(event) for event in events]


def short(event: object) -> Any:
    if isinstance(event, Gap):
        return (event.first, event.last)
    assert isinstance(event, Message)
    return event.payload if event.sequence is None else event.sequence


def frame(sequence: int, epoch: int = 1, publisher: int = 7, word: int = DATA) -> bytes:
    payload = b"payload %d" % sequence if word == DATA else b""
    return HEADER.pack(word, epoch, publisher, sequence, 5_000_000_000) + payload


def batch(first: int, *payloads: bytes | None, epoch: int = 1, publisher: int = 7) -> bytes:
    return encode_batch(epoch, publisher, first, [(payload, 0) for payload in payloads])


@pytest.fixture
def reader() -> Reader:
    return Reader()


# --- what is next


def test_a_message_carries_what_its_frame_says(reader: Reader) -> None:
    reader.order.run([frame(1)], reader.gate, 0.0, 6.5)
    assert reader.order.out == [Message("t", b"payload 1", 7, 1, 5.0, 6.5)]
    assert reader.order.out[0].latency_s == 1.5  # type: ignore[union-attr]


def test_a_message_of_a_user_says_whose_it_is(reader: Reader) -> None:
    def of_ann(sequence: int) -> bytes:
        return HEADER.pack(USER_DATA, 1, 7, sequence, 0) + UserPayload.of("ann", b"%d" % sequence)

    reader.order.run([frame(1), of_ann(2), of_ann(4)], reader.gate, 0.0, 1000.0)
    reader.order.repair(of_ann(3), 0.0, 1000.0)
    got = [(event.user, event.payload) for event in reader.order.out if isinstance(event, Message)]
    assert got == [("", b"payload 1"), ("ann", b"2"), ("ann", b"3"), ("ann", b"4")]


def test_frames_in_order_are_delivered_in_order(reader: Reader) -> None:
    assert reader.run(*map(frame, range(1, 6))) == [1, 2, 3, 4, 5]
    assert not reader.order.unsettled


def test_publishers_are_numbered_apart(reader: Reader) -> None:
    frames = [frame(sequence, publisher=publisher) for sequence in (1, 2) for publisher in (7, 8)]
    assert reader.run(*frames) == [1, 1, 2, 2]
    assert reader.order.last == {7: 2, 8: 2}


def test_a_duplicate_is_dropped_and_counted(reader: Reader) -> None:
    assert reader.run(frame(1), frame(2), frame(1), frame(2), frame(3)) == [1, 2, 3]
    assert reader.order.counters.duplicates == 2


@pytest.mark.parametrize("first", [1, 2, 500])
def test_the_first_frame_of_an_unknown_publisher_is_its_baseline(reader: Reader, first: int) -> None:
    assert reader.run(frame(first), frame(first + 1)) == [first, first + 1]


def test_a_skip_closes_its_number_without_a_message(reader: Reader) -> None:
    assert reader.run(frame(1), frame(2, word=SKIP), frame(3)) == [1, 3]
    assert reader.order.last == {7: 3}


def test_a_skip_can_be_a_baseline(reader: Reader) -> None:
    assert reader.run(frame(4, word=SKIP), frame(5)) == [5]


# --- what is not ours


@pytest.mark.parametrize(
    "payload",
    [b"", b"hello", b'{"json": 1}', frame(1)[:31], frame(1)[:4], b"\xfbNC", frame(1, word=0xFB4E4309), b"x" * 100],
    ids=["empty", "text", "json", "short", "magic only", "half magic", "unknown kind", "long"],
)
def test_a_foreign_payload_is_passed_on_as_it_is(reader: Reader, payload: bytes) -> None:
    assert reader.run(frame(1), payload, frame(2)) == [1, payload, 2]
    assert reader.order.counters.foreign == 1


def test_a_batch_is_delivered_like_its_messages(reader: Reader) -> None:
    assert reader.run(frame(1), batch(2, b"b", None, b"d"), frame(5)) == [1, 2, 4, 5]


def test_what_was_delivered_before_is_dropped_from_a_batch(reader: Reader) -> None:
    assert reader.run(frame(1), frame(2), batch(1, b"a", b"b", b"c")) == [1, 2, 3]
    assert reader.order.counters.duplicates == 2


def test_a_batch_ahead_of_its_line_is_held_until_the_hole_is_filled(reader: Reader) -> None:
    assert reader.run(frame(1), batch(3, b"c", b"d")) == [1]
    assert reader.repair(frame(2)) == [2, 3, 4]


def test_a_batch_of_an_epoch_that_does_not_belong_here_is_delivered_only_if_it_is_next(reader: Reader) -> None:
    gate = Gate(2)
    assert reader.run(frame(1)) == [1]
    assert reader.run(batch(2, b"b", b"c"), gate=gate) == [2, 3]
    assert reader.run(batch(5, b"e", b"f"), gate=gate) == []
    assert reader.order.counters.late == 2


def test_a_batch_can_be_a_baseline(reader: Reader) -> None:
    assert reader.run(batch(41, b"a", b"b")) == [41, 42]


def test_a_forged_batch_is_passed_on_as_a_foreign_payload(reader: Reader) -> None:
    (event,) = reader.run(batch(1, b"a")[:-1])
    assert event == batch(1, b"a")[:-1]


def test_a_mark_on_the_topic_is_not_taken_for_a_message_of_ours(reader: Reader) -> None:
    mark = frame(2, word=MARK)
    assert reader.run(frame(1), mark, frame(2)) == [1, mark, 2]


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_bytes_on_a_topic_raise(payloads: list[bytes]) -> None:
    reader = Reader()
    reader.run(*payloads)
    assert reader.order.counters.foreign == len(payloads)


# --- what comes too early


def test_a_frame_ahead_is_held_until_the_hole_is_filled(reader: Reader) -> None:
    assert reader.run(frame(1), frame(3), frame(4)) == [1]
    assert reader.order.wanted
    assert reader.order.unsettled
    assert reader.repair(frame(2)) == [2, 3, 4]
    assert not reader.order.unsettled
    assert reader.order.counters.held == 2


def test_while_one_publisher_waits_the_others_go_on(reader: Reader) -> None:
    reader.run(frame(1), frame(3))
    assert reader.run(frame(1, publisher=8), frame(2, publisher=8)) == [1, 2]


def test_a_held_frame_that_comes_again_is_held_once(reader: Reader) -> None:
    reader.run(frame(1), frame(3), frame(3))
    assert reader.order.counters.held == 1
    assert reader.repair(frame(2)) == [2, 3]


def test_a_hole_that_is_not_repaired_becomes_a_gap(reader: Reader) -> None:
    reader.run(frame(1), frame(4))
    assert reader.wait(0.9 * GAP_S) == []
    assert reader.wait(0.2 * GAP_S) == [(2, 3), 4]
    assert (reader.order.counters.gaps, reader.order.counters.missing) == (1, 2)
    assert not reader.order.unsettled


def test_a_gap_says_whose_and_why(reader: Reader) -> None:
    reader.run(frame(1), frame(3))
    reader.order.tick(2 * GAP_S, 1000.0)
    assert reader.order.out[0] == Gap("t", 7, 2, 2, "not repaired in time")


def test_the_clock_of_a_second_hole_starts_when_the_first_is_over(reader: Reader) -> None:
    reader.run(frame(1), frame(3), frame(5))
    assert reader.wait(1.1 * GAP_S) == [(2, 2), 3]
    assert reader.order.wanted
    assert reader.wait(0.9 * GAP_S) == []
    assert reader.wait(0.2 * GAP_S) == [(4, 4), 5]


def test_a_repair_after_the_gap_is_a_duplicate(reader: Reader) -> None:
    reader.run(frame(1), frame(3))
    reader.wait(1.1 * GAP_S)
    assert reader.repair(frame(2)) == []


@pytest.mark.parametrize("held", [1, 3])
def test_at_the_limit_of_held_frames_those_ahead_are_asked_for_again(held: int) -> None:
    reader = Reader(held=held)
    reader.run(frame(1))
    kept, crowded = range(3, 3 + held), range(3 + held, 6 + held)
    assert reader.run(*map(frame, [*kept, *crowded])) == []
    assert reader.order.counters.crowded == 3
    reader.order.wanted.clear()
    assert reader.repair(frame(2)) == [2, *kept]
    assert reader.order.wanted
    assert [number for sequence in crowded for number in reader.repair(frame(sequence))] == [*crowded]
    assert not reader.order.unsettled


def test_what_was_let_go_at_the_limit_and_not_repaired_becomes_a_gap() -> None:
    reader = Reader(held=1)
    reader.run(frame(1), frame(3), frame(4), frame(5))
    assert reader.wait(GAP_S + 0.1) == [(2, 2), 3]
    assert reader.wait(GAP_S + 0.1) == [(4, 5)]
    assert reader.run(frame(6)) == [6]


# --- several places


def test_a_frame_ahead_waits_for_the_fence_of_an_older_place(reader: Reader) -> None:
    new = Gate(2)
    reader.run(frame(1))
    reader.open = {1}
    assert reader.run(frame(3, epoch=2), gate=new) == []
    assert not reader.order.wanted
    assert reader.wait(5 * GAP_S) == []
    assert reader.run(frame(2)) == [2, 3]


def test_a_fence_starts_the_clock_of_a_hole(reader: Reader) -> None:
    reader.run(frame(1))
    reader.open = {1}
    reader.run(frame(3, epoch=2), gate=Gate(2))
    reader.open = set()
    assert reader.release() == []
    assert reader.order.wanted
    assert reader.wait(1.1 * GAP_S) == [(2, 2), 3]


def test_a_hole_has_its_whole_time_again_after_an_older_place_was_open(reader: Reader) -> None:
    reader.run(frame(1), frame(3))
    reader.open = {0}
    assert reader.wait(1.1 * GAP_S) == []
    reader.open = set()
    assert reader.wait(0.9 * GAP_S) == []
    assert reader.wait(0.2 * GAP_S) == [(2, 2), 3]


def test_an_unknown_publisher_waits_for_the_fence_and_begins_with_its_lowest(reader: Reader) -> None:
    reader.open = {1}
    assert reader.run(frame(6, epoch=2), frame(5, epoch=2), gate=Gate(2)) == []
    reader.open = set()
    assert reader.release() == [5, 6]


def test_an_unknown_publisher_heard_at_the_older_place_goes_first(reader: Reader) -> None:
    reader.open = {1}
    reader.run(frame(6, epoch=2), gate=Gate(2))
    assert reader.run(frame(4), frame(5)) == [4, 5, 6]


def test_at_the_limit_a_publisher_not_heard_before_loses_nothing_in_silence() -> None:
    """What an older place still has comes first; what had no room behind it is asked for again."""
    reader = Reader(held=2)
    reader.open = {1}
    new, old = Gate(2), Gate(1)
    assert reader.run(*(frame(sequence, epoch=2) for sequence in range(3, 8)), gate=new) == []
    assert reader.run(frame(1), frame(2), gate=old) == [1, 2, 3, 4]
    reader.open = set()
    reader.release()
    assert reader.order.wanted
    assert reader.repair(frame(5, epoch=2)) == [5]
    assert reader.wait(GAP_S + 0.1) == [(6, 7)]
    assert not reader.order.unsettled


def test_at_the_limit_the_beginning_of_another_publishers_line_is_kept() -> None:
    reader = Reader(held=2)
    reader.open = {1}
    crowd = [frame(5, epoch=2), frame(6, epoch=2), frame(9, epoch=2, publisher=8), frame(10, epoch=2, publisher=8)]
    assert reader.run(*crowd, gate=Gate(2)) == []
    reader.open = set()
    assert reader.release() == [5, 9]
    assert reader.repair(frame(6, epoch=2)) == [6]
    assert reader.repair(frame(10, epoch=2, publisher=8)) == [10]


def test_at_the_limit_the_frame_farthest_ahead_goes_whatever_the_order_of_arrival() -> None:
    reader = Reader(held=2)
    reader.open = {1}
    assert reader.run(*(frame(sequence, epoch=2) for sequence in (8, 6, 7, 5)), gate=Gate(2)) == []
    reader.open = set()
    assert reader.release() == [5, 6]
    assert reader.wait(GAP_S + 0.1) == [(7, 8)]


def test_at_the_limit_a_hole_that_an_older_place_may_fill_is_not_given_up() -> None:
    reader = Reader(held=1)
    assert reader.run(frame(1)) == [1]
    reader.open = {1}
    assert reader.run(frame(3, epoch=2), frame(4, epoch=2), gate=Gate(2)) == []
    assert reader.run(frame(2)) == [2, 3]
    assert reader.order.wanted
    assert reader.repair(frame(4, epoch=2)) == [4]
    assert not reader.order.unsettled


@pytest.mark.parametrize(("sequence", "delivered"), [(2, [2]), (1, []), (3, [])], ids=["next", "old", "ahead"])
def test_a_frame_out_of_place_is_delivered_only_if_it_is_next(
    reader: Reader, sequence: int, delivered: list[int]
) -> None:
    reader.run(frame(1))
    assert reader.run(frame(sequence, epoch=9), gate=Gate(1)) == delivered
    assert not reader.order.unsettled


def test_a_late_frame_is_counted(reader: Reader) -> None:
    reader.run(frame(1))
    reader.run(frame(3, epoch=9), frame(1, epoch=9, publisher=8))
    assert reader.order.counters.late == 2


def test_a_frame_below_the_floor_is_no_baseline(reader: Reader) -> None:
    gate = Gate(1, 2, floor=2)
    assert reader.run(frame(5, epoch=1), frame(6, epoch=2), gate=gate) == [6]
    assert reader.order.counters.late == 1


# --- repairs


@pytest.mark.parametrize("word", [DATA, SKIP, MARK])
def test_a_repair_of_an_unknown_publisher_says_nothing(reader: Reader, word: int) -> None:
    assert reader.repair(frame(3, word=word)) == []
    assert reader.order.last == {}
    assert not reader.order.unsettled


def test_a_repair_that_is_no_frame_of_ours_says_nothing(reader: Reader) -> None:
    reader.run(frame(1))
    assert reader.repair(frame(2, word=0x12345678)) == []
    assert reader.order.last == {7: 1}


def test_repairs_fill_a_hole_in_any_order(reader: Reader) -> None:
    reader.run(frame(1), frame(5))
    assert reader.repair(frame(3)) == []
    assert reader.repair(frame(4, word=SKIP)) == []
    assert reader.repair(frame(2)) == [2, 3, 5]


def test_a_mark_ahead_becomes_a_gap_if_nothing_comes(reader: Reader) -> None:
    reader.run(frame(1))
    assert reader.repair(frame(4, word=MARK)) == []
    assert reader.order.unsettled
    assert reader.wait(1.1 * GAP_S) == [(2, 4)]
    assert reader.run(frame(5)) == [5]
    assert not reader.order.unsettled


@pytest.mark.parametrize("mark", [1, 2, 3])
def test_a_mark_that_was_reached_is_no_gap(reader: Reader, mark: int) -> None:
    reader.run(frame(1))
    reader.repair(frame(mark, word=MARK))
    assert reader.run(frame(2), frame(3)) == [2, 3]
    assert reader.wait(1.1 * GAP_S) == []
    assert not reader.order.unsettled


def test_a_gap_ends_below_the_lowest_held_frame_whatever_the_mark_says(reader: Reader) -> None:
    reader.run(frame(1), frame(4))
    reader.repair(frame(6, word=MARK))
    assert reader.wait(1.1 * GAP_S) == [(2, 3), 4]
    assert reader.wait(1.1 * GAP_S) == [(5, 6)]


# --- all together

arrivals = st.permutations(range(2, 12)).flatmap(
    lambda order: st.tuples(
        st.just(order), st.lists(st.sampled_from(order), max_size=6), st.sets(st.sampled_from(order))
    )
)


@given(arrivals, st.sets(st.integers(2, 11), max_size=4), st.booleans())
def test_in_whatever_order_frames_come_the_line_is_whole(
    arrival: tuple[list[int], list[int], set[int]], lost: set[int], fenced_late: bool
) -> None:
    """Every number is delivered once, in order, or lies in exactly one Gap."""
    order, doubled, skipped = arrival
    reader = Reader()
    taken = reader.run(frame(1))
    if fenced_late:
        reader.open = {0}
    for sequence in [*order, *doubled]:
        if sequence not in lost:
            taken += reader.run(frame(sequence, word=SKIP if sequence in skipped else DATA))
    reader.open = set()
    taken += reader.release()
    taken += reader.repair(frame(11, word=MARK))
    for _ in range(12):
        taken += reader.wait(1.1 * GAP_S)
    told = [
        number for event in taken for number in (range(event[0], event[1] + 1) if type(event) is tuple else [event])
    ]
    assert told == [number for number in range(1, 12) if number in lost or number not in skipped]
    assert {number for event in taken if type(event) is tuple for number in range(event[0], event[1] + 1)} == lost
    assert not reader.order.unsettled


def test_a_frame_of_an_epoch_that_no_record_has_spoken_of_is_noted(reader: Reader) -> None:
    assert reader.run(frame(1, epoch=1)) == [1]
    assert reader.run(frame(1, epoch=0, publisher=8)) == []  # late: from an epoch that is over here
    assert not reader.order.unheard
    assert reader.run(frame(2, epoch=5, publisher=8)) == []
    assert reader.order.unheard
