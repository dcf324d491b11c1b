"""What was committed, for those who ask: the index of results, notifications, rates, the history, and its end.

Results are kept for a time and a number of executions. Dropping goes in an order that a crash cannot spoil: first the
executions count as no longer kept, then the caller removes their files, then they are forgotten here.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from nearcast.pipeline.catalog.channels import Channels
from nearcast.pipeline.catalog.database import Database
from nearcast.pipeline.catalog.executions import Size
from nearcast.pipeline.catalog.refusals import NoLongerKept, Unknown

_NOTIFIED_MOST = 100  # executions in one answer: the rest follows in the next
_RATE_PERIODS = 10  # a subscription's rate is over so many periods of its channel


class Notification(msgspec.Struct, frozen=True):
    """An execution with results for these subscriptions of a broker."""

    channel: str
    execution: int
    subscriptions: list[str]


class Outcomes:
    """Reads what `Executions` wrote."""

    def __init__(self, database: Database, channels: Channels) -> None:
        self._database = database
        self._channels = channels

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

    def rates(self, now_s: float) -> dict[str, float]:
        """Bytes of results per second of each subscription, over the last periods of its channel."""
        rates: dict[str, float] = {}
        for channel in self._channels.all():
            window_s = _RATE_PERIODS * channel.period_s
            rows = self._database.rows(
                "SELECT r.subscription, sum(r.bytes) AS bytes FROM executions AS e "
                "JOIN results AS r ON r.channel = e.channel AND r.number = e.number "
                "WHERE e.channel = ? AND e.committed_at > ? GROUP BY r.subscription",
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

    def expire(self, keep_s: float, keep_executions: int) -> list[tuple[str, int]]:
        """Executions that count as no longer kept from now on, or since before: remove their files, then `forget`."""
        with self._database.transaction():
            self._database.run(
                "UPDATE channel_numbers SET oldest = max(oldest, committed + 1 - ?, coalesce("
                "(SELECT max(number) + 1 FROM executions AS e "
                "WHERE e.channel = channel_numbers.channel AND e.committed_at < ?), 1))",
                (keep_executions, time.time() - keep_s),
            )
            rows = self._database.rows(
                "SELECT e.channel, e.number FROM executions AS e JOIN channel_numbers AS c ON c.channel = e.channel "
                "WHERE e.number < c.oldest ORDER BY 1, 2"
            )
        return [(row["channel"], row["number"]) for row in rows]

    def forget(self, executions: Sequence[tuple[str, int]]) -> None:
        with self._database.transaction():
            for table in ("executions", "results", "notifications"):
                self._database.run_many(f"DELETE FROM {table} WHERE channel = ? AND number = ?", executions)
