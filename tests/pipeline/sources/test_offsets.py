"""Offsets: losses are found and counted, limits are kept, and a batch depends on its offsets alone."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.errors import ClusterError
from nearcast.pipeline.sources.offsets import (
    Offset,
    StreamRange,
    View,
    beginning_at,
    from_json,
    ordered,
    ranges,
    settled,
    shares,
    to_json,
)

READ_TO_5 = Offset(id="5-0", position=5)


def test_ids_compare_by_age_and_not_as_text() -> None:
    assert ordered("9-9") < ordered("10-0") < ordered("10-2") < ordered("10-10")


def test_offsets_are_sorted_json_and_come_back() -> None:
    offsets = {"b": READ_TO_5, "a": Offset(lost=2, restarts=1)}
    text = json.dumps(to_json(offsets))
    assert text == json.dumps(to_json(offsets), sort_keys=True)
    assert from_json(json.loads(text)) == offsets


@pytest.mark.parametrize(
    "view",
    [
        View(length=10, added=10, first_id="1-0", last_id="10-0"),
        View(length=5, added=10, first_id="6-0", last_id="10-0"),  # trimmed up to what was read
        View(length=0, added=5, first_id="0-0", last_id="5-0"),  # all read, all trimmed
    ],
)
def test_nothing_is_lost_when_only_read_records_were_trimmed(view: View) -> None:
    assert settled("s", READ_TO_5, view, fail_on_data_loss=True) == READ_TO_5


def test_a_stream_that_never_was_is_no_loss() -> None:
    assert settled("s", Offset(), None, fail_on_data_loss=True) == Offset()


@pytest.mark.parametrize(
    ("view", "said", "after"),
    [
        (View(3, 10, "8-0", "10-0"), "2 records of stream 's' after 5-0 and before 8-0", Offset("5-0", 2, 7)),
        (View(0, 10, "0-0", "10-0"), "5 records of stream 's' after 5-0 and before its end", Offset("5-0", 5, 10)),
        (View(2, 2, "1-0", "2-0"), "was deleted and created again", Offset(restarts=1)),
        (View(2, 3, "2-0", "3-0"), "was deleted and created again", Offset(restarts=1, position=1, lost=1)),
        (View(2, 2, "8-0", "9-0"), "was deleted and created again", Offset(restarts=1)),
        (None, "stream 's' is gone", READ_TO_5),
    ],
)
def test_a_loss_is_an_error_or_counted(view: View | None, said: str, after: Offset) -> None:
    with pytest.raises(ClusterError, match=said):
        settled("s", READ_TO_5, view, fail_on_data_loss=True)
    assert settled("s", READ_TO_5, view, fail_on_data_loss=False) == after


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 50), max_size=8), st.integers(1, 200))
def test_shares_keep_the_limit_use_it_whole_and_are_fair(backlogs: dict[str, int], limit: int) -> None:
    granted = shares(backlogs, limit)
    assert sum(granted.values()) == min(limit, sum(backlogs.values()))
    assert all(granted[stream] <= backlog for stream, backlog in backlogs.items())
    cut = [granted[stream] for stream, backlog in backlogs.items() if granted[stream] < backlog]
    assert not cut or max(granted.values()) - min(cut) <= 1


def test_without_a_limit_everything_is_read() -> None:
    assert shares({"a": 7, "b": 0}, None) == {"a": 7, "b": 0}


def test_ranges_lie_between_two_offsets_by_stream() -> None:
    start = {"a": READ_TO_5, "b": READ_TO_5, "c": READ_TO_5}
    end = {
        "a": Offset("9-0", 0, 9),
        "b": READ_TO_5,
        "c": Offset("9-0", 3, 9),  # three of the four were lost
        "d": Offset("1-0", 0, 1),
    }
    assert ranges(start, end) == [
        StreamRange("a", "5-0", "9-0", 4),
        StreamRange("c", "5-0", "9-0", 1),
        StreamRange("d", "0-0", "1-0", 1),
    ]
    assert ranges(end, end) == []


def test_a_stream_that_was_deleted_and_created_again_is_read_from_its_beginning() -> None:
    assert ranges({"a": READ_TO_5}, {"a": Offset("3-0", 1, 3, restarts=1)}) == [StreamRange("a", "0-0", "3-0", 2)]


def test_a_stream_that_the_start_does_not_name_is_read_from_where_it_began() -> None:
    assert ranges({}, {"a": msgspec.structs.replace(beginning_at("5-0", 5), id="7-0", position=7)}) == [
        StreamRange("a", "5-0", "7-0", 2)
    ]
