"""Datasets and telemetry in the catalogue: what each is, how far it goes, and which folders count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.database import Database, Row, RowReader
from nearcast.pipeline.storage import Column, Warehouse, ddl_of, parse_schema

# --- datasets


_DATASET_TABLES = """
CREATE TABLE IF NOT EXISTS datasets (
    name TEXT PRIMARY KEY,
    source TEXT NOT NULL,       -- feed, static or dropped; a dropped row stays, because positions must never decrease
    schema TEXT NOT NULL,
    key TEXT NOT NULL,          -- empty: all records are kept
    position INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS segments (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    first INTEGER NOT NULL,     -- batch numbers, both included
    last INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    made_s REAL NOT NULL,       -- when its newest record was committed; all times here are running time
    until INTEGER,              -- the batch that replaced it, in a static dataset
    obsolete_s REAL,            -- since when no new reader uses it
    PRIMARY KEY (dataset, first, last)
);
"""

DROPPED = "dropped"


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a dataset."""

    name: str
    source: str
    columns: tuple[Column, ...]  # without those that a feed adds
    key: str
    position: int


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of records: those of one batch, or of several that were merged."""

    first: int
    last: int
    rows: int
    bytes: int
    made_s: float


class DatasetCatalog:
    """The datasets: their schemas, how far they go, and which folders hold their records.

    The caller puts changes that belong together into one transaction of the database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = RowReader("dataset", _dataset)
        database.create(_DATASET_TABLES)

    def all(self) -> list[Dataset]:
        return self._reader.readable(self._rows())

    def damaged(self) -> list[str]:
        """What is wrong with the datasets that cannot be read."""
        return self._reader.problems(self._rows())

    def exists(self, name: str) -> bool:
        return self._row(name) is not None

    def find(self, name: str) -> Dataset | None:
        row = self._row(name)
        return self._reader.required(row) if row is not None else None

    def get(self, name: str) -> Dataset:
        found = self.find(name)
        if found is None:
            there = ", ".join(dataset.name for dataset in self.all()) or "none"
            raise UsageError(f"unknown dataset {name!r}: the datasets are {there}")
        return found

    def drop(self, name: str) -> None:
        """Drop it, even if it cannot be read. Its position and the rows of its segments stay."""
        self._database.run("UPDATE datasets SET source = ? WHERE name = ?", [DROPPED, name])

    def last_position(self, name: str) -> int:
        """The newest batch, also of a dataset that was dropped; 0 if there never was one."""
        row = self._database.row("SELECT position FROM datasets WHERE name = ?", [name])
        return int(row["position"]) if row is not None else 0

    def put(self, name: str, source: str, columns: Sequence[Column], key: str) -> None:
        """Create it, or change everything but its position."""
        ddl = ddl_of(columns)
        if parse_schema(ddl) != tuple(columns):
            raise UsageError(f"the schema of dataset {name} cannot be stored as it is written: simplify it")
        self._database.run(
            "INSERT INTO datasets (name, source, schema, key, position) VALUES (?, ?, ?, ?, 0) "
            "ON CONFLICT (name) DO UPDATE SET source = excluded.source, schema = excluded.schema, key = excluded.key",
            [name, source, ddl, key],
        )

    def advance(self, name: str, segment: Segment) -> None:
        """A batch was written; it counts from now on."""
        self._database.run("UPDATE datasets SET position = ? WHERE name = ?", [segment.last, name])
        self.add(name, segment)

    def add(self, name: str, segment: Segment) -> None:
        values = [name, *msgspec.structs.astuple(segment)]
        self._database.run(
            "INSERT INTO segments (dataset, first, last, rows, bytes, made_s) VALUES (?, ?, ?, ?, ?, ?)", values
        )

    def replace(self, name: str, until: int) -> None:
        """All older segments end at this batch."""
        self._database.run(
            "UPDATE segments SET until = ? WHERE dataset = ? AND last < ? AND until IS NULL", [until, name, until]
        )

    def segments(self, name: str, upto: int) -> list[Segment]:
        """The segments that make up the dataset as of this batch, oldest first."""
        rows = self._database.rows(
            "SELECT * FROM segments WHERE dataset = ? AND first <= ? AND (until IS NULL OR until > ?) "
            "AND obsolete_s IS NULL ORDER BY first",
            [name, upto, upto],
        )
        return [_segment(row) for row in rows]

    def replaced(self, name: str, upto: int) -> list[Segment]:
        """Segments that no reader as of this batch, or a later one, needs."""
        rows = self._database.rows(
            "SELECT * FROM segments WHERE dataset = ? AND until <= ? AND obsolete_s IS NULL", [name, upto]
        )
        return [_segment(row) for row in rows]

    def retire(self, name: str, segments: Iterable[Segment], now_s: float) -> None:
        """Mark these as obsolete: no new reader uses them."""
        self._database.run_many(
            "UPDATE segments SET obsolete_s = ? WHERE dataset = ? AND first = ? AND last = ?",
            [(now_s, name, segment.first, segment.last) for segment in segments],
        )

    def obsolete(self, name: str, before_s: float) -> list[Segment]:
        rows = self._database.rows("SELECT * FROM segments WHERE dataset = ? AND obsolete_s < ?", [name, before_s])
        return [_segment(row) for row in rows]

    def known(self, name: str) -> list[Segment]:
        return [_segment(row) for row in self._database.rows("SELECT * FROM segments WHERE dataset = ?", [name])]

    def forget(self, name: str, segments: Iterable[Segment]) -> None:
        self._database.run_many(
            "DELETE FROM segments WHERE dataset = ? AND first = ? AND last = ?",
            [(name, segment.first, segment.last) for segment in segments],
        )

    def _rows(self) -> list[Row]:
        return self._database.rows("SELECT * FROM datasets WHERE source != ? ORDER BY name", [DROPPED])

    def _row(self, name: str) -> Row | None:
        return self._database.row("SELECT * FROM datasets WHERE name = ? AND source != ?", [name, DROPPED])


def _dataset(row: Row) -> Dataset:
    columns = parse_schema(row["schema"])
    return Dataset(name=row["name"], source=row["source"], columns=columns, key=row["key"], position=row["position"])


def _segment(row: Row) -> Segment:
    return Segment(first=row["first"], last=row["last"], rows=row["rows"], bytes=row["bytes"], made_s=row["made_s"])


# --- telemetry


TOPICS, BROKERS = "topics", "brokers"  # the tables of sums
NOTHING_READ = "{}"

_TELEMETRY_TABLES = """
CREATE TABLE IF NOT EXISTS telemetry_progress (
    only INTEGER PRIMARY KEY CHECK (only = 1), spark_batch INTEGER NOT NULL, read_to TEXT NOT NULL,
    commits INTEGER NOT NULL, reports INTEGER NOT NULL, malformed INTEGER NOT NULL, lost INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS telemetry_files (
    name TEXT NOT NULL, level INTEGER NOT NULL, number INTEGER NOT NULL, from_s INTEGER NOT NULL,
    upto_s INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (name, level, number)
);
"""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the streams of reports were read, and what was found."""

    spark_batch: int = -1  # the last one committed here, as numbered in Spark's checkpoint
    read_to: str = NOTHING_READ  # JSON: stream -> the id of its last report that was read
    commits: int = 0
    reports: int = 0
    malformed: int = 0  # records that are not reports
    lost: int = 0  # records dropped from the stream before they were read


class SumFile(msgspec.Struct, frozen=True, order=True):
    """A folder of sums. One batch writes level 0; a file of level n is merged from files of level n - 1."""

    name: str  # of the table: topics, brokers
    level: int
    number: int
    from_s: int  # its first window
    upto_s: int  # its last
    bytes: int


def sums_path(warehouse: Warehouse, name: str, level: int, number: int) -> Path:
    return warehouse.telemetry(f"{name}-{level}", number)


class TelemetryCatalog:
    """Which files of sums count, and how far the streams of reports were read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create(_TELEMETRY_TABLES)

    def progress(self) -> Progress:
        row = self._database.row("SELECT * FROM telemetry_progress")
        return Progress() if row is None else Progress(**{name: row[name] for name in Progress.__struct_fields__})

    def files(self, name: str, since_s: float = 0.0) -> list[SumFile]:
        """The files of a table that have windows from `since_s` on."""
        sql = "SELECT * FROM telemetry_files WHERE name = ? AND upto_s >= ? ORDER BY level, number"
        return [SumFile(*row) for row in self._database.rows(sql, (name, since_s))]

    def commit(self, progress: Progress, files: list[SumFile]) -> None:
        """A batch was written; it counts from now on."""
        with self._database.transaction():
            self.note(progress)
            self._add(files)

    def note(self, progress: Progress) -> None:
        values = msgspec.structs.astuple(progress)
        self._database.run(f"REPLACE INTO telemetry_progress VALUES (1{', ?' * len(values)})", values)

    def replace(self, merged: list[SumFile], by: list[SumFile]) -> None:
        """Replace files that were merged, or are too old to keep."""
        with self._database.transaction():
            for file in merged:
                self._database.run(
                    "DELETE FROM telemetry_files WHERE name = ? AND level = ? AND number = ?",
                    (file.name, file.level, file.number),
                )
            self._add(by)

    def _add(self, files: list[SumFile]) -> None:
        values = [msgspec.structs.astuple(file) for file in files]
        self._database.run_many("INSERT INTO telemetry_files VALUES (?, ?, ?, ?, ?, ?)", values)
