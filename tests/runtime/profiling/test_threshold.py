"""The threshold: the highest rate that is not slow, in spite of disturbed runs; and what is said if there is none."""

from __future__ import annotations

import pytest
from made import made

from nearcast.runtime.profiling.runs import Run
from nearcast.runtime.profiling.threshold import threshold

UNLOADED = [made(1000.0 * step, 1.0 + step / 10) for step in (1, 2, 3, 4, 5)]  # the median is 1.3 ms
FAST = [made(rate, 3.0) for rate in (20e3, 40e3, 60e3)]
SLOW = [made(rate, 50.0) for rate in (80e3, 100e3)]


def test_it_is_the_highest_rate_before_it_becomes_slow() -> None:
    found = threshold([*SLOW, *UNLOADED, *FAST])
    assert (found.messages_high_per_s, found.at_least, found.problem) == (60e3, False, "")
    assert found.unloaded_p95_s == pytest.approx(1.3e-3)
    assert found.limit_s == pytest.approx(3.9e-3)
    assert (found.runs, found.slow, found.misplaced) == (10, 2, 0)


def test_a_limit_may_be_given_instead() -> None:
    assert threshold([*SLOW, *UNLOADED, *FAST], limit_s=2e-3).messages_high_per_s == 5000
    assert threshold([*SLOW, *UNLOADED, *FAST], factor=50).at_least


def test_one_disturbed_run_does_not_move_it() -> None:
    found = threshold([*UNLOADED, *FAST, *SLOW, made(10e3, 900.0)])
    assert (found.messages_high_per_s, found.misplaced) == (60e3, 1)
    lucky = threshold([*UNLOADED, *FAST, *SLOW, made(110e3, 1.0)])
    assert (lucky.messages_high_per_s, lucky.misplaced) == (60e3, 1)


def test_of_equally_good_rates_the_lowest_counts() -> None:
    runs = [*UNLOADED, made(20e3, 3.0), made(40e3, 50.0), made(60e3, 3.0), made(80e3, 50.0)]
    found = threshold(runs)
    assert (found.messages_high_per_s, found.misplaced) == (20e3, 1)


def test_where_nothing_is_slow_it_is_a_lower_bound() -> None:
    found = threshold([*UNLOADED, *FAST])
    assert (found.messages_high_per_s, found.at_least, found.slow) == (60e3, True, 0)
    disturbed = threshold([*UNLOADED, *FAST, made(10e3, 900.0)])
    assert (disturbed.messages_high_per_s, disturbed.at_least) == (60e3, True)  # nothing above it is slow


def test_slow_runs_that_the_measuring_side_limits_do_not_count() -> None:
    runs = [*UNLOADED, *FAST, *(made(rate, 50.0, measuring=0.95) for rate in (50e3, 90e3))]
    found = threshold(runs)
    assert (found.messages_high_per_s, found.at_least, found.runs) == (60e3, True, 8)
    both = threshold([*UNLOADED, *FAST, made(90e3, 50.0, measuring=0.95, cpu=0.95)])
    assert not both.at_least  # the server was busy too


@pytest.mark.parametrize(
    ("runs", "limit_s", "said"),
    [
        ([], None, "is not known: make more runs, or give a limit"),
        (FAST, None, "is not known: make more runs, or give a limit"),
        ([*UNLOADED, *SLOW], None, "7 runs count, and a threshold needs 8"),
        ([*UNLOADED, *FAST], 1e-4, "give a higher limit"),
        ([], 1.0, "0 runs count"),
    ],
)
def test_where_there_is_none_the_problem_is_said(runs: list[Run], limit_s: float | None, said: str) -> None:
    found = threshold(runs, limit_s=limit_s)
    assert said in found.problem
    assert (found.messages_high_per_s, found.at_least) == (0.0, False)
