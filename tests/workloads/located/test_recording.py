"""Latencies in buckets: shares, means, and when they are back under the bound."""

from __future__ import annotations

import math

import pytest

from nearcast.workloads.located.recording import BUCKET_S, Recording


def recorded(late: set[int], buckets: int = 40, topic: str = "t") -> Recording:
    """Ten messages in every bucket, all late in some of them."""
    recording = Recording(0.04, begun_s=100.0)
    for bucket in range(buckets):
        for number in range(10):
            recording.note(topic, 100.0 + (bucket + number / 10) * BUCKET_S, 0.05 if bucket in late else 0.02)
    return recording


def test_shares_percentiles_and_means() -> None:
    recording = recorded({0, 1})
    assert (recording.count, recording.share_within) == (400, pytest.approx(0.95))
    assert (recording.percentile_s(50), recording.percentile_s(99)) == (0.02, 0.05)
    assert recording.means_s("t", 4)[:2] == [pytest.approx(0.035), pytest.approx(0.02)]
    assert recording.means_s("unknown", 4) == []
    assert math.isnan(Recording(0.04, 0.0).share_within)


def test_what_was_published_before_second_0_does_not_count() -> None:
    recording = recorded(set())
    recording.note("t", 99.9, 9.0)
    assert recording.share_within == 1.0


def test_back_under_the_bound() -> None:
    # A change at 1.1 s; late from 1.25 s to 3 s.
    recording = recorded(set(range(5, 12)))
    assert recording.back_after_s(["t"], 1.1, 10.0) == pytest.approx(3.0 - 1.1)
    assert recording.back_after_s(["t"], 1.1, 3.9) is None  # a second of calm does not fit before the next change
    assert recording.back_after_s(["t"], 4.0, 10.0) == 0.0
    assert recording.back_after_s(["t", "silent"], 4.0, 10.0) is None


def test_a_single_late_message_does_not_count_but_a_second_of_calm_is_needed() -> None:
    recording = recorded({5, 6, 9})
    assert recording.back_after_s(["t"], 1.1, 10.0) == pytest.approx(2.5 - 1.1)
    calm = Recording(0.04, 0.0)
    for number in range(400):
        calm.note("t", number / 40, 0.05 if number % 40 == 20 else 0.02)
    assert calm.back_after_s(["t"], 0.1, 10.0) is None  # one in ten of those buckets' messages is late
