"""Rank correlation: known values, ties, and what does not vary."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import made

from nearcast.runtime.profiling.correlation import correlations, ranks, spearman


def test_equal_values_share_a_rank() -> None:
    assert ranks([30, 10, 20, 10]) == [4, 1.5, 3, 1.5]
    assert ranks([7, 7, 7]) == [2, 2, 2]
    assert ranks([]) == []


def test_a_curve_counts_like_a_line() -> None:
    assert spearman([1, 2, 3, 4], [1, 10, 1000, 1e6]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [9, 8, 7, 0]) == pytest.approx(-1)


def test_a_value_from_a_textbook() -> None:
    """Hours of television and IQ of ten people, an example in many places: -29/165."""
    iq = [106, 86, 100, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 0, 27, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165)


def test_what_does_not_vary_has_none() -> None:
    assert spearman([1, 1, 1, 1], [1, 2, 3, 4]) is None
    assert spearman([1, 2], [1, 2]) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=30))
def test_it_is_symmetric_and_within_one(pairs: list[tuple[int, int]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found = spearman(one, other)
    assert found == spearman(other, one)
    assert found is None or -1.000001 <= found <= 1.000001


def test_each_parameter_is_compared_with_the_95th_percentile() -> None:
    rng = Random(1)
    runs = [
        made(1000.0 * step, 1.0 * step, payload_bytes=rng.randint(1, 1000), subscribers=21 - step)
        for step in range(1, 21)
    ]
    found = correlations(runs)
    assert list(found) == [
        *("topics", "publishers per topic", "subscribers per topic", "bytes per message"),
        *("messages/s per topic", "messages/s out", "bytes/s out"),
    ]
    assert found["topics"] is None
    assert found["messages/s out"] == pytest.approx(1)
    assert found["subscribers per topic"] == pytest.approx(-1)
    assert abs(found["bytes per message"] or 0.0) < 0.6
