"""The buffer of a topic's messages: what is sent, kept for repairs, emptied and forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.client.sending import PublishBuffer


def buffer_of(*payloads: bytes, first: int = 1) -> PublishBuffer:
    buffer = PublishBuffer(first)
    for number, payload in enumerate(payloads, first):
        buffer.queue.extend((payload, 10 * number))
        buffer.bytes += len(payload)
    return buffer


def test_the_newest_are_those_from_a_number_on() -> None:
    buffer = buffer_of(b"a", b"b", b"c", first=5)
    assert list(buffer.newest(6)) == [(6, b"b", 60), (7, b"c", 70)]
    assert list(buffer.newest(8)) == []


def test_those_between_two_numbers_begin_with_the_first_that_is_here() -> None:
    buffer = buffer_of(b"a", b"b", b"c", first=5)
    assert list(buffer.between(1, 6)) == [(5, b"a", 50), (6, b"b", 60)]
    assert list(buffer.between(6, 6)) == [(6, b"b", 60)]
    assert list(buffer.between(7, 6)) == []


def test_a_message_is_emptied_once_and_keeps_its_number() -> None:
    buffer = buffer_of(b"aa", b"bbb")
    assert buffer.empty(2)
    assert not buffer.empty(2)
    assert list(buffer.newest(1)) == [(1, b"aa", 10), (2, None, 20)]
    assert (buffer.bytes, buffer.forgotten_bytes) == (2, 3)


@given(st.lists(st.integers(0, 9), max_size=30), st.data())
def test_trimming_forgets_no_more_than_it_must(sizes: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(sizes)), "acknowledged")
    count, size = data.draw(st.integers(0, 10), "messages to keep"), data.draw(st.integers(0, 60), "bytes to keep")
    buffer = buffer_of(*(b"x" * size for size in sizes))
    buffer.trim(end, count, size)
    dropped = buffer.first - 1
    assert dropped <= end
    assert buffer.bytes == sum(sizes[dropped:])
    assert buffer.bytes + buffer.forgotten_bytes == sum(sizes)
    assert len(buffer.queue) == 2 * (len(sizes) - dropped)
    assert dropped == end or (end - dropped <= count and buffer.bytes <= size)
    if dropped:
        assert end - dropped + 1 > count or buffer.bytes + sizes[dropped - 1] > size
