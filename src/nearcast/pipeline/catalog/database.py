"""The catalogue's file: transactions that are whole or not there, also after SIGKILL.

Everything the data cluster must know after a restart is in this file, and everything large is in Parquet beside it. A
Parquet folder counts from the moment a transaction here names it; one that no transaction names is rubbish of a crash.

SQLite, because one process writes, its transactions survive a kill, and it comes with Python.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = sqlite3.Row

_BUSY_S = 10.0


class Database:
    """One connection for all threads of the process, one of them at a time: transactions here are short."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(file, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")  # what was committed survives a power cut too
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._lock = threading.RLock()
        self._depth = 0

    def create(self, tables: str) -> None:
        """Make the tables of one part of the catalogue unless they are there: `CREATE TABLE IF NOT EXISTS ...;`"""
        with self._lock:
            self._connection.executescript(tables)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything done inside is committed together, or not at all. Inner ones belong to the outermost."""
        with self._lock:
            if not self._depth:
                self._connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._depth -= 1
                if not self._depth:
                    self._connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if not self._depth:
                self._connection.execute("COMMIT")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        """The first row, or None."""
        found = self.rows(sql, values)
        return found[0] if found else None

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Change something; how many rows were."""
        with self._lock:
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        with self._lock:
            self._connection.executemany(sql, values)

    def close(self) -> None:
        with self._lock:
            self._connection.close()
