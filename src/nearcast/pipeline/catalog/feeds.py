"""Feeds in the catalogue: what each reads, what became of its messages, and how far their logs were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.database import Database, Row

_TABLES = """
CREATE TABLE IF NOT EXISTS log_feeds (
    name TEXT PRIMARY KEY,      -- also the name of the dataset that it fills
    topic TEXT NOT NULL,
    format TEXT NOT NULL,
    log TEXT NOT NULL,          -- its key
    since TEXT NOT NULL,        -- JSON: stream -> position
    records INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    parts_lost INTEGER NOT NULL DEFAULT 0,
    commits INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS feed_dead_letters (
    feed TEXT NOT NULL REFERENCES log_feeds (name) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    PRIMARY KEY (feed, number)
);
CREATE TABLE IF NOT EXISTS log_positions (
    stream TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    entry TEXT NOT NULL DEFAULT '',             -- the last one that was read whole
    entry_position INTEGER NOT NULL DEFAULT 0   -- at its end
);
CREATE TABLE IF NOT EXISTS feeds_query (only INTEGER PRIMARY KEY CHECK (only = 1), spark_batch INTEGER NOT NULL);
"""

FORMATS = ("json", "msgpack")


class FeedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a feed's messages since it was created."""

    records: int = 0  # in the dataset, before older ones of a key were dropped
    dead: int = 0  # that could not be read
    lost: int = 0  # gone from their log before they were read
    parts_lost: int = 0  # parts that were lost with their server, with an unknown number of messages
    commits: int = 0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A feed: the topics it reads (a name or a pattern), the format of their messages, and the log that keeps them."""

    name: str
    topic: str
    format: str
    log: str  # its key
    since: Mapping[str, int] = {}  # stream -> its position when the feed was created: only what follows is for the feed
    progress: FeedProgress = FeedProgress()


class ReadEntry(NamedTuple):
    """An entry of a part, and the position at its end."""

    entry: str
    position: int


class FeedCatalog:
    """The feeds, their dead letters, and how far their logs were read.

    The caller puts changes that belong together into one transaction of the database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create(_TABLES)

    def all(self) -> list[Feed]:
        return [_feed(row) for row in self._database.rows("SELECT * FROM log_feeds ORDER BY name")]

    def find(self, name: str) -> Feed | None:
        row = self._database.row("SELECT * FROM log_feeds WHERE name = ?", [name])
        return _feed(row) if row is not None else None

    def get(self, name: str) -> Feed:
        found = self.find(name)
        if found is None:
            there = ", ".join(feed.name for feed in self.all()) or "none"
            raise UsageError(f"unknown feed {name!r}: the feeds are {there}")
        return found

    def add(self, feed: Feed) -> None:
        self._database.run(
            "INSERT INTO log_feeds (name, topic, format, log, since) VALUES (?, ?, ?, ?, ?)",
            [feed.name, feed.topic, feed.format, feed.log, msgspec.json.encode(feed.since, order="sorted").decode()],
        )

    def remove(self, name: str) -> None:
        self._database.run("DELETE FROM log_feeds WHERE name = ?", [name])

    def advance(self, name: str, progress: FeedProgress, *, dead_letters: bool) -> None:
        """A batch was committed; `dead_letters`: it has dead letters, stored under the number of the commit."""
        values = msgspec.structs.asdict(progress)
        changes = ", ".join(f"{column} = ?" for column in values)
        self._database.run(f"UPDATE log_feeds SET {changes} WHERE name = ?", [*values.values(), name])
        if dead_letters:
            self._database.run("INSERT INTO feed_dead_letters (feed, number) VALUES (?, ?)", [name, progress.commits])

    def dead_letters(self, name: str) -> list[int]:
        """The commits whose dead letters are still kept, newest first."""
        rows = self._database.rows("SELECT number FROM feed_dead_letters WHERE feed = ? ORDER BY number DESC", [name])
        return [row["number"] for row in rows]

    def forget_dead_letters(self, name: str, upto: int) -> None:
        self._database.run("DELETE FROM feed_dead_letters WHERE feed = ? AND number <= ?", [name, upto])

    # --- the query of all feeds

    def spark_batch(self) -> int:
        """The newest committed batch of the query, as numbered in Spark's checkpoint; -1 if there is none."""
        row = self._database.row("SELECT spark_batch FROM feeds_query")
        return int(row["spark_batch"]) if row is not None else -1

    def positions(self) -> dict[str, int]:
        """How far each part was read, by stream."""
        return {row["stream"]: row["position"] for row in self._database.rows("SELECT * FROM log_positions")}

    def entries(self) -> dict[str, ReadEntry]:
        """The last entry of each part that was read whole, by stream."""
        rows = self._database.rows("SELECT * FROM log_positions WHERE entry != ''")
        return {row["stream"]: ReadEntry(row["entry"], row["entry_position"]) for row in rows}

    def reached(self, spark_batch: int, positions: Mapping[str, int], entries: Mapping[str, ReadEntry]) -> None:
        """A batch was committed, with these parts read up to these positions, and some more entries of them whole."""
        self._database.run("REPLACE INTO feeds_query VALUES (1, ?)", [spark_batch])
        self._database.run_many(
            "INSERT INTO log_positions (stream, position) VALUES (?, ?) "
            "ON CONFLICT (stream) DO UPDATE SET position = excluded.position",
            list(positions.items()),
        )
        self._database.run_many(
            "UPDATE log_positions SET entry = ?, entry_position = ? WHERE stream = ?",
            [(*entry, stream) for stream, entry in entries.items()],
        )

    def begin(self, positions: Mapping[str, int]) -> None:
        """No feed reads a log yet: of its parts, those not read before are read from these positions on."""
        self._database.run_many(
            "INSERT OR IGNORE INTO log_positions (stream, position) VALUES (?, ?)", list(positions.items())
        )


def _feed(row: Row) -> Feed:
    progress = FeedProgress(**{name: row[name] for name in FeedProgress.__struct_fields__})
    since = msgspec.json.decode(row["since"], type=dict[str, int])
    return Feed(
        name=row["name"], topic=row["topic"], format=row["format"], log=row["log"], since=since, progress=progress
    )
