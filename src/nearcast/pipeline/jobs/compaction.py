"""Compaction: which small segments of a dataset to merge, and the merge itself.

A segment is merged with those after it only if it is not larger than they are together. So each record is written
again about log2(n) times while n batches come, and of a keyed dataset at most about twice the newest records lie in
segments. Plain segments grow up to a target size; keyed ones without limit, because only a merge drops old records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError
from nearcast.pipeline import io
from nearcast.pipeline.catalog.datasets import Dataset, Segment
from nearcast.pipeline.schemas import BATCH, Column, nullable_ddl
from nearcast.pipeline.transforms.newest import newest_per_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET_BYTES = 64 << 20  # of a merged segment: large enough to read fast, small enough to merge in memory
SMALL_BYTES = 1 << 20  # below this a segment costs a reader more to open than to read
LEAST_SEGMENTS = 8  # fewer are not worth a job


def merges(segments: Sequence[Segment], *, keyed: bool) -> list[list[Segment]]:
    """Groups of adjacent segments to merge, each oldest first."""
    limit = math.inf if keyed else TARGET_BYTES
    groups: list[list[Segment]] = [[]]
    total = 0
    for segment in reversed(segments):
        if total and (segment.bytes > max(total, SMALL_BYTES) or total + segment.bytes > limit):
            groups.append([])
            total = 0
        groups[-1].append(segment)
        total += segment.bytes
    return [group[::-1] for group in reversed(groups) if len(group) >= LEAST_SEGMENTS]


def merge(
    spark: SparkSession,
    dataset: Dataset,
    columns: Sequence[Column],
    group: Sequence[Segment],
    paths: Sequence[Path],
    target: Path,
) -> Segment:
    """Write the records of the group to one folder; of a keyed dataset the newest per key alone."""
    from pyspark.sql import functions as F

    names = [column.name for column in columns] + [BATCH]
    frame = io.read(spark, f"{nullable_ddl(columns)}, `{BATCH}` BIGINT", paths)
    if dataset.key:
        frame = newest_per_key(frame, dataset.key, F.col(BATCH), names)
    written = io.write(frame.select(*names), target, files=1)
    rows = sum(segment.rows for segment in group)
    if written.rows > rows or (written.rows < rows and not dataset.key):
        raise ClusterError(
            f"dataset {dataset.name}: segments of {rows} rows were merged into {written.rows}; they stay as they are"
        )
    return Segment(
        first=group[0].first,
        last=group[-1].last,
        rows=written.rows,
        bytes=written.bytes,
        made_s=max(segment.made_s for segment in group),
    )
