"""The executions of channels: opened with what they read, committed with what they gave.

Executions of a channel have the numbers 1, 2, 3 ... and run one after the other. Opening one notes in one transaction
its number, its inputs and the version of the subscriptions it answers; committing it adds, in one transaction, the
index of its results. Between the two a crash costs time alone: the open execution is run again with what was noted,
and its results, the same, are committed once.

An execution is opened only for new records. Without any, nothing happens at all; without subscriptions the channel's
positions move on, so that who subscribes later is not told of what was before.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping

import msgspec

from nearcast.pipeline.catalog.channels import Channels, StoredChannel
from nearcast.pipeline.catalog.database import Database, Row

_TABLES = """
CREATE TABLE IF NOT EXISTS executions (
    channel TEXT NOT NULL,
    number INTEGER NOT NULL,
    version INTEGER NOT NULL,      -- of the subscriptions it answers
    inputs TEXT NOT NULL,          -- JSON of Inputs
    opened_at REAL NOT NULL,
    committed_at REAL,             -- NULL: open
    kept_since_s REAL,             -- when it was committed, by the running time: so it grows old
    fetched INTEGER NOT NULL DEFAULT 0,  -- somebody was given results of it
    measures TEXT,                 -- JSON of Measures
    plan BLOB,                     -- zlib
    PRIMARY KEY (channel, number)
);
CREATE TABLE IF NOT EXISTS results (
    channel TEXT NOT NULL,
    number INTEGER NOT NULL,
    subscription TEXT NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (channel, number, subscription)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS results_of_subscription ON results (subscription, number);
CREATE TABLE IF NOT EXISTS notifications (
    cursor INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice, also when the newest rows are dropped
    channel TEXT NOT NULL,
    number INTEGER NOT NULL
);
"""


class Inputs(msgspec.Struct, frozen=True):
    """What an execution reads."""

    new: dict[str, tuple[int, int]]  # dataset -> (after, upto]
    whole: dict[str, int]  # dataset -> upto


class Execution(msgspec.Struct, frozen=True):
    """An open execution."""

    channel: str
    number: int
    version: int
    inputs: Inputs
    opened_s: float  # what the query takes for the current time


class Size(msgspec.Struct, frozen=True):
    """What one subscription got from an execution."""

    rows: int
    bytes: int


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """What an execution cost."""

    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0  # reading, running, writing
    latency_s: float | None = None  # from the newest record's ingestion to the commit; None: not known
    problem: str = ""  # why it ended without results


class Executions:
    """One open execution of a channel at most. `committed` callbacks run in the committing thread."""

    def __init__(self, database: Database, channels: Channels, clock: Callable[[], float]) -> None:
        self._database = database
        self._channels = channels
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        database.create(_TABLES)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call this after each commit that notifies somebody."""
        self._listeners.append(callback)

    def next(self, channel: StoredChannel, positions: Mapping[str, int]) -> Execution | None:
        """The execution to run now: the open one, or a new one up to these positions; None if there is nothing to do.

        `positions`: the newest committed batch of each dataset that the channel reads.
        """
        with self._database.transaction():
            for execution in self.open(channel.name):
                return execution
            before = self._channels.positions(channel.name)
            new = {name: (before.get(name, 0), positions[name]) for name in channel.new_datasets}
            if all(upto <= after for after, upto in new.values()):
                return None
            self._channels.advance(channel.name, {name: upto for name, (_, upto) in new.items()})
            numbers = self._channels.numbers(channel.name)
            if not numbers.held:
                return None
            inputs = Inputs(new, {name: positions[name] for name in channel.whole_datasets})
            execution = Execution(channel.name, numbers.opened + 1, numbers.version, inputs, time.time())
            self._store(execution)
            return execution

    def open(self, channel: str | None = None) -> list[Execution]:
        """Those that are not committed, of one channel or of all."""
        sql = "SELECT * FROM executions WHERE committed_at IS NULL AND channel = coalesce(?, channel) ORDER BY channel"
        return [_execution(row) for row in self._database.rows(sql, (channel,))]

    def commit(
        self, execution: Execution, index: Mapping[str, Size], measures: Measures | None = None, plan: str = ""
    ) -> bool:
        """The results are there and count; False if the execution is not open: its channel was dropped or replaced."""
        key = (execution.channel, execution.number)
        found = measures or Measures(rows_out=sum(size.rows for size in index.values()))
        with self._database.transaction():
            changed = self._database.run(
                "UPDATE executions SET committed_at = ?, kept_since_s = ?, measures = ?, plan = ? "
                "WHERE channel = ? AND number = ? AND committed_at IS NULL",
                (time.time(), self._clock(), msgspec.json.encode(found).decode(), zlib.compress(plan.encode()), *key),
            )
            if not changed:
                return False
            values = [(*key, subscription, size.rows, size.bytes) for subscription, size in index.items()]
            self._database.run_many("INSERT INTO results VALUES (?, ?, ?, ?, ?)", values)
            self._database.run("UPDATE channel_numbers SET committed = ? WHERE channel = ?", (key[1], key[0]))
            if index:
                self._database.run("INSERT INTO notifications (channel, number) VALUES (?, ?)", key)
        if index:
            for callback in self._listeners:
                callback()
        return True

    def drop_channel(self, channel: str) -> None:
        """Nothing of it is kept, and an open execution will find nothing to commit. Retention removes the files."""
        with self._database.transaction():
            for table in ("results", "notifications"):
                self._database.run(f"DELETE FROM {table} WHERE channel = ?", (channel,))
            sql = "UPDATE executions SET committed_at = ? WHERE channel = ? AND committed_at IS NULL"
            self._database.run(sql, (time.time(), channel))
            sql = "UPDATE channel_numbers SET committed = opened, oldest = opened + 1 WHERE channel = ?"
            self._database.run(sql, (channel,))

    def floor(self, dataset: str, position: int) -> int:
        """The oldest position of a dataset that an execution, open or to come, may still ask for."""
        read = [positions[dataset] for positions in self._all_positions() if dataset in positions]
        for execution in self.open():
            if dataset in execution.inputs.new:
                read.append(execution.inputs.new[dataset][0])
            if dataset in execution.inputs.whole:
                read.append(execution.inputs.whole[dataset])
        return min([position, *read])

    def _all_positions(self) -> list[dict[str, int]]:
        return [self._channels.positions(channel.name) for channel in self._channels.all()]

    def _store(self, execution: Execution) -> None:
        inputs = msgspec.json.encode(execution.inputs).decode()
        self._database.run(
            "INSERT INTO executions (channel, number, version, inputs, opened_at) VALUES (?, ?, ?, ?, ?)",
            (execution.channel, execution.number, execution.version, inputs, execution.opened_s),
        )
        sql = "UPDATE channel_numbers SET opened = ? WHERE channel = ?"
        self._database.run(sql, (execution.number, execution.channel))


def _execution(row: Row) -> Execution:
    inputs = msgspec.json.decode(row["inputs"], type=Inputs)
    return Execution(row["channel"], row["number"], row["version"], inputs, row["opened_at"])
