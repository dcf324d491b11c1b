"""Latencies of series over time, whatever the order in which messages arrive."""

from __future__ import annotations

from nearcast.demo.delays import Delays, Series, Side, Timeline

NEAR, FAR = Series("red", Side.BOUND), Series("red", Side.HASHED)


def test_a_while_counts_what_was_published_in_it() -> None:
    timeline = Timeline(0.060)
    timeline.note(NEAR, 1.0, 0.010)
    timeline.note(NEAR, 2.0, 0.030)  # published later, and here earlier
    timeline.note(NEAR, 1.9, 0.250)
    timeline.note(FAR, 1.5, 0.060)
    assert timeline.delays([NEAR], 1.0, 2.0) == Delays(10.0, 250.0, 0.5)
    assert timeline.delays([NEAR], 2.0, 3.0) == Delays(30.0, 30.0, 1.0)
    assert timeline.delays([NEAR, FAR], 0.0, 3.0) == Delays(30.0, 250.0, 0.75)


def test_where_nothing_was_published_nothing_is_known() -> None:
    timeline = Timeline(0.060)
    timeline.note(NEAR, 1.0, 0.010)
    for series, from_s, until_s in ((NEAR, 2.0, 3.0), (FAR, 0.0, 3.0)):
        assert timeline.delays([series], from_s, until_s) == Delays(None, None, None)
