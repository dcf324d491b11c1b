"""What was committed, for those who ask: the index of results, notifications, rates, the history, and its end.

Results are kept for a time (of running, not of the wall clock) and a number of executions. What nobody has fetched yet,
though a broker holds a subscription to it, does not grow old; only the number ends it, and the log says so. A round
drops a small share, so that a mistake in the settings can be seen and stopped. Dropping goes in an order that a crash
cannot spoil: first the executions count as no longer kept, then the caller removes their files, then they are forgotten
here.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from nearcast.pipeline.catalog.channels import Channels, StoredChannel
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.executions import Size
from nearcast.pipeline.catalog.limits import EXPIRED_LEAST, EXPIRED_SHARE
from nearcast.pipeline.catalog.refusals import NoLongerKept, Unknown

_NOTIFIED_MOST = 100  # executions in one answer: the rest follows in the next
_RATE_PERIODS = 10  # a subscription's rate is over so many periods of its channel


log = logging.getLogger("nearcast.data")


class Notification(msgspec.Struct, frozen=True):
    """An execution with results for these subscriptions of a broker."""

    channel: str
    execution: int
    subscriptions: list[str]


class Outcomes:
    """Reads what `Executions` wrote."""

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
        """Those of the subscriptions that have results in the execution."""
        rows = self._database.rows(
            "SELECT subscription FROM results WHERE channel = ? AND number = ?", (channel, number)
        )
        found = {row["subscription"] for row in rows}
        return [subscription for subscription in subscriptions if subscription in found]

    def note_fetched(self, channel: str, number: int) -> None:
        """Somebody was given results of the execution."""
        key = (channel, number)
        if self._database.row("SELECT 1 FROM executions WHERE channel = ? AND number = ? AND NOT fetched", key):
            self._database.run("UPDATE executions SET fetched = 1 WHERE channel = ? AND number = ?", key)

    def newest_cursor(self) -> int:
        row = self._database.row("SELECT seq FROM sqlite_sequence WHERE name = 'notifications'")
        return int(row["seq"]) if row is not None else 0

    def notifications(self, broker: str, after: int) -> tuple[int, list[Notification]]:
        """What a broker is to be told after a cursor, and the cursor for the next call."""
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
        """Why the last execution of its text that was given up was, as long as it is kept; empty if none was."""
        sql = (
            "SELECT CASE WHEN json_valid(measures) THEN json_extract(measures, '$.problem') END AS problem "
            "FROM executions WHERE channel = ? AND number >= ? AND problem != '' ORDER BY number DESC LIMIT 1"
        )
        row = self._database.row(sql, (channel.name, channel.from_execution))
        return row["problem"] if row is not None else ""

    def expire(self, keep_s: float, keep_executions: int) -> list[tuple[str, int]]:
        """Executions that count as no longer kept from now on, or since before: remove their files, then `forget`."""
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
                "channel %s: results of executions from %d to %d go, some of which nobody has fetched: %d are kept",
                *(channel, first_wanted, oldest - 1, keep_executions),
            )
        return oldest

    def _first(self, channel: str, condition: str, *values: float) -> int:
        """The first committed execution that is kept now and meets a condition; if none does, the one to come."""
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


# An execution that nobody has fetched, with results for a subscription that a broker holds.
_WANTED = (
    "NOT e.fetched AND EXISTS (SELECT 1 FROM results AS r JOIN holders AS h ON h.subscription = r.subscription "
    "WHERE r.channel = e.channel AND r.number = e.number)"
)
