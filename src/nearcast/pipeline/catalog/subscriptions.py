"""Backend subscriptions: the distinct (channel, parameters), and which brokers hold each.

Each change of a channel's subscriptions has a version, one more than the last. A subscription exists from the version
that added it up to, but not including, the version that removed it. An execution records the version it answers, so a
re-run after a crash answers exactly the same subscriptions, whatever was added or removed since.

A subscription that makes its channel's query fail for all is set aside: executions no longer answer it. It stays set
aside until its holders release it. A later subscriber gets a new subscription, which is not set aside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from nearcast.pipeline.catalog.channels import (
    Channels,
    StoredChannel,
    bound,
    canonical,
    canonical_json,
    subscription_id,
)
from nearcast.pipeline.catalog.database import CatalogFull, Conflict, Database, Unknown

_TABLES = """
CREATE TABLE IF NOT EXISTS subscriptions (
    id TEXT NOT NULL,
    channel TEXT NOT NULL,
    parameters TEXT NOT NULL,      -- canonical JSON
    added INTEGER NOT NULL,        -- version of the channel's subscriptions
    removed INTEGER,               -- NULL: still there
    problem TEXT,                  -- why it is set aside; NULL: it is not
    PRIMARY KEY (id, added)
);
CREATE INDEX IF NOT EXISTS subscriptions_of_channel ON subscriptions (channel, removed);
CREATE TABLE IF NOT EXISTS holders (
    subscription TEXT NOT NULL,
    broker TEXT NOT NULL,
    PRIMARY KEY (subscription, broker)
);
CREATE INDEX IF NOT EXISTS holders_of_broker ON holders (broker);
"""


class Subscribed(msgspec.Struct, frozen=True):
    """The answer to a broker, which may fetch the results from this execution on."""

    subscription: str
    channel: str
    from_execution: int


class Subscriptions:
    """All backend subscriptions. Attaching and detaching are idempotent: a broker that lost an answer can ask again."""

    def __init__(self, database: Database, channels: Channels, most: int) -> None:
        self._database = database
        self._channels = channels
        self._most = most
        database.create(_TABLES)

    def attach(self, broker: str, channel: StoredChannel, parameters: Mapping[str, Any], user: str = "") -> Subscribed:
        """From now on the broker holds the subscription with these parameters, on behalf of this user among others."""
        values = canonical(channel.parameters, bound(channel.parameters, parameters, user))
        subscription = subscription_id(channel.name, values)
        with self._database.transaction():
            if problem := self.problem(subscription):
                hint = "change the parameters, or have all holders unsubscribe and then subscribe again to retry it"
                raise Conflict(f"subscription {subscription} is set aside: {problem}", hint)
            numbers = self._channels.numbers(channel.name)
            if not self.exists(subscription):
                self._require_room()
                self._database.run(
                    "INSERT INTO subscriptions (id, channel, parameters, added) VALUES (?, ?, ?, ?)",
                    (subscription, channel.name, canonical_json(values), self._next_version(channel.name, +1)),
                )
            self._database.run("INSERT OR IGNORE INTO holders VALUES (?, ?)", (subscription, broker))
        return Subscribed(subscription, channel.name, numbers.opened + 1)

    def detach(self, broker: str, subscription: str) -> None:
        """The broker no longer holds it; the subscription ends when no broker does."""
        with self._database.transaction():
            held = "DELETE FROM holders WHERE subscription = ? AND broker = ?"
            if self._database.run(held, (subscription, broker)):
                self._end_unheld(subscription)

    def move(self, subscription: str, source: str, target: str) -> None:
        """The target holds it instead of the source. Repeating this changes nothing."""
        with self._database.transaction():
            if not self.exists(subscription):
                raise Unknown(f"no broker holds subscription {subscription}", "subscribe again: POST /subscriptions")
            self._database.run("INSERT OR IGNORE INTO holders VALUES (?, ?)", (subscription, target))
            if source != target:
                self.detach(source, subscription)

    def drop_broker(self, broker: str) -> None:
        with self._database.transaction():
            for subscription in self.held_by(broker):
                self.detach(broker, subscription)

    def release_of_strangers(self, most: int) -> int:
        """Release some of what unregistered brokers still hold; returns how many."""
        sql = "SELECT subscription, broker FROM holders WHERE broker NOT IN (SELECT name FROM brokers) LIMIT ?"
        with self._database.transaction():
            found = self._database.rows(sql, (most,))
            for row in found:
                self.detach(row["broker"], row["subscription"])
        return len(found)

    def drop_channel(self, channel: str) -> None:
        with self._database.transaction():
            of_channel = "(SELECT id FROM subscriptions WHERE channel = ?)"
            self._database.run(f"DELETE FROM holders WHERE subscription IN {of_channel}", (channel,))
            self._database.run("DELETE FROM subscriptions WHERE channel = ?", (channel,))
            self._next_version(channel, -self._channels.numbers(channel).held)

    def exists(self, subscription: str) -> bool:
        return bool(self._database.row("SELECT 1 FROM subscriptions WHERE id = ? AND removed IS NULL", (subscription,)))

    def held_by(self, broker: str) -> list[str]:
        rows = self._database.rows("SELECT subscription FROM holders WHERE broker = ? ORDER BY 1", (broker,))
        return [row["subscription"] for row in rows]

    def at(self, channel: str, version: int) -> list[tuple[str, dict[str, Any]]]:
        """The subscriptions of a version, without those set aside: id and parameters."""
        sql = f"SELECT id, parameters FROM subscriptions WHERE {_THERE} AND problem IS NULL ORDER BY id"
        rows = self._database.rows(sql, (channel, version, version))
        return [(row["id"], json.loads(row["parameters"])) for row in rows]

    def set_aside(self, channel: str, version: int, problems: Mapping[str, str]) -> None:
        """These subscriptions fail the query for all: leave them out of this version and all later ones."""
        sql = f"UPDATE subscriptions SET problem = ? WHERE {_THERE} AND id = ?"
        values = [(problem, channel, version, version, name) for name, problem in problems.items()]
        with self._database.transaction():
            self._database.run_many(sql, values)

    def try_again(self, channel: str) -> None:
        """The query has changed: no subscription stays set aside because of the old one."""
        self._database.run("UPDATE subscriptions SET problem = NULL WHERE channel = ? AND removed IS NULL", (channel,))

    def problem(self, subscription: str) -> str:
        """Why it is set aside; empty if it is not."""
        sql = "SELECT problem FROM subscriptions WHERE id = ? AND removed IS NULL"
        row = self._database.row(sql, (subscription,))
        return (row["problem"] or "") if row is not None else ""

    def problems(self, channel: str) -> dict[str, str]:
        """The subscriptions of a channel that are set aside, each with the reason."""
        sql = "SELECT id, problem FROM subscriptions WHERE channel = ? AND removed IS NULL AND problem IS NOT NULL"
        return {row["id"]: row["problem"] for row in self._database.rows(f"{sql} ORDER BY id", (channel,))}

    def forget_removed(self, channel: str, version: int) -> None:
        """Forget those removed up to this version, the oldest that an execution may still ask for."""
        sql = "DELETE FROM subscriptions WHERE channel = ? AND removed <= ?"
        self._database.run(sql, (channel, version))

    def _end_unheld(self, subscription: str) -> None:
        if self._database.row("SELECT 1 FROM holders WHERE subscription = ?", (subscription,)) is not None:
            return
        there = "SELECT channel FROM subscriptions WHERE id = ? AND removed IS NULL"
        row = self._database.row(there, (subscription,))
        if row is not None:
            sql = "UPDATE subscriptions SET removed = ? WHERE id = ? AND removed IS NULL"
            self._database.run(sql, (self._next_version(row["channel"], -1), subscription))

    def _next_version(self, channel: str, more: int) -> int:
        sql = "UPDATE channel_numbers SET version = version + 1, held = held + ? WHERE channel = ?"
        self._database.run(sql, (more, channel))
        return self._channels.numbers(channel).version

    def _require_room(self) -> None:
        row = self._database.row("SELECT sum(held) AS held FROM channel_numbers")
        if row is not None and row["held"] >= self._most:
            raise CatalogFull(
                f"the limit of {self._most} backend subscriptions is reached", "unsubscribe some, or raise the limit"
            )


_THERE = "channel = ? AND added <= ? AND (removed IS NULL OR removed > ?)"
