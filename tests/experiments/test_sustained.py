"""The sustained number of clients: spikes do not end it, a lasting breach does, and nothing goes unseen."""

from __future__ import annotations

import math

import pytest

from nearcast.errors import UsageError
from nearcast.experiments.checks import sustained, trailing_means

GOOD, BAD, LIMIT = 0.075, 1.0, 0.150
CLIENTS = list(range(100, 200))  # one more every second


def test_a_lasting_breach_ends_it() -> None:
    found = sustained(CLIENTS, [GOOD] * 60 + [BAD] * 40, LIMIT)
    # One bad second among ten gives a mean of 167 ms: the breach shows at once.
    assert (found.clients, found.until_s, found.ended) == (159, 59.0, True)
    assert (found.clients_at_first_breach, found.seconds_above_before) == (160, 0.0)


def test_a_spike_does_not_end_it_but_is_counted() -> None:
    found = sustained(CLIENTS, [GOOD] * 30 + [BAD] * 2 + [GOOD] * 28 + [BAD] * 40, LIMIT)
    assert found.clients == 159
    assert found.clients_at_first_breach == 130
    assert found.seconds_above_before == 11.0  # 2 s, and 9 s until the mean has forgotten them


def test_a_spike_too_small_to_lift_the_mean_is_none() -> None:
    found = sustained(CLIENTS, [GOOD] * 30 + [0.5] + [GOOD] * 69, LIMIT)
    assert (found.clients, found.ended, found.seconds_above_before) == (199, False, 0.0)


def test_never_good_is_zero() -> None:
    assert sustained(CLIENTS, [BAD] * 100, LIMIT).clients == 0


def test_seconds_in_which_nobody_got_anything_are_not_good() -> None:
    found = sustained(CLIENTS, [GOOD] * 50 + [math.nan] * 50, LIMIT)
    assert found.clients == 158  # the mean over the last 10 s still holds one good second


def test_steps_may_be_shorter_than_a_second() -> None:
    found = sustained(CLIENTS, [GOOD] * 60 + [BAD] * 40, LIMIT, step_s=0.5)
    assert found.until_s == 30.0  # of 20 steps two bad ones are needed


def test_trailing_means_ignore_what_is_not_known() -> None:
    assert trailing_means([1.0, math.nan, 3.0, 5.0], 2) == [1.0, 1.0, 3.0, 4.0]
    assert math.isnan(trailing_means([math.nan], 3)[0])


def test_lengths_must_agree() -> None:
    with pytest.raises(UsageError, match="the same number of steps"):
        sustained([1, 2], [0.1], LIMIT)
