"""Jobs on whole datasets: compaction, the newest record of each key, and reading files that users upload.

Compaction merges small segments of a dataset. A segment is merged with those after it only if it is not larger than
they are together. So each record is rewritten about log2(n) times in n batches, and the segments of a keyed dataset
hold at most about twice as many records as it has keys. Plain segments grow up to a target size; keyed ones grow
without limit, because only a merge drops old records.

Uploaded files are CSV with a header, JSON (one object per line, or an array), or Parquet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.datasets import Dataset, Segment
from nearcast.pipeline.storage import BATCH, Column, ddl_of, nullable_ddl, parse_schema

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession


def newest_per_key(frame: DataFrame, key: str, order: SparkColumn, columns: Sequence[str]) -> DataFrame:
    """For each value of `key`, the row with the greatest `order`."""
    from pyspark.sql import functions as F

    newest = F.max_by(F.struct(*columns), order).alias("_newest")
    return frame.groupBy(key).agg(newest).select(*(F.col("_newest")[name].alias(name) for name in columns))


def age() -> SparkColumn:
    """What orders the records of a feed: when a server kept them, then when they were published.

    Batches do not order them: a topic that moves leaves a part behind at its old broker, which may be read later.
    """
    from pyspark.sql import functions as F

    return F.struct("_ingested_at", "_published_at", BATCH)


# --- compaction


TARGET_BYTES = 64 << 20  # of a merged segment: large enough to read fast, small enough to merge in memory
SMALL_BYTES = 1 << 20  # a smaller segment takes longer to open than to read
LEAST_SEGMENTS = 8  # merging fewer is not worth a job


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
    """Write the records of the group to one folder; of a keyed dataset, only the newest per key."""
    names = [column.name for column in columns] + [BATCH]
    frame = io.read(spark, f"{nullable_ddl(columns)}, `{BATCH}` BIGINT", paths)
    if dataset.key:
        frame = newest_per_key(frame, dataset.key, age(), names)
    written = io.write(frame.select(*names), target, files=1)
    rows = sum(segment.rows for segment in group)
    if written.rows > rows or (written.rows < rows and not dataset.key):
        raise ClusterError(
            f"dataset {dataset.name}: {rows} rows became {written.rows} in a merge; the segments stay as they are"
        )
    return Segment(
        first=group[0].first,
        last=group[-1].last,
        rows=written.rows,
        bytes=written.bytes,
        made_s=max(segment.made_s for segment in group),
    )


# --- uploaded files


FORMATS = ("csv", "json", "parquet")


def read_file(
    spark: SparkSession, file: Path, format: str, columns: Sequence[Column]
) -> tuple[DataFrame, tuple[Column, ...]]:
    """The file's rows and columns. If no columns are given, Spark infers them from the file."""
    if format not in FORMATS:
        raise UsageError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}")
    reader = spark.read.options(**_options(file, format))
    if columns:
        return reader.schema(nullable_ddl(columns)).format(format).load(str(file)), tuple(columns)
    frame = reader.format(format).load(str(file))
    found = [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    return frame, parse_schema(ddl_of(found))  # checks the names in the file


def checked_rows(frame: DataFrame, columns: Sequence[Column], key: str) -> int:
    """How many rows there are; raises UsageError for a missing value or a repeated key."""
    from pyspark.sql import functions as F

    required = [column.name for column in columns if column.required or column.name == key]
    missing = [F.count_if(F.col(name).isNull()).alias(name) for name in required]
    keys = F.count_distinct(key) if key else F.count("*")
    row = frame.agg(F.count("*").alias("_rows"), keys.alias("_keys"), *missing).first()
    assert row is not None
    for name in required:
        if row[name]:
            raise UsageError(f"{row[name]} rows have no {name}, which is required: fill it in")
    if row["_keys"] != row["_rows"]:
        raise UsageError(f"{row['_rows'] - row['_keys']} rows repeat a value of the key {key}: keep one row per value")
    return int(row["_rows"])


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn Spark errors in this block into a UsageError that says what is wrong with the file."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:  # an error that PySpark has no class for
        raise _unreadable(file, _told(error.java_exception)) from None
    except PySparkException as error:
        raise _unreadable(file, str(error)) from None


def _told(thrown: Any) -> str:
    """What Java says about the record that it could not read; otherwise its last cause."""
    causes = [thrown]
    while (cause := causes[-1].getCause()) is not None:
        causes.append(cause)
    messages = [str(one.getMessage()) for one in causes]
    return next((message for message in messages if "MALFORMED" in message), messages[-1])


def _unreadable(file: Path, reason: str) -> UsageError:
    first = reason.partition("\n")[0]
    return UsageError(f"{file.name} cannot be read: {first}: correct it, or give its schema")


def _options(file: Path, format: str) -> dict[str, str]:
    if format == "csv":
        return {"header": "true", "mode": "FAILFAST", "inferSchema": "true", "enforceSchema": "false"}
    if format == "json":
        with file.open("rb") as opened:
            in_array = opened.read(64).lstrip().startswith(b"[")
        return {"mode": "FAILFAST", "multiLine": str(in_array).lower()}
    return {}
