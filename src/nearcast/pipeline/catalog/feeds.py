"""The feeds in the catalogue: what each reads, how far it was read, and its dead letters."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.database import Database, Row
from nearcast.runtime.feed_keys import feed_keys

_TABLES = """
CREATE TABLE IF NOT EXISTS feeds (
    name TEXT PRIMARY KEY,      -- also of the dataset that it fills
    topic TEXT NOT NULL,
    format TEXT NOT NULL,
    spark_batch INTEGER NOT NULL DEFAULT -1,   -- the newest that was committed, by the numbers of Spark's checkpoint
    read_to TEXT NOT NULL DEFAULT '0-0',       -- the id of its last record in the stream
    records INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    gaps INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    remade INTEGER NOT NULL DEFAULT 0,
    commits INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS dead_letters (
    feed TEXT NOT NULL REFERENCES feeds (name) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    PRIMARY KEY (feed, number)
);
"""

FORMATS = ("json", "msgpack")


class FeedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a feed was read, and what became of its messages since it was made."""

    spark_batch: int = -1
    read_to: str = "0-0"
    records: int = 0  # in the dataset, before older ones of a key were dropped
    dead: int = 0  # that could not be read
    gaps: int = 0  # reports of messages that the collector did not get
    lost: int = 0  # dropped from the stream before they were read
    remade: int = 0  # how often the stream was gone, with what was unread in it: nobody knows how much
    commits: int = 0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """A feed: the topics it reads (a name or a pattern) and how their messages are written."""

    name: str
    topic: str
    format: str
    progress: FeedProgress = FeedProgress()

    @property
    def stream(self) -> str:
        """Where collectors put its messages."""
        return feed_keys(self.name).stream


class FeedCatalog:
    """Rows of the two tables. Several changes that belong together: in a transaction of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.create(_TABLES)

    def all(self) -> list[Feed]:
        return [_feed(row) for row in self._database.rows("SELECT * FROM feeds ORDER BY name")]

    def find(self, name: str) -> Feed | None:
        row = self._database.row("SELECT * FROM feeds WHERE name = ?", [name])
        return _feed(row) if row is not None else None

    def get(self, name: str) -> Feed:
        found = self.find(name)
        if found is None:
            there = ", ".join(feed.name for feed in self.all()) or "none"
            raise UsageError(f"no feed {name!r}: there are {there}")
        return found

    def add(self, feed: Feed) -> None:
        self._database.run(
            "INSERT INTO feeds (name, topic, format) VALUES (?, ?, ?)", [feed.name, feed.topic, feed.format]
        )

    def remove(self, name: str) -> None:
        self._database.run("DELETE FROM feeds WHERE name = ?", [name])

    def advance(self, name: str, progress: FeedProgress, *, dead_letters: bool) -> None:
        """A batch was committed; `dead_letters`: it has some, under the number of the commit."""
        values = msgspec.structs.asdict(progress)
        changes = ", ".join(f"{column} = ?" for column in values)
        self._database.run(f"UPDATE feeds SET {changes} WHERE name = ?", [*values.values(), name])
        if dead_letters:
            self._database.run("INSERT INTO dead_letters (feed, number) VALUES (?, ?)", [name, progress.commits])

    def dead_letters(self, name: str) -> list[int]:
        """The commits that have dead letters which are still kept, newest first."""
        rows = self._database.rows("SELECT number FROM dead_letters WHERE feed = ? ORDER BY number DESC", [name])
        return [row["number"] for row in rows]

    def forget_dead_letters(self, name: str, upto: int) -> None:
        self._database.run("DELETE FROM dead_letters WHERE feed = ? AND number <= ?", [name, upto])


def _feed(row: Row) -> Feed:
    progress = FeedProgress(**{name: row[name] for name in FeedProgress.__struct_fields__})
    return Feed(name=row["name"], topic=row["topic"], format=row["format"], progress=progress)
