"""The brokers that hold subscriptions: their names, and where their gateways are."""

from __future__ import annotations

import time

from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.refusals import CatalogFull, Unknown

_TABLES = """
CREATE TABLE IF NOT EXISTS brokers (name TEXT PRIMARY KEY, url TEXT NOT NULL, created_at REAL NOT NULL);
"""


class Brokers:
    """Each broker is registered once, and may say again where it is."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self._most = most
        database.create(_TABLES)

    def put(self, name: str, url: str) -> bool:
        """True if the broker is new."""
        with self._database.transaction():
            if self._database.run("UPDATE brokers SET url = ? WHERE name = ?", (url, name)):
                return False
            if len(self.all()) >= self._most:
                raise CatalogFull(f"there are {self._most} brokers", "delete one that is gone, or raise the limit")
            self._database.run("INSERT INTO brokers VALUES (?, ?, ?)", (name, url, time.time()))
            return True

    def require(self, name: str) -> None:
        if self._database.row("SELECT 1 FROM brokers WHERE name = ?", (name,)) is None:
            raise Unknown(f"unknown broker {name}", f"register it first: PUT /brokers/{name}")

    def all(self) -> dict[str, str]:
        """name -> URL"""
        return {row["name"]: row["url"] for row in self._database.rows("SELECT name, url FROM brokers ORDER BY name")}

    def drop(self, name: str) -> None:
        """The caller ends what it held, in the same transaction."""
        self._database.run("DELETE FROM brokers WHERE name = ?", (name,))
