"""The catalogue's file: atomic transactions, refusals, damaged rows and limits.

Everything the data cluster must know after a restart is in this file, and everything large is in Parquet beside it. A
Parquet folder counts from the moment a transaction here names it; one that no transaction names was left behind by a
crash.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from nearcast.errors import NearcastError, UsageError

# --- transactions


Row = sqlite3.Row

_BUSY_S = 10.0


class Database:
    """One connection that all threads of the process take turns to use: transactions here are short.

    It is SQLite, because only one process writes, transactions are atomic even under SIGKILL, and it comes with Python.
    """

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
        """Create the tables of one part of the catalogue if they do not exist: `CREATE TABLE IF NOT EXISTS ...;`"""
        with self._lock:
            self._connection.executescript(tables)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside is committed together or not at all. Inner transactions become part of the outermost."""
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
        """Change something; returns how many rows changed."""
        with self._lock:
            return self._connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Sequence[Sequence[Any]]) -> None:
        with self._lock:
            self._connection.executemany(sql, values)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


# --- refusals


class CatalogRefusal(UsageError):
    """Why the catalogue refuses a call: the problem, and a hint. The HTTP layer picks the status by the class."""

    def __init__(self, problem: str, hint: str) -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(f"{problem}: {hint}")


class Unknown(CatalogRefusal):
    """No such broker, channel, subscription or result."""


class Conflict(CatalogRefusal):
    """The name is taken by something else, or the call would remove something in use."""


class NoLongerKept(CatalogRefusal):
    """It was there, but retention has dropped it."""


class Damaged(CatalogRefusal):
    """It is in the catalogue but cannot be read."""


class WrongParameters(CatalogRefusal):
    """A subscription's parameters are not those that the channel declares."""


class CatalogFull(CatalogRefusal):
    """A limit is reached."""


# --- rows that cannot be read


T = TypeVar("T")

log = logging.getLogger("nearcast.data")


class RowReader(Generic[T]):
    """Reads rows of one kind, which have a name: `RowReader("channel", read)`.

    Rows that cannot be read are left out and reported, so that one of them does not hide all others. Everything written
    is read back first, but another version of the program, a failing disk or a manual edit may still leave such a row.
    An operator must then be able to see it and drop it.
    """

    def __init__(self, kind: str, read: Callable[[Row], T]) -> None:
        self._kind = kind
        self._read = read
        self._told: dict[str, str] = {}  # name -> the problem that was logged

    def readable(self, rows: Iterable[Row]) -> list[T]:
        """The rows that can be read; the others are logged, once."""
        found: list[T] = []
        for row in rows:
            try:
                found.append(self._read(row))
            except _UNREADABLE as error:
                self._tell(row["name"], _first_line(error))
        return found

    def required(self, row: Row) -> T:
        """The row's value; raises `Damaged` if it cannot be read."""
        try:
            return self._read(row)
        except _UNREADABLE as error:
            problem = f"{self._kind} {row['name']} cannot be read from the catalogue ({_first_line(error)})"
            name = row["name"]
            hint = f"restore the catalogue from a backup, or drop the {self._kind}: nearcast {self._kind} drop {name}"
            raise Damaged(problem, hint) from None

    def problems(self, rows: Iterable[Row]) -> list[str]:
        """One description for each row that cannot be read."""
        found = []
        for row in rows:
            try:
                self._read(row)
            except _UNREADABLE as error:
                found.append(f"{self._kind} {row['name']}: {_first_line(error)}")
        return found

    def _tell(self, name: str, problem: str) -> None:
        if self._told.get(name) != problem:
            self._told[name] = problem
            log.error("%s %s cannot be read from the catalogue and is left out: %s", self._kind, name, problem)


_UNREADABLE = (NearcastError, ValueError, TypeError, KeyError)  # msgspec's errors are ValueErrors


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# --- limits


# Old data is dropped in small shares, so that a mistake in the settings can be noticed and stopped.
EXPIRED_SHARE = 0.1  # of a channel's executions, or of a dataset's segments, in one round
EXPIRED_LEAST = 10  # may be dropped at once in any case


class CatalogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each there may be. At a limit the call is refused with a hint; nothing is dropped to make room."""

    brokers: int = 1000
    channels: int = 1000
    subscriptions: int = 1_000_000  # backend ones, of all channels

    def __post_init__(self) -> None:
        require_positive(self)


def require_positive(limits: msgspec.Struct) -> None:
    for name in limits.__struct_fields__:
        if getattr(limits, name) < 1:
            raise UsageError(f"{name} is {getattr(limits, name)}: give at least 1")
