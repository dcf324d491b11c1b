"""When channels are due."""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.service.scheduler import FIRST_PAUSE_S, LONGEST_PAUSE_S, Schedule, phase_s


def channel(name: str = "c", period_s: float = 10.0, continuous: bool = False, tick_at: float = 3.0):
    """A channel that was created so that a tick is at this time."""
    created = StoredChannel(
        name=name,
        text="",
        parameters={},
        period_s=period_s,
        continuous=continuous,
        new_datasets=("d",),
        whole_datasets=("w",),
        columns=(),
    )
    return msgspec.structs.replace(created, created_at=tick_at - phase_s(created))


def due(schedule: Schedule, now_s: float) -> list[str]:
    return [channel.name for channel in schedule.due(now_s)]


def test_channels_created_together_do_not_run_together():
    schedule = Schedule()
    together = [msgspec.structs.replace(channel(f"c{number}"), created_at=0.0) for number in range(40)]
    schedule.update(together, [], 0.0, 0.0)
    numbers = [len(schedule.due(float(second))) for second in range(11)]
    assert numbers[0] == 0
    assert numbers[10] == 40, "each runs within a period"
    assert max(after - before for before, after in pairwise(numbers)) <= 12, "no second has more than a few"


def test_a_repetitive_channel_runs_at_its_tick_plus_whole_periods():
    schedule = Schedule()
    schedule.update([channel()], [], 5.0, 5.0)
    assert due(schedule, 12.9) == []
    assert schedule.next_s() == 13.0
    assert due(schedule, 13.0) == ["c"]
    schedule.started("c", 13.1)
    assert due(schedule, 40.0) == []
    schedule.committed("d", 14.0)
    schedule.ended("c", 36.0)
    assert due(schedule, 36.0) == ["c"], "the ticks at 23 and 33 have passed"
    schedule.started("c", 36.0)
    schedule.committed("d", 37.0)
    schedule.ended("c", 38.0)
    assert schedule.next_s() == 43.0, "they count once, and the ticks stay where they were"


def test_a_tick_that_passes_before_the_new_records_come_is_skipped():
    schedule = Schedule()
    schedule.update([channel()], [], 5.0, 5.0)
    schedule.started("c", 13.0)
    schedule.committed("d", 34.0)
    schedule.ended("c", 36.0)
    assert schedule.next_s() == 43.0


def test_ticks_follow_creation_by_the_wall_clock_and_then_a_clock_that_does_not_jump():
    schedule = Schedule()
    schedule.update([channel(tick_at=1003.0)], [], 5.0, 1041.0)  # 8 s after a tick
    assert schedule.next_s() == 7.0
    schedule.update([channel(tick_at=1003.0)], [], 6.0, -9000.0)
    assert schedule.next_s() == 7.0
    schedule.started("c", 7.0)
    schedule.committed("d", 8.0)
    schedule.ended("c", 9.0)
    assert schedule.next_s() == 17.0


def test_without_new_records_nothing_is_due():
    schedule = Schedule()
    schedule.update([channel()], [], 5.0, 5.0)
    schedule.started("c", 13.0)
    schedule.ended("c", 14.0)
    assert schedule.next_s() == math.inf
    schedule.committed("w", 90.0)
    schedule.committed("other", 90.0)
    assert schedule.next_s() == math.inf
    schedule.committed("d", 94.0)
    assert schedule.next_s() == 103.0, "not at once: it keeps its ticks"


def test_a_continuous_channel_runs_after_each_commit_at_least_a_period_apart():
    schedule = Schedule()
    schedule.update([channel(period_s=2.0, continuous=True)], [], 10.0, 10.0)
    schedule.started("c", 12.0)
    schedule.ended("c", 12.5)
    schedule.committed("d", 13.0)
    assert due(schedule, 13.9) == []
    assert due(schedule, 14.0) == ["c"]
    schedule.started("c", 14.0)
    schedule.ended("c", 14.1)
    schedule.committed("d", 50.0)
    assert due(schedule, 50.0) == ["c"]


def test_an_unfinished_execution_is_due_at_once():
    schedule = Schedule()
    schedule.update([channel("a"), channel("b")], ["b"], 5.0, 5.0)
    assert due(schedule, 5.0) == ["b"]


def test_who_waits_longest_is_first():
    schedule = Schedule()
    schedule.update([channel("a", tick_at=2.0), channel("b", tick_at=1.0)], [], 5.0, 5.0)
    assert due(schedule, 20.0) == ["b", "a"]


def test_a_failure_is_tried_again_after_pauses_that_grow():
    schedule = Schedule()
    schedule.update([channel()], [], 5.0, 5.0)
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S):
        schedule.started("c", 20.0)
        schedule.ended("c", 20.0, failed=True)
        assert schedule.next_s() == 20.0 + pause_s
    for _ in range(20):
        schedule.started("c", 20.0)
        schedule.ended("c", 20.0, failed=True)
    assert schedule.next_s() == 20.0 + LONGEST_PAUSE_S


def test_a_channel_that_was_dropped_and_created_again_is_another():
    schedule = Schedule()
    schedule.update([channel()], [], 5.0, 5.0)
    schedule.started("c", 13.0)
    schedule.update([channel(tick_at=14.0)], [], 14.0, 14.0)
    schedule.ended("c", 15.0)
    schedule.update([channel(tick_at=14.0)], [], 15.0, 15.0)
    assert schedule.next_s() == 24.0
    schedule.update([], [], 16.0, 16.0)
    assert schedule.next_s() == math.inf
