"""The channels: their texts, and what was found out about them when they were created.

`channel_numbers` outlives its channel: a channel of the same name that is created later goes on with the numbers, so
that a subscriber's cursor never stands above an execution that is still to come.
"""

from __future__ import annotations

import time

import msgspec

from nearcast.pipeline.catalog.damage import RowReader
from nearcast.pipeline.catalog.database import Database, Row
from nearcast.pipeline.catalog.refusals import CatalogFull, Conflict, Unknown
from nearcast.pipeline.channels.execution import Prepared

_TABLES = """
CREATE TABLE IF NOT EXISTS channels (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL,
    definition TEXT NOT NULL,      -- JSON of a StoredChannel
    created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS channel_numbers (
    channel TEXT PRIMARY KEY,
    version INTEGER NOT NULL DEFAULT 0,    -- of its subscriptions
    held INTEGER NOT NULL DEFAULT 0,       -- how many subscriptions that version has
    opened INTEGER NOT NULL DEFAULT 0,     -- the last execution that was opened
    committed INTEGER NOT NULL DEFAULT 0,  -- the last one that was committed
    oldest INTEGER NOT NULL DEFAULT 1      -- the first one whose results are kept
);
CREATE TABLE IF NOT EXISTS positions (     -- up to which batch a channel has read a dataset's new records
    channel TEXT NOT NULL,
    dataset TEXT NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (channel, dataset)
);
"""


class StoredChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel that was checked and created."""

    name: str
    text: str
    parameters: dict[str, str]  # name -> Spark type, in the order of the text
    period_s: float
    continuous: bool
    new_datasets: tuple[str, ...]
    whole_datasets: tuple[str, ...]
    columns: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    created_at: float = 0.0
    from_execution: int = 1  # the first that runs this text: numbers go on when a channel is replaced


def described(prepared: Prepared) -> StoredChannel:
    """What is stored of a channel that was checked."""
    channel = prepared.channel
    return StoredChannel(
        name=channel.name,
        text=channel.text,
        parameters=dict(channel.parameters),
        period_s=channel.period_s,
        continuous=channel.continuous,
        new_datasets=channel.new_datasets,
        whole_datasets=channel.whole_datasets,
        columns=prepared.rewritten.columns,
        warnings=prepared.rewritten.warnings,
    )


class Numbers(msgspec.Struct, frozen=True):
    """How far a channel is, and how many subscriptions it has."""

    version: int
    held: int
    opened: int
    committed: int
    oldest: int


class Channels:
    """Created, replaced and dropped. Whoever keeps a StoredChannel asks with `has` whether it is still the one."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self._most = most
        self._reader = RowReader("channel", _stored)
        database.create(_TABLES)

    def create(self, channel: StoredChannel, positions: dict[str, int]) -> bool:
        """Store it, to see what comes after these positions of its NEW datasets; False if it was there already."""
        with self._database.transaction():
            if (there := self._row(channel.name)) is not None:
                if there["text"] == channel.text:
                    return False
                problem = f"there is another channel {channel.name}"
                raise Conflict(problem, "choose another name, or replace it: CREATE OR REPLACE CHANNEL ...")
            if len(self.all()) >= self._most:
                raise CatalogFull(f"there are {self._most} channels", "drop one, or raise the limit")
            self._database.run("INSERT OR IGNORE INTO channel_numbers (channel) VALUES (?)", (channel.name,))
            self._put(channel, positions)
            return True

    def replace(self, channel: StoredChannel, positions: dict[str, int]) -> None:
        """Another text under the name, from these positions on. The caller has closed the open execution."""
        with self._database.transaction():
            self.drop(channel.name)
            self._put(channel, positions)

    def get(self, name: str) -> StoredChannel:
        row = self._row(name)
        if row is None:
            there = ", ".join(channel.name for channel in self.all()) or "none"
            raise Unknown(f"unknown channel {name}", f"there are: {there}")
        return self._reader.required(row)

    def exists(self, name: str) -> bool:
        return self._row(name) is not None

    def has(self, channel: StoredChannel) -> bool:
        """This very channel, not one of the same name that was created since."""
        row = self._row(channel.name)
        return row is not None and self._reader.required(row) == channel

    def all(self) -> list[StoredChannel]:
        return self._reader.readable(self._rows())

    def damaged(self) -> list[str]:
        """What is wrong with those that cannot be read."""
        return self._reader.problems(self._rows())

    def numbers(self, name: str) -> Numbers:
        sql = "SELECT version, held, opened, committed, oldest FROM channel_numbers WHERE channel = ?"
        row = self._database.row(sql, (name,))
        return Numbers(*row) if row is not None else Numbers(0, 0, 0, 0, 1)

    def positions(self, name: str) -> dict[str, int]:
        """For each NEW dataset, the last batch that an execution was opened for."""
        rows = self._database.rows("SELECT dataset, upto FROM positions WHERE channel = ?", (name,))
        return {row["dataset"]: row["upto"] for row in rows}

    def advance(self, name: str, positions: dict[str, int]) -> None:
        values = [(name, dataset, upto) for dataset, upto in positions.items()]
        self._database.run_many("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", values)

    def readers(self, dataset: str) -> list[str]:
        """The channels that read a dataset, new or whole."""
        return [c.name for c in self.all() if dataset in (*c.new_datasets, *c.whole_datasets)]

    def drop(self, name: str) -> None:
        """The caller drops its subscriptions and executions, in the same transaction."""
        self._database.run("DELETE FROM channels WHERE name = ?", (name,))
        self._database.run("DELETE FROM positions WHERE channel = ?", (name,))

    def _put(self, channel: StoredChannel, positions: dict[str, int]) -> None:
        first = self.numbers(channel.name).opened + 1
        stored = msgspec.structs.replace(channel, created_at=time.time(), from_execution=first)
        self._database.run(
            "INSERT INTO channels VALUES (?, ?, ?, ?)",
            (stored.name, stored.text, _definition(stored), stored.created_at),
        )
        self.advance(stored.name, positions)

    def _rows(self) -> list[Row]:
        return self._database.rows("SELECT * FROM channels ORDER BY name")

    def _row(self, name: str) -> Row | None:
        return self._database.row("SELECT * FROM channels WHERE name = ?", (name,))


def _stored(row: Row) -> StoredChannel:
    return msgspec.json.decode(row["definition"], type=StoredChannel)


def _definition(channel: StoredChannel) -> str:
    """As JSON that reads back as the same: numbers that JSON does not have become null there."""
    text = msgspec.json.encode(channel)
    if msgspec.json.decode(text, type=StoredChannel) != channel:
        raise Conflict(f"channel {channel.name} cannot be stored as it is", "write it more simply")
    return text.decode()
