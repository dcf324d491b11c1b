"""What to read next, and how it is divided: arithmetic on positions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.pipeline.sources.parts import Extent
from nearcast.pipeline.sources.positions import LOST, TASK_MESSAGES_MIN, PartRange, advanced, ranges, tasks


def test_everything_new_is_read_and_a_part_that_does_not_answer_stays_where_it_was() -> None:
    kept = {"a": Extent(0, 10), "b": Extent(0, 0), "c": Extent(3, 8)}
    assert advanced({"a": 4, "gone": 7}, kept, None) == {"a": 10, "c": 8, "gone": 7}
    assert list(advanced({"z": 1, "a": 1}, {}, None)) == ["a", "z"], "equal positions have equal texts"


def test_a_limit_is_shared_and_what_retention_removed_does_not_use_it() -> None:
    kept = {"a": Extent(0, 3), "b": Extent(0, 100), "c": Extent(50, 100)}
    assert advanced({}, kept, 23) == {"a": 3, "b": 10, "c": 60}


def test_ranges_are_what_lies_between() -> None:
    assert ranges({"a": 4, "b": 2}, {"a": 9, "b": 2, "c": 5}) == [PartRange("a", 4, 9), PartRange("c", 0, 5)]


def test_little_work_is_one_task_and_much_is_divided_evenly() -> None:
    short = [PartRange(f"s{number}", 0, 10) for number in range(20)]
    assert tasks(short, 4) == [sorted(short)]
    assert tasks([], 4) == []
    long = tasks([PartRange("a", 0, 4 * TASK_MESSAGES_MIN), *short], 4)
    sizes = [sum(each.messages for each in group) for group in long]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 1


def test_a_part_that_is_lost_is_told_once_and_not_read_again() -> None:
    first = advanced({"a": 4}, {"a": None, "b": None, "c": Extent(0, 1)}, 1)
    assert first == {"a": LOST, "b": LOST, "c": 1}
    told = [PartRange("a", 4, LOST), PartRange("b", 0, LOST), PartRange("c", 0, 1)]
    assert ranges({"a": 4}, first) == told
    assert tasks(told, 2) == [told]
    assert tasks(told[:2], 2) == [told[:2]]
    assert advanced(first, {"a": None, "b": Extent(0, 7)}, None) == first
    assert ranges(first, first) == []


@given(st.lists(st.integers(1, 40_000), max_size=8), st.integers(1, 5))
def test_tasks_have_every_message_once(sizes: list[int], most: int) -> None:
    wanted = [PartRange(f"p{number}", 5, 5 + size) for number, size in enumerate(sizes)]
    groups = tasks(wanted, most)
    assert len(groups) <= most
    assert all(groups)
    left = {each.stream: each.after for each in wanted}
    for each in sorted(each for group in groups for each in group):
        assert each.after == left[each.stream]
        left[each.stream] = each.upto
    assert left == {each.stream: each.upto for each in wanted}
