"""Finding out who fails an execution, without Spark."""

from __future__ import annotations

import random

import pytest

from nearcast.pipeline.jobs.channel import halved


class Trial:
    def __init__(self, *bad: int, most_members: int = 1 << 30) -> None:
        self.bad = set(bad)
        self.most_members = most_members
        self.tries = 0

    def __call__(self, part) -> bool:
        self.tries += 1
        return not self.bad & set(part) and len(part) <= self.most_members


@pytest.mark.parametrize("count", [2, 3, 7, 1000])
def test_one_that_fails_is_found_and_all_others_pass(count):
    for bad in {0, 1, count // 2, count - 1}:
        trial = Trial(bad)
        found = halved(range(count), trial)
        assert found.suspects == [bad]
        assert found.left == []
        assert sorted(one for part in found.passed for one in part) == [one for one in range(count) if one != bad]
        assert trial.tries <= 2 * count.bit_length()


def test_several_that_fail_are_found():
    bad = random.Random(1).sample(range(1000), 12)
    assert sorted(halved(range(1000), Trial(*bad)).suspects) == sorted(bad)


def test_a_whole_that_is_too_large_passes_by_parts_and_nobody_is_suspected():
    found = halved(range(100), Trial(most_members=30))
    assert (found.suspects, found.left) == ([], [])
    assert sorted(one for part in found.passed for one in part) == list(range(100))


def test_when_nothing_passes_nobody_is_suspected_and_it_ends_soon():
    trial = Trial(*range(100_000))
    found = halved(range(100_000), trial)
    assert (found.passed, found.suspects) == ([], [])
    assert trial.tries <= 68
    assert halved([1], trial).suspects == []


def test_most_may_fail_and_those_who_pass_are_found():
    for count, bad in ((2, 1), (10, 8), (1000, 500)):
        whole = random.Random(count).sample(range(count), count)
        assert halved(whole, Trial(*range(bad)), most=5 * count).passed, count


def test_what_is_left_when_tries_run_out_is_told():
    found = halved(range(1024), Trial(*range(0, 1024, 2)), most=60)
    seen = [*found.suspects, *(one for part in (*found.passed, *found.left) for one in part)]
    assert sorted(seen) == list(range(1024))
    assert found.suspects
    assert found.left
