"""The datasets in the catalogue: their schemas, how far they go, and which folders hold their records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.damage import RowReader
from nearcast.pipeline.catalog.database import Database, Row
from nearcast.pipeline.schemas import Column, ddl_of, parse_schema

_TABLES = """
CREATE TABLE IF NOT EXISTS datasets (
    name TEXT PRIMARY KEY,
    source TEXT NOT NULL,       -- feed, static; dropped: kept, because positions must never fall
    schema TEXT NOT NULL,
    key TEXT NOT NULL,          -- empty: all records stay
    position INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS segments (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    first INTEGER NOT NULL,     -- batch numbers, both included
    last INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    made_s REAL NOT NULL,       -- when its newest record was committed, by the running time, as all times here
    until INTEGER,              -- the batch that replaced it, of a static dataset
    obsolete_s REAL,            -- since then nobody new reads it
    PRIMARY KEY (dataset, first, last)
);
"""

DROPPED = "dropped"


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a dataset."""

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
    """Rows of the two tables. Several changes that belong together: in a transaction of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reader = RowReader("dataset", _dataset)
        database.create(_TABLES)

    def all(self) -> list[Dataset]:
        return self._reader.readable(self._rows())

    def damaged(self) -> list[str]:
        """What is wrong with those that cannot be read."""
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
            raise UsageError(f"no dataset {name!r}: there are {there}")
        return found

    def drop(self, name: str) -> None:
        """Also one that cannot be read. Its position stays, and so do the rows of its segments."""
        self._database.run("UPDATE datasets SET source = ? WHERE name = ?", [DROPPED, name])

    def last_position(self, name: str) -> int:
        """Also of a dataset that was dropped, or never was."""
        row = self._database.row("SELECT position FROM datasets WHERE name = ?", [name])
        return int(row["position"]) if row is not None else 0

    def put(self, name: str, source: str, columns: Sequence[Column], key: str) -> None:
        """Make it, or change all but its position."""
        ddl = ddl_of(columns)
        if parse_schema(ddl) != tuple(columns):
            raise UsageError(f"the schema of dataset {name} cannot be stored as it is: write it more simply")
        self._database.run(
            "INSERT INTO datasets (name, source, schema, key, position) VALUES (?, ?, ?, ?, 0) "
            "ON CONFLICT (name) DO UPDATE SET source = excluded.source, schema = excluded.schema, key = excluded.key",
            [name, source, ddl, key],
        )

    def advance(self, name: str, segment: Segment) -> None:
        """A batch was written: it is there from now on."""
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
        """What a reader of the dataset as of this batch reads, oldest first."""
        rows = self._database.rows(
            "SELECT * FROM segments WHERE dataset = ? AND first <= ? AND (until IS NULL OR until > ?) "
            "AND obsolete_s IS NULL ORDER BY first",
            [name, upto, upto],
        )
        return [_segment(row) for row in rows]

    def replaced(self, name: str, upto: int) -> list[Segment]:
        """Segments that a reader as of this batch, or later, does not need."""
        rows = self._database.rows(
            "SELECT * FROM segments WHERE dataset = ? AND until <= ? AND obsolete_s IS NULL", [name, upto]
        )
        return [_segment(row) for row in rows]

    def retire(self, name: str, segments: Iterable[Segment], now_s: float) -> None:
        """Nobody new reads these."""
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
