"""Counters and latency histograms: they add up, and percentiles are right within a bucket."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.model.counters import BUCKETS, TopicCounters, bucket_limit_s, bucket_of, histogram, percentile_s

latencies = st.floats(0, 90, allow_nan=False)
counts = st.integers(0, 10**6)
counters = st.builds(
    TopicCounters,
    counts,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.dictionaries(st.integers(0, 39), counts, max_size=5),
)


@pytest.mark.parametrize("bucket", range(BUCKETS))
def test_a_bucket_holds_latencies_up_to_its_limit(bucket: int) -> None:
    assert bucket_of(bucket_limit_s(bucket)) == bucket
    assert bucket_of(bucket_limit_s(bucket) * 1.001) == min(bucket + 1, BUCKETS - 1)


@pytest.mark.parametrize(("latency_s", "bucket"), [(-5.0, 0), (0.0, 0), (1e-9, 0), (1e6, BUCKETS - 1)])
def test_latencies_out_of_range_go_to_the_ends(latency_s: float, bucket: int) -> None:
    assert bucket_of(latency_s) == bucket


@given(st.lists(latencies, max_size=30), st.lists(latencies, max_size=30))
def test_merged_histograms_are_the_histogram_of_all(some: list[float], others: list[float]) -> None:
    merged = TopicCounters(latencies=histogram(some)).merged(TopicCounters(latencies=histogram(others)))
    assert merged.latencies == histogram(some + others)


@given(counters, counters, counters)
def test_merging_is_adding_in_any_order(a: TopicCounters, b: TopicCounters, c: TopicCounters) -> None:
    assert a.merged(b) == b.merged(a)
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(TopicCounters()) == a
    assert a.merged(b).published == a.published + b.published
    assert a.merged(b).received_bytes == a.received_bytes + b.received_bytes


def test_merging_changes_neither_side() -> None:
    one, two = TopicCounters(latencies={1: 1}), TopicCounters(latencies={1: 2})
    one.merged(two)
    assert (one.latencies, two.latencies) == ({1: 1}, {1: 2})


@given(st.lists(st.floats(1e-4, 70), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_at_most_a_factor_of_root_two_too_high(samples: list[float], share: float) -> None:
    exact = sorted(samples)[math.ceil(share * len(samples)) - 1]
    found = percentile_s(histogram(samples), share)
    assert found is not None
    assert exact <= found * 1.0001
    assert found <= max(exact, 1e-4) * math.sqrt(2) * 1.0001


def test_without_samples_there_is_no_percentile() -> None:
    assert percentile_s({}, 0.9) is None
