"""Confidence intervals: against figures worked out by hand and by simulation."""

from __future__ import annotations

import math
import random

import pytest

from nearcast.errors import UsageError
from nearcast.experiments.result import T_975, estimate


def test_five_values_as_in_the_textbook() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776 * math.sqrt(2.5) / math.sqrt(5)  # t of 4 degrees, standard deviation sqrt(10 / 4)
    assert found.mean == 3.0
    assert found.interval == pytest.approx((3.0 - half, 3.0 + half))


def test_equal_values_have_no_width() -> None:
    assert estimate([0.9] * 7).interval == pytest.approx((0.9, 0.9))


def test_one_value_says_nothing_about_the_spread() -> None:
    assert estimate([4.0]).interval == (-math.inf, math.inf)


def test_no_value_is_an_error() -> None:
    with pytest.raises(UsageError, match="at least one run"):
        estimate([])


def test_quantiles_fall_towards_the_normal_one() -> None:
    assert list(T_975) == sorted(T_975, reverse=True)
    assert T_975[-1] > 1.96


@pytest.mark.parametrize("count", [2, 5, 40])
def test_nineteen_of_twenty_intervals_hold_the_true_mean(count: int) -> None:
    dice = random.Random(count)
    samples = [estimate([dice.gauss(10, 3) for _ in range(count)]) for _ in range(2000)]
    held = sum(found.low <= 10 <= found.high for found in samples) / len(samples)
    assert 0.935 < held < 0.965
