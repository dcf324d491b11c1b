"""The whole catalogue of a data cluster's folder, and the changes that affect several of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from nearcast.pipeline.catalog.channels import Channels, StoredChannel
from nearcast.pipeline.catalog.database import CatalogFull, CatalogLimits, Conflict, Database, Unknown
from nearcast.pipeline.catalog.datasets import DatasetCatalog
from nearcast.pipeline.catalog.executions import Execution, Executions, Measures, Outcomes, RunningTime
from nearcast.pipeline.catalog.feeds import FeedCatalog
from nearcast.pipeline.catalog.subscriptions import Subscriptions
from nearcast.pipeline.datasets import Datasets
from nearcast.pipeline.storage import Warehouse

# --- brokers


_TABLES = """
CREATE TABLE IF NOT EXISTS brokers (
    name TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    created_at REAL NOT NULL,
    heard_s REAL NOT NULL          -- by the running time
);
"""
_NOTED_S = 60.0  # a broker that asks constantly is noted this often


class Brokers:
    """The brokers that hold subscriptions: where their gateways are, and when each was last heard from.

    A broker is registered once, and may repeat its URL. One that stays silent while others are heard will usually not
    come back. Silence is measured by the running time, which no clock change affects. If all are silent the fault is
    on this side, and none of them counts as gone.
    """

    def __init__(self, database: Database, most: int, clock: Callable[[], float]) -> None:
        self._database = database
        self._most = most
        self._clock = clock
        database.create(_TABLES)

    def put(self, name: str, url: str) -> bool:
        """Register a broker or update its URL; True if it is new."""
        with self._database.transaction():
            changed = "UPDATE brokers SET url = ?, heard_s = ? WHERE name = ?"
            if self._database.run(changed, (url, self._clock(), name)):
                return False
            if len(self.all()) >= self._most:
                raise CatalogFull(
                    f"the limit of {self._most} brokers is reached", "delete one that is gone, or raise the limit"
                )
            self._database.run("INSERT INTO brokers VALUES (?, ?, ?, ?)", (name, url, time.time(), self._clock()))
            return True

    def require(self, name: str) -> None:
        if self._database.row("SELECT 1 FROM brokers WHERE name = ?", (name,)) is None:
            raise Unknown(f"unknown broker {name}", f"register it first: PUT /brokers/{name}")

    def heard(self, name: str) -> None:
        """Note that the broker is alive, because it sent a request; raises as `require` does."""
        self.require(name)
        now_s = self._clock()
        old = "SELECT 1 FROM brokers WHERE name = ? AND heard_s < ?"
        if self._database.row(old, (name, now_s - _NOTED_S)) is not None:
            self._database.run("UPDATE brokers SET heard_s = ? WHERE name = ?", (now_s, name))

    def silent(self, for_s: float) -> list[str]:
        """Brokers last heard from more than this long before the most recent one, the longest silent first."""
        sql = "SELECT name FROM brokers WHERE heard_s < (SELECT max(heard_s) FROM brokers) - ? ORDER BY heard_s, name"
        return [row["name"] for row in self._database.rows(sql, (for_s,))]

    def all(self) -> dict[str, str]:
        """name -> URL"""
        return {row["name"]: row["url"] for row in self._database.rows("SELECT name, url FROM brokers ORDER BY name")}

    def drop(self, name: str) -> None:
        """Forget the broker. The caller or housekeeping ends its subscriptions."""
        self._database.run("DELETE FROM brokers WHERE name = ?", (name,))


class Made(StrEnum):
    """What happened to a channel that was created."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


# --- the catalogue


