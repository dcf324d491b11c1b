"""The part of the catalogue that knows telemetry: which files of sums count, and how far the stream was read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.io import Warehouse
from nearcast.pipeline.sources.offsets import BEGINNING

TOPICS, BROKERS = "topics", "brokers"  # the tables of sums

_TABLES = """
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
    """How far the stream of reports was read, and what was found."""

    spark_batch: int = -1  # the last that was committed here, by the checkpoint's count
    read_to: str = BEGINNING
    commits: int = 0
    reports: int = 0
    malformed: int = 0  # records that are no reports
    lost: int = 0  # records dropped from the stream before they were read


class SumFile(msgspec.Struct, frozen=True, order=True):
    """A folder of sums. Level 0 is what one batch wrote; a file of level n was merged from files of level n - 1."""

    name: str  # of the table: topics, brokers
    level: int
    number: int
    from_s: int  # its first window
    upto_s: int  # its last
    bytes: int


def sums_path(warehouse: Warehouse, name: str, level: int, number: int) -> Path:
    return warehouse.telemetry(f"{name}-{level}", number)


class TelemetryCatalog:
    def __init__(self, database: Database) -> None:
        self._database = database
        database.create(_TABLES)

    def progress(self) -> Progress:
        row = self._database.row("SELECT * FROM telemetry_progress")
        return Progress() if row is None else Progress(**{name: row[name] for name in Progress.__struct_fields__})

    def files(self, name: str, since_s: float = 0.0) -> list[SumFile]:
        """Those of a table with windows from `since_s` on."""
        sql = "SELECT * FROM telemetry_files WHERE name = ? AND upto_s >= ? ORDER BY level, number"
        return [SumFile(*row) for row in self._database.rows(sql, (name, since_s))]

    def commit(self, progress: Progress, files: list[SumFile]) -> None:
        """A batch was written: it counts from now on."""
        with self._database.transaction():
            self.note(progress)
            self._add(files)

    def note(self, progress: Progress) -> None:
        values = msgspec.structs.astuple(progress)
        self._database.run(f"REPLACE INTO telemetry_progress VALUES (1{', ?' * len(values)})", values)

    def replace(self, merged: list[SumFile], by: list[SumFile]) -> None:
        """Files were merged, or are too old to be kept."""
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
