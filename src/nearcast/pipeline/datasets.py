"""Datasets: records in Parquet, in numbered batches, readable as of any batch that was not compacted away.

A batch is written to its folder first and then named in the catalogue, so it is visible as a whole or not at all.
Readers ask by number: `new` for the batches after one up to another, `whole` for everything up to one. The frames are
lazy, so files stay for `GRACE_S` after they become obsolete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.database import EXPIRED_LEAST, EXPIRED_SHARE, Database
from nearcast.pipeline.catalog.datasets import Dataset, DatasetCatalog, Segment
from nearcast.pipeline.jobs.datasets import age, checked_rows, merge, merges, newest_per_key, read_file, readable
from nearcast.pipeline.storage import (
    BATCH,
    METADATA,
    Column,
    Warehouse,
    checked_dataset_name,
    checked_key,
    grown,
    nullable_ddl,
    parse_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FEED, STATIC = "feed", "static"
GRACE_S = 600.0  # obsolete files stay this long: a query that began with them may still run


class Datasets:
    """All datasets of one warehouse. One per process."""

    def __init__(self, database: Database, warehouse: Warehouse, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` must not jump: data that is old by it is deleted. Times in the catalogue are by this clock."""
        self.warehouse = warehouse
        self._database = database
        self._catalog = DatasetCatalog(database)
        self._clock = clock

    # --- what there is

    def names(self) -> list[str]:
        return [dataset.name for dataset in self._catalog.all()]

    def exists(self, name: str) -> bool:
        """True even if the dataset cannot be read."""
        return self._catalog.exists(name)

    def damaged(self) -> list[str]:
        """What is wrong with the datasets that cannot be read."""
        return self._catalog.damaged()

    def describe(self, name: str) -> Dataset:
        """Raises UsageError for an unknown name, and lists the datasets."""
        return self._catalog.get(name)

    def schema(self, name: str) -> dict[str, str]:
        """Its columns and their Spark types, including those that a feed adds."""
        return {column.name: column.type for column in _columns(self._catalog.get(name))}

    def position(self, name: str) -> int:
        """The newest committed batch; 0 if there is none."""
        return self._catalog.get(name).position

    def size(self, name: str) -> tuple[int, int]:
        """Rows and bytes that a reader of the whole dataset reads."""
        segments = self._catalog.segments(name, self.position(name))
        return sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments)

    # --- reading

    def new(self, spark: SparkSession, name: str, after: int, upto: int) -> DataFrame:
        """The records of the batches after < n <= upto; of a keyed dataset, the newest of each key among them."""
        dataset = self._catalog.get(name)
        segments = [segment for segment in self._segments(dataset, upto) if segment.last > after]
        return self._read(spark, dataset, segments, after)

    def whole(self, spark: SparkSession, name: str, upto: int) -> DataFrame:
        """All records up to a batch; of a keyed dataset, the newest of each key."""
        dataset = self._catalog.get(name)
        return self._read(spark, dataset, self._segments(dataset, upto), 0)

    def _segments(self, dataset: Dataset, upto: int) -> list[Segment]:
        segments = self._catalog.segments(dataset.name, upto)
        if segments and segments[-1].last > upto:
            raise ClusterError(
                f"dataset {dataset.name} as of batch {upto} is gone: compacted up to {segments[-1].last}; ask for that"
            )
        return segments

    def _read(self, spark: SparkSession, dataset: Dataset, segments: Sequence[Segment], after: int) -> DataFrame:
        from pyspark.sql import functions as F

        columns = _columns(dataset)
        names = [column.name for column in columns]
        frame = io.read(spark, f"{nullable_ddl(columns)}, `{BATCH}` BIGINT", self._paths(dataset.name, segments))
        if any(segment.first <= after for segment in segments):  # it also holds batches up to `after`
            frame = frame.where(F.col(BATCH) > after)
        if dataset.key and dataset.source == FEED:
            return newest_per_key(frame, dataset.key, age(), names)
        return frame.select(*names)

    def _paths(self, name: str, segments: Sequence[Segment]) -> list[Path]:
        return [self._path(name, segment) for segment in segments]

    def _path(self, name: str, segment: Segment) -> Path:
        if segment.first == segment.last:
            return self.warehouse.batch(name, segment.first)
        return self.warehouse.compacted(name, segment.first, segment.last)

    # --- making and changing

    def create(self, name: str, schema: str, key: str = "") -> None:
        """Create an empty dataset for a feed. Repeating this changes nothing; another schema or key is refused."""
        with self._database.transaction():
            self.check(name, schema, key)
            if self._catalog.find(name) is None:
                columns = parse_schema(schema)
                self._catalog.put(name, FEED, columns, checked_key(key, columns))

    def check(self, name: str, schema: str, key: str = "") -> None:
        """Raise what `create` would raise."""
        columns = parse_schema(schema)
        found = self._catalog.find(checked_dataset_name(name))
        wanted = (FEED, columns, checked_key(key, columns))
        if found is not None and (found.source, found.columns[: len(columns)], found.key) != wanted:
            raise UsageError(f"a different dataset {name} exists: choose another name, or drop that one first")

    def alter(self, name: str, schema: str) -> None:
        """Add columns to a feed's dataset, as in `severity INT`. Older records have null there."""
        with self._database.transaction():
            dataset = self._catalog.get(name)
            self._catalog.put(name, dataset.source, grown(name, dataset.columns, parse_schema(schema)), dataset.key)

    def drop(self, name: str) -> None:
        """Delete a dataset and its files. A later one of the same name continues with higher batch numbers."""
        with self._database.transaction():
            self._catalog.drop(name)
            self._catalog.forget(name, self._catalog.known(name))
        io.remove(self.warehouse.dataset(name))

    def write(self, dataset: Dataset, frame: DataFrame, rows: int | None, files: int = 1) -> Segment:
        """Write the batch after the dataset's position, with at most one record per key. It counts once committed.

        `rows`: how many rows were counted before, of all keys; None if unknown. Raises ClusterError if the number of
        rows written does not match.
        """
        from pyspark.sql import functions as F

        number = dataset.position + 1
        names = [column.name for column in _columns(dataset)]
        numbered = frame.select(*names, F.lit(number).cast("bigint").alias(BATCH))
        written = io.write(numbered, self.warehouse.batch(dataset.name, number), files)
        if rows is not None and (written.rows > rows or (written.rows < rows and not dataset.key)):
            raise ClusterError(
                f"batch {number} of dataset {dataset.name}: {rows} rows were counted, but {written.rows} written; it "
                "is not committed, and will be tried again"
            )
        return self.segment(dataset, written.rows, written.bytes)

    def segment(self, dataset: Dataset, rows: int, size_bytes: int) -> Segment:
        """The batch after the dataset's position, of which this much was written."""
        number = dataset.position + 1
        return Segment(first=number, last=number, rows=rows, bytes=size_bytes, made_s=self._clock())

    def commit(self, name: str, segment: Segment) -> None:
        """The written batch counts from now on, or from the end of the surrounding transaction."""
        self._catalog.advance(name, segment)

    def load(self, spark: SparkSession, name: str, file: Path, format: str, schema: str = "", key: str = "") -> Dataset:
        """Replace a static dataset with the records of a file. Readers see all of the old or all of the new."""
        found = self._catalog.find(checked_dataset_name(name))
        if found is not None and found.source != STATIC:
            raise UsageError(f"dataset {name} is filled by a feed: choose another name")
        before = found.columns if found else ()
        wanted = grown(name, before, parse_schema(schema)) if schema else before
        with readable(file):
            frame, columns = read_file(spark, file, format, wanted)
            key = checked_key(key, columns) or (found.key if found else "")
            if found is not None and key != found.key:
                raise UsageError(f"the key of dataset {name} is {found.key or 'none'}: drop the dataset to change it")
            position = self._catalog.last_position(name)
            dataset = Dataset(name=name, source=STATIC, columns=columns, key=key, position=position)
            segment = self.write(dataset, frame, None, io.FILES_AT_MOST)
        written = io.read(spark, nullable_ddl(columns), self._paths(name, [segment]))
        if (rows := checked_rows(written, columns, key)) != segment.rows:
            raise ClusterError(
                f"dataset {name}: {segment.rows} rows were written, but {rows} were read back: load it again"
            )
        with self._database.transaction():
            self._catalog.put(name, STATIC, columns, key)
            self._catalog.replace(name, segment.first)
            self._catalog.advance(name, segment)
        return self._catalog.get(name)

    # --- keeping it small

    def compact(self, spark: SparkSession, name: str, upto: int) -> None:
        """Merge small segments up to a batch, and delete files that have been obsolete for longer than `GRACE_S`.

        The caller ensures that no reader will ask for `new` after an older batch, or for `whole` as of one.
        """
        dataset = self._catalog.get(name)
        if dataset.source == STATIC:
            self._catalog.retire(name, self._catalog.replaced(name, upto), self._clock())
        else:
            done = [segment for segment in self._catalog.segments(name, upto) if segment.last <= upto]
            for group in merges(done, keyed=bool(dataset.key)):
                self._merge(spark, dataset, group)
        self._sweep(name)

    def keep(self, name: str, age_s: float, upto: int) -> int:
        """Drop segments up to a batch whose newest record is older than this; returns how many.

        One call drops at most a small share. Keyed datasets are never shortened.
        """
        dataset = self._catalog.get(name)
        oldest_s = self._clock() - age_s
        done = [] if dataset.key or dataset.source == STATIC else self._catalog.segments(name, upto)
        old = [segment for segment in done if segment.last <= upto and segment.made_s < oldest_s]
        old = old[: max(EXPIRED_LEAST, int(len(done) * EXPIRED_SHARE))]
        self._catalog.retire(name, old, self._clock())
        return len(old)

    def clean(self) -> int:
        """Delete folders that a crash left behind; returns how many. Call this before anything is written or read."""
        removed = 0
        for folder in self.warehouse.datasets():
            known = self._catalog.known(folder.name)
            removed += self.warehouse.remove_others(folder, self._paths(folder.name, known))
        return removed

    def _merge(self, spark: SparkSession, dataset: Dataset, group: Sequence[Segment]) -> None:
        target = self.warehouse.compacted(dataset.name, group[0].first, group[-1].last)
        merged = merge(spark, dataset, _columns(dataset), group, self._paths(dataset.name, group), target)
        with self._database.transaction():
            self._catalog.retire(dataset.name, group, self._clock())
            self._catalog.add(dataset.name, merged)

    def _sweep(self, name: str) -> None:
        gone = self._catalog.obsolete(name, self._clock() - GRACE_S)
        for path in self._paths(name, gone):
            io.remove(path)
        self._catalog.forget(name, gone)


def _columns(dataset: Dataset) -> tuple[Column, ...]:
    return (*dataset.columns, *METADATA) if dataset.source == FEED else dataset.columns
