"""The buffer between a subscription and a feed's stream."""

from __future__ import annotations

from nearcast.agent.feed_buffer import FeedBuffer
from nearcast.core.model.message import Gap, Interrupted, Message


def message(sequence: int, size: int = 10) -> Message:
    return Message("t", b"x" * size, 7, sequence, 1.5, 2.0)


def sequences(buffer: FeedBuffer) -> list[str | bytes]:
    return [entry[3] for entry in buffer.first(1000, 1 << 20)]


def test_events_are_in_the_form_that_the_script_takes() -> None:
    buffer = FeedBuffer()
    buffer.add([message(3), Gap("t", 7, 4, 6, "too slow"), Interrupted("t", 1.0, 2.0, "lost")], 5.0)
    buffer.add([Interrupted("t", 1.0, None, "lost")], 5.0)
    buffer.interrupted("t.*", "nobody was there")
    assert buffer.first(10, 1 << 20) == [
        ("i", "t.*", "", "", "", "nobody was there"),
        ("m", "t", "7", "3", "1.500000", b"x" * 10),
        ("g", "t", "7", "4", "6", "messages 4 to 6 are missing: too slow"),
        ("i", "t", "", "", "", "messages may be missing from 1.000 to 2.000: lost"),
        ("i", "t", "", "", "", "messages may be missing since 1.000: lost"),
    ]


def test_a_chunk_keeps_both_limits_but_has_one_event() -> None:
    buffer = FeedBuffer()
    buffer.add([message(n, size=100) for n in range(1, 6)], 1.0)
    assert len(buffer.first(2, 1000)) == 2
    assert len(buffer.first(10, 250)) == 2
    assert len(buffer.first(10, 1)) == 1
    buffer.remove(3)
    assert sequences(buffer) == ["4", "5"]


def test_at_its_limits_the_oldest_go_and_that_is_known() -> None:
    few, small = FeedBuffer(events_max=3), FeedBuffer(bytes_max=35)
    for buffer in (few, small):
        for n in range(1, 4):
            buffer.add([message(n)], float(n))
        assert buffer.dropped_ms == 0
    assert few.full
    for buffer in (few, small):
        buffer.add([message(4)], 4.0)
        assert sequences(buffer) == ["2", "3", "4"]
        assert buffer.dropped_ms == 1.0


def test_what_is_old_is_forgotten() -> None:
    buffer = FeedBuffer()
    for n in range(1, 5):
        buffer.add([message(n)], float(n))
    buffer.forget(3.0)
    assert sequences(buffer) == ["3", "4"]
    assert buffer.dropped_ms == 0
