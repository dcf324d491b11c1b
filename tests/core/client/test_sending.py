"""The log of a topic's messages: what is sent, kept for repairs, emptied and forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.client.sending import Log


def log_of(*payloads: bytes, first: int = 1) -> Log:
    log = Log(first)
    for number, payload in enumerate(payloads, first):
        log.queue.extend((payload, 10 * number))
        log.bytes += len(payload)
    return log


def test_the_newest_are_those_from_a_number_on() -> None:
    log = log_of(b"a", b"b", b"c", first=5)
    assert list(log.newest(6)) == [(6, b"b", 60), (7, b"c", 70)]
    assert list(log.newest(8)) == []


def test_those_between_two_numbers_begin_with_the_first_that_is_here() -> None:
    log = log_of(b"a", b"b", b"c", first=5)
    assert list(log.between(1, 6)) == [(5, b"a", 50), (6, b"b", 60)]
    assert list(log.between(6, 6)) == [(6, b"b", 60)]
    assert list(log.between(7, 6)) == []


def test_a_message_is_emptied_once_and_keeps_its_number() -> None:
    log = log_of(b"aa", b"bbb")
    assert log.empty(2)
    assert not log.empty(2)
    assert list(log.newest(1)) == [(1, b"aa", 10), (2, None, 20)]
    assert (log.bytes, log.forgotten_bytes) == (2, 3)


@given(st.lists(st.integers(0, 9), max_size=30), st.data())
def test_trimming_forgets_no_more_than_it_must(sizes: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(sizes)), "acknowledged")
    count, size = data.draw(st.integers(0, 10), "messages to keep"), data.draw(st.integers(0, 60), "bytes to keep")
    log = log_of(*(b"x" * size for size in sizes))
    log.trim(end, count, size)
    dropped = log.first - 1
    assert dropped <= end
    assert log.bytes == sum(sizes[dropped:])
    assert log.bytes + log.forgotten_bytes == sum(sizes)
    assert len(log.queue) == 2 * (len(sizes) - dropped)
    assert dropped == end or (end - dropped <= count and log.bytes <= size)
    if dropped:
        assert end - dropped + 1 > count or log.bytes + sizes[dropped - 1] > size
