"""The executions of channels: opened with their inputs, committed with their results, kept for a while.

`Executions` opens and commits them, `Outcomes` answers questions about what was committed, and `RunningTime` is the
clock by which results expire.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from nearcast.pipeline.catalog.channels import Channels, StoredChannel
from nearcast.pipeline.catalog.database import EXPIRED_LEAST, EXPIRED_SHARE, Database, NoLongerKept, Row, Unknown

# --- executions


_EXECUTION_TABLES = """
CREATE TABLE IF NOT EXISTS executions (
    channel TEXT NOT NULL,
    number INTEGER NOT NULL,
    version INTEGER NOT NULL,      -- of the subscriptions it answers
    inputs TEXT NOT NULL,          -- JSON of Inputs
    opened_at REAL NOT NULL,
    committed_at REAL,             -- NULL: open
    kept_since_s REAL,             -- when it was committed, in running time: its age for retention
    fetched INTEGER NOT NULL DEFAULT 0,  -- whether any of its results were fetched
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
    cursor INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused, even if the newest rows are dropped
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
    opened_s: float  # the current time, as far as the query is concerned


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
    """Opens and commits executions, at most one open per channel.

    Executions of a channel are numbered 1, 2, 3 ... and run one after another. Opening one records, in one transaction,
    its number, its inputs and the version of the subscriptions it answers. Committing it adds, in one transaction, the
    index of its results. A crash between the two costs only time: the open execution is run again with the recorded
    inputs, and its results, which are the same, are committed once.

    An execution is opened only for new records. Without new records nothing happens. Without subscriptions the
    channel's positions still advance, so that a later subscriber does not receive older records.
    """

    def __init__(self, database: Database, channels: Channels, clock: Callable[[], float]) -> None:
        self._database = database
        self._channels = channels
        self._clock = clock
        self._listeners: list[Callable[[], None]] = []
        database.create(_EXECUTION_TABLES)

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Call this after each commit that has results, in the committing thread."""
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
        """Make the results count; False if the execution is not open because its channel was dropped or replaced."""
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
        """Drop everything of a channel; an open execution will find nothing to commit. Retention removes the files."""
        with self._database.transaction():
            for table in ("results", "notifications"):
                self._database.run(f"DELETE FROM {table} WHERE channel = ?", (channel,))
            sql = "UPDATE executions SET committed_at = ? WHERE channel = ? AND committed_at IS NULL"
            self._database.run(sql, (time.time(), channel))
            sql = "UPDATE channel_numbers SET committed = opened, oldest = opened + 1 WHERE channel = ?"
            self._database.run(sql, (channel,))

    def floor(self, dataset: str, position: int) -> int:
        """The oldest position of a dataset that an open or future execution may still ask for."""
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


_NOTIFIED_MOST = 100  # executions in one answer: the rest follow in the next
_RATE_PERIODS = 10  # a subscription's rate is over this many periods of its channel


log = logging.getLogger("nearcast.data")


class Notification(msgspec.Struct, frozen=True):
    """An execution with results for these subscriptions of a broker."""

    channel: str
    execution: int
    subscriptions: list[str]


# --- what was committed


class Outcomes:
    """What `Executions` committed: the index of results, notifications, rates, the history, and retention.

    Results are kept for a time (running time, not the wall clock) and for a number of executions. Results that a broker
    has a subscription for but has not fetched do not expire by age, only by number, and then a warning is logged. A
    round drops a small share, so that a mistake in the settings can be noticed and stopped. The order of steps survives
    a crash: first the executions count as no longer kept, then the caller removes their files, then they are forgotten
    here.
    """

    def __init__(self, database: Database, channels: Channels, clock: Callable[[], float]) -> None:
        self._database = database
        self._channels = channels
        self._clock = clock

    def after(self, subscription: str, channel: str, after: int, limit: int) -> list[tuple[int, Size]]:
        """The executions that have results for a subscription, the oldest first."""
        oldest = self._channels.numbers(channel).oldest
        sql = (
            "SELECT number, rows, bytes FROM results "
            "WHERE subscription = ? AND number > ? AND number >= ? ORDER BY number LIMIT ?"
        )
        rows = self._database.rows(sql, (subscription, after, oldest, limit))
        return [(row["number"], Size(row["rows"], row["bytes"])) for row in rows]

    def require_kept(self, channel: str, number: int) -> None:
        """Raises unless the execution is committed and its results are still there."""
        numbers = self._channels.numbers(channel)
        if number < numbers.oldest:
            problem = f"the results of execution {number} of {channel} are no longer kept"
            raise NoLongerKept(problem, f"the oldest that are kept are those of {numbers.oldest}")
        if number > numbers.committed:
            raise Unknown(f"execution {number} of {channel} is not committed", f"the last one is {numbers.committed}")

    def with_results(self, channel: str, number: int, subscriptions: Sequence[str]) -> list[str]:
        """Which of the subscriptions have results in the execution."""
        rows = self._database.rows(
            "SELECT subscription FROM results WHERE channel = ? AND number = ?", (channel, number)
        )
        found = {row["subscription"] for row in rows}
        return [subscription for subscription in subscriptions if subscription in found]

    def note_fetched(self, channel: str, number: int) -> None:
        """Results of the execution were handed out."""
        key = (channel, number)
        if self._database.row("SELECT 1 FROM executions WHERE channel = ? AND number = ? AND NOT fetched", key):
            self._database.run("UPDATE executions SET fetched = 1 WHERE channel = ? AND number = ?", key)

    def newest_cursor(self) -> int:
        row = self._database.row("SELECT seq FROM sqlite_sequence WHERE name = 'notifications'")
        return int(row["seq"]) if row is not None else 0

    def notifications(self, broker: str, after: int) -> tuple[int, list[Notification]]:
        """The notifications for a broker after a cursor, and the cursor for the next call."""
        sql = "SELECT cursor, channel, number FROM notifications WHERE cursor > ? ORDER BY cursor LIMIT ?"
        executions = self._database.rows(sql, (after, _NOTIFIED_MOST))
        held = (
            "SELECT r.subscription FROM results AS r JOIN holders AS h ON h.subscription = r.subscription "
            "WHERE r.channel = ? AND r.number = ? AND h.broker = ? ORDER BY 1"
        )
        found = []
        for row in executions:
            holding = self._database.rows(held, (row["channel"], row["number"], broker))
            if holding:
                found.append(Notification(row["channel"], row["number"], [h["subscription"] for h in holding]))
        return (executions[-1]["cursor"] if executions else max(after, 0)), found

    def rates(self) -> dict[str, float]:
        """Bytes of results per second of each subscription, over the last periods of its channel."""
        rates: dict[str, float] = {}
        now_s = self._clock()
        for channel in self._channels.all():
            window_s = _RATE_PERIODS * channel.period_s
            rows = self._database.rows(
                "SELECT r.subscription, sum(r.bytes) AS bytes FROM executions AS e "
                "JOIN results AS r ON r.channel = e.channel AND r.number = e.number "
                "WHERE e.channel = ? AND e.kept_since_s > ? GROUP BY r.subscription",
                (channel.name, now_s - window_s),
            )
            rates |= {row["subscription"]: row["bytes"] / window_s for row in rows}
        return rates

    def history(self, channel: str, last: int, plan: bool = False) -> list[dict[str, Any]]:
        """The last executions, the newest first."""
        sql = "SELECT * FROM executions WHERE channel = ? ORDER BY number DESC LIMIT ?"
        shown = []
        for row in self._database.rows(sql, (channel, last)):
            measures = msgspec.json.decode(row["measures"]) if row["measures"] else {}
            shown.append(
                {
                    "execution": row["number"],
                    "inputs": msgspec.json.decode(row["inputs"]),
                    "started": row["opened_at"],
                    "committed": row["committed_at"],
                    **measures,
                    **({"plan": zlib.decompress(row["plan"] or zlib.compress(b"")).decode()} if plan else {}),
                }
            )
        return shown

    def given_up(self, channel: StoredChannel) -> str:
        """Why the last given-up execution of this text was given up, while it is kept; empty if there is none."""
        sql = (
            "SELECT CASE WHEN json_valid(measures) THEN json_extract(measures, '$.problem') END AS problem "
            "FROM executions WHERE channel = ? AND number >= ? AND problem != '' ORDER BY number DESC LIMIT 1"
        )
        row = self._database.row(sql, (channel.name, channel.from_execution))
        return row["problem"] if row is not None else ""

    def expire(self, keep_s: float, keep_executions: int) -> list[tuple[str, int]]:
        """Executions that no longer count as kept: remove their files, then `forget` them."""
        with self._database.transaction():
            for row in self._database.rows("SELECT channel, oldest FROM channel_numbers WHERE committed >= oldest"):
                oldest = self._first_kept(row["channel"], keep_s, keep_executions)
                if oldest > row["oldest"]:
                    sql = "UPDATE channel_numbers SET oldest = ? WHERE channel = ?"
                    self._database.run(sql, (oldest, row["channel"]))
            rows = self._database.rows(
                "SELECT e.channel, e.number FROM executions AS e JOIN channel_numbers AS c ON c.channel = e.channel "
                "WHERE e.number < c.oldest ORDER BY 1, 2"
            )
        return [(row["channel"], row["number"]) for row in rows]

    def _first_kept(self, channel: str, keep_s: float, keep_executions: int) -> int:
        """The oldest execution that stays after this round."""
        numbers = self._channels.numbers(channel)
        first_young = self._first(channel, "e.kept_since_s >= ?", self._clock() - keep_s)
        first_wanted = self._first(channel, _WANTED)
        most = max(EXPIRED_LEAST, int((numbers.committed + 1 - numbers.oldest) * EXPIRED_SHARE))
        wished = max(min(first_young, first_wanted), numbers.committed + 1 - keep_executions, numbers.oldest)
        oldest = min(wished, numbers.oldest + most)
        if oldest > first_wanted:
            log.warning(
                "channel %s: dropping the results of executions %d to %d, some not yet fetched: only %d are kept",
                *(channel, first_wanted, oldest - 1, keep_executions),
            )
        return oldest

    def _first(self, channel: str, condition: str, *values: float) -> int:
        """The first committed and kept execution that meets a condition; if none does, the next one to be committed."""
        numbers = self._channels.numbers(channel)
        sql = (
            "SELECT min(e.number) AS number FROM executions AS e "
            f"WHERE e.channel = ? AND e.number BETWEEN ? AND ? AND {condition}"
        )
        row = self._database.row(sql, (channel, numbers.oldest, numbers.committed, *values))
        return row["number"] if row is not None and row["number"] is not None else numbers.committed + 1

    def forget(self, executions: Sequence[tuple[str, int]]) -> None:
        with self._database.transaction():
            for table in ("executions", "results", "notifications"):
                self._database.run_many(f"DELETE FROM {table} WHERE channel = ? AND number = ?", executions)


# --- the running time


# An execution with results for a subscription that a broker holds, none of them fetched yet.
_WANTED = (
    "NOT e.fetched AND EXISTS (SELECT 1 FROM results AS r JOIN holders AS h ON h.subscription = r.subscription "
    "WHERE r.channel = e.channel AND r.number = e.number)"
)


AHEAD_S = 60.0  # one write covers this many seconds; a restart may skip as many

_CLOCK_TABLES = """
CREATE TABLE IF NOT EXISTS running_time (only INTEGER PRIMARY KEY CHECK (only = 1), upto_s REAL NOT NULL);
"""


class RunningTime:
    """The seconds that a data cluster has run, over all processes that have used its folder. One per folder.

    Things expire by this clock, because the wall clock may be set by hours in either direction, and what is deleted
    because of that is gone. It counts the seconds of the monotonic clock and continues after a restart. It is written
    ahead, so that a kill does not set it back.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        database.create(_CLOCK_TABLES)
        row = database.row("SELECT upto_s FROM running_time")
        self._noted_s = float(row["upto_s"]) if row is not None else 0.0
        self._zero_s = clock() - self._noted_s

    def __call__(self) -> float:
        now_s = self._clock() - self._zero_s
        with self._lock:
            ahead = now_s >= self._noted_s
            if ahead:
                self._noted_s = now_s + AHEAD_S
        if ahead:
            self._database.run("REPLACE INTO running_time VALUES (1, ?)", (self._noted_s,))
        return now_s
