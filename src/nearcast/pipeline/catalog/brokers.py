"""The brokers that hold subscriptions: their names, where their gateways are, and when each was heard of last.

A broker that is silent for long, while others are heard, does not come back as a rule. By the running time, which no
clock that is set moves; if all are silent the fault is on this side, and none of them counts as gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.refusals import CatalogFull, Unknown

_TABLES = """
CREATE TABLE IF NOT EXISTS brokers (
    name TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    created_at REAL NOT NULL,
    heard_s REAL NOT NULL          -- by the running time
);
"""
_NOTED_S = 60.0  # a broker that asks all the time is noted so often


class Brokers:
    """Each broker is registered once, and may say again where it is."""

    def __init__(self, database: Database, most: int, clock: Callable[[], float]) -> None:
        self._database = database
        self._most = most
        self._clock = clock
        database.create(_TABLES)

    def put(self, name: str, url: str) -> bool:
        """True if the broker is new."""
        with self._database.transaction():
            changed = "UPDATE brokers SET url = ?, heard_s = ? WHERE name = ?"
            if self._database.run(changed, (url, self._clock(), name)):
                return False
            if len(self.all()) >= self._most:
                raise CatalogFull(f"there are {self._most} brokers", "delete one that is gone, or raise the limit")
            self._database.run("INSERT INTO brokers VALUES (?, ?, ?, ?)", (name, url, time.time(), self._clock()))
            return True

    def require(self, name: str) -> None:
        if self._database.row("SELECT 1 FROM brokers WHERE name = ?", (name,)) is None:
            raise Unknown(f"unknown broker {name}", f"register it first: PUT /brokers/{name}")

    def heard(self, name: str) -> None:
        """It asks for something, so it is there; raises as `require`."""
        self.require(name)
        now_s = self._clock()
        old = "SELECT 1 FROM brokers WHERE name = ? AND heard_s < ?"
        if self._database.row(old, (name, now_s - _NOTED_S)) is not None:
            self._database.run("UPDATE brokers SET heard_s = ? WHERE name = ?", (now_s, name))

    def silent(self, for_s: float) -> list[str]:
        """Those heard of so long before the last word of any, the longest silent first."""
        sql = "SELECT name FROM brokers WHERE heard_s < (SELECT max(heard_s) FROM brokers) - ? ORDER BY heard_s, name"
        return [row["name"] for row in self._database.rows(sql, (for_s,))]

    def all(self) -> dict[str, str]:
        """name -> URL"""
        return {row["name"]: row["url"] for row in self._database.rows("SELECT name, url FROM brokers ORDER BY name")}

    def drop(self, name: str) -> None:
        """The caller ends what it held, or housekeeping does."""
        self._database.run("DELETE FROM brokers WHERE name = ?", (name,))
