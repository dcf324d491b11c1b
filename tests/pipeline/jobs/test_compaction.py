"""Which segments are merged: few are left, none is written again too often, and keyed data stay near their size."""

from __future__ import annotations

import pytest

from nearcast.pipeline.catalog.datasets import Segment
from nearcast.pipeline.jobs.datasets import LEAST_SEGMENTS, TARGET_BYTES, merges

KILOBYTE = 1 << 10
MEGABYTE = 1 << 20


def segments(*sizes: int) -> list[Segment]:
    return [Segment(first=i, last=i, rows=1, bytes=size, made_s=0.0) for i, size in enumerate(sizes, start=1)]


def spans(groups: list[list[Segment]]) -> list[tuple[int, int]]:
    return [(group[0].first, group[-1].last) for group in groups]


def test_few_are_left_alone() -> None:
    assert merges(segments(*[KILOBYTE] * (LEAST_SEGMENTS - 1)), keyed=False) == []
    assert merges([], keyed=True) == []


def test_small_ones_are_merged_and_a_large_one_before_them_is_not_written_again() -> None:
    found = merges(segments(TARGET_BYTES, 20 * MEGABYTE, *[MEGABYTE] * LEAST_SEGMENTS), keyed=False)
    assert spans(found) == [(3, 2 + LEAST_SEGMENTS)]


def test_plain_segments_stop_at_the_target_and_keyed_ones_do_not() -> None:
    sizes = [10 * MEGABYTE] * 12
    assert spans(merges(segments(*sizes), keyed=False)) == []  # 6 fit into a target: fewer than it takes
    assert spans(merges(segments(*[5 * MEGABYTE] * 24), keyed=False)) == [(1, 12), (13, 24)]
    assert spans(merges(segments(*sizes), keyed=True)) == [(1, 12)]


@pytest.mark.parametrize("batches", [100, 1000, 4000])
def test_of_a_keyed_dataset_twice_its_keys_stay_and_writes_grow_slowly(batches: int) -> None:
    """Each batch has 1,000 of 50,000 keys, 100 B each."""
    keys, per_batch, row_bytes = 50_000, 1000, 100
    there: list[Segment] = []
    written = most = 0
    for number in range(1, batches + 1):
        there.append(Segment(first=number, last=number, rows=per_batch, bytes=per_batch * row_bytes, made_s=0.0))
        for group in merges(there, keyed=True):
            rows = min(keys, sum(segment.rows for segment in group))
            merged = Segment(first=group[0].first, last=group[-1].last, rows=rows, bytes=rows * row_bytes, made_s=0.0)
            written += rows
            there = [segment for segment in there if segment not in group] + [merged]
            there.sort(key=lambda segment: segment.first)
        most = max(most, sum(segment.rows for segment in there))
    assert most <= 2.5 * keys
    assert len(there) <= 4 * LEAST_SEGMENTS
    assert written / (batches * per_batch) <= 8