class Catalog:
    """The catalogue of a folder. Each process opens it once."""

    def __init__(self, folder: Path, limits: CatalogLimits | None = None) -> None:
        most = limits or CatalogLimits()
        self.warehouse = Warehouse(folder)
        self.database = Database(self.warehouse.catalog)
        self.clock = RunningTime(self.database)
        self.datasets = Datasets(self.database, self.warehouse, self.clock)
        self.brokers = Brokers(self.database, most.brokers, self.clock)
        self.channels = Channels(self.database, most.channels)
        self.subscriptions = Subscriptions(self.database, self.channels, most.subscriptions)
        self.executions = Executions(self.database, self.channels, self.clock)
        self.outcomes = Outcomes(self.database, self.channels, self.clock)
        self.feeds = FeedCatalog(self.database)
        self._batches = DatasetCatalog(self.database)

    def create_channel(self, channel: StoredChannel, *, replaces: bool = False) -> Made:
        """The channel sees records committed from now on, or continues where the one it replaces stopped."""
        with self.database.transaction():
            if replaces and self.channels.exists(channel.name):
                return Made.REPLACED if self._replace(channel) else Made.UNCHANGED
            positions = {name: self.datasets.position(name) for name in channel.new_datasets}
            return Made.CREATED if self.channels.create(channel, positions) else Made.UNCHANGED

    def _replace(self, channel: StoredChannel) -> bool:
        """Give the same subscriptions another text, including those that failed with the old one; False if it is equal.

        An open execution ends without results: its runner will find nothing to commit, and the next execution reads
        its records.
        """
        there = self.channels.get(channel.name)
        if there.text == channel.text:
            return False
        if there.parameters != channel.parameters:
            problem = f"channel {channel.name} has parameters {_listed(there)}, but the new text has {_listed(channel)}"
            raise Conflict(problem, "keep them, because subscriptions have values for them, or choose another name")
        read = self.channels.positions(channel.name)
        for execution in self.executions.open(channel.name):
            read |= {name: after for name, (after, _) in execution.inputs.new.items()}
            self.executions.commit(execution, {}, Measures(problem="the channel was replaced"))
        self.subscriptions.try_again(channel.name)
        new = {name: read.get(name, self.datasets.position(name)) for name in channel.new_datasets}
        self.channels.replace(channel, new)
        return True

    def drop_channel(self, name: str) -> None:
        with self.database.transaction():
            if not self.channels.exists(name):
                self.channels.get(name)  # raises, and lists the channels
            self.subscriptions.drop_channel(name)
            self.executions.drop_channel(name)
            self.channels.drop(name)

    def drop_broker(self, name: str) -> None:
        with self.database.transaction():
            self.subscriptions.drop_broker(name)
            self.brokers.drop(name)

    def drop_dataset(self, name: str) -> None:
        """Drop it, unless a channel reads it or a feed fills it."""
        with self.database.transaction():
            if not self.datasets.exists(name):
                self.datasets.describe(name)  # raises, and lists the datasets
            readers = self.channels.readers(name)
            if readers:
                raise Conflict(f"dataset {name} is read by {', '.join(readers)}", "drop those channels first")
            if self.feeds.find(name) is not None:
                raise Conflict(f"dataset {name} is filled by a feed", f"drop it first: nearcast feed drop {name}")
            self.datasets.drop(name)

    def damaged(self) -> list[str]:
        """Channels and datasets that cannot be read, each with the reason."""
        return [*self.channels.damaged(), *self.datasets.damaged()]

    def next_execution(self, channel: StoredChannel) -> Execution | None:
        """The execution of a channel to run now, recorded as open; None if there is nothing to do."""
        with self.database.transaction():
            if not self.channels.has(channel):
                return None  # dropped
            read = (*channel.new_datasets, *channel.whole_datasets)
            return self.executions.next(channel, {name: self.datasets.position(name) for name in read})

    def set_aside(self, execution: Execution, problems: Mapping[str, str]) -> bool:
        """Leave these subscriptions out from now on; False if the execution that they fail is no longer open."""
        with self.database.transaction():
            if all(execution.number != there.number for there in self.executions.open(execution.channel)):
                return False
            self.subscriptions.set_aside(execution.channel, execution.version, problems)
            return True

    def new_rows(self, execution: Execution) -> dict[str, int]:
        """How many records an execution reads from each NEW dataset, before only the newest of each key are kept."""
        return {
            name: sum(batch.rows for batch in self._batches.segments(name, upto) if batch.last > after)
            for name, (after, upto) in execution.inputs.new.items()
        }

    def newest_s(self, execution: Execution) -> float | None:
        """When the newest record that an execution reads as new was committed to its dataset, by `clock`."""
        return max(
            (
                batch.made_s
                for name, (after, upto) in execution.inputs.new.items()
                for batch in self._batches.segments(name, upto)
                if batch.last > after
            ),
            default=None,
        )

    def close(self) -> None:
        self.database.close()


def _listed(channel: StoredChannel) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in channel.parameters.items()) or "none"
