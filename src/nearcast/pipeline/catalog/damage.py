"""Rows of the catalogue that cannot be read: set aside and told, so that one of them does not hide all others.

Nothing should ever store such a row: what is written is read back first. A newer or older program, a disk or a person
with an editor may do it all the same, and then an operator must be able to see it and to drop it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from nearcast.errors import NearcastError
from nearcast.pipeline.catalog.database import Row
from nearcast.pipeline.catalog.refusals import Damaged

T = TypeVar("T")

log = logging.getLogger("nearcast.data")


class RowReader(Generic[T]):
    """Reads rows of one kind, which have a name: `RowReader("channel", read)`."""

    def __init__(self, kind: str, read: Callable[[Row], T]) -> None:
        self._kind = kind
        self._read = read
        self._told: dict[str, str] = {}  # name -> the problem that was logged

    def readable(self, rows: Iterable[Row]) -> list[T]:
        """Those that can be read; the log tells of the others, once."""
        found: list[T] = []
        for row in rows:
            try:
                found.append(self._read(row))
            except _UNREADABLE as error:
                self._tell(row["name"], _first_line(error))
        return found

    def required(self, row: Row) -> T:
        """The one that was asked for; raises `Damaged` if it cannot be read."""
        try:
            return self._read(row)
        except _UNREADABLE as error:
            problem = f"{self._kind} {row['name']} cannot be read from the catalogue ({_first_line(error)})"
            hint = f"restore the catalogue from a copy, or drop it: nearcast {self._kind} drop {row['name']}"
            raise Damaged(problem, hint) from None

    def problems(self, rows: Iterable[Row]) -> list[str]:
        """What is wrong with those that cannot be read, in words."""
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
