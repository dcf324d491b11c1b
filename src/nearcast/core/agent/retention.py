"""Retention: what an agent removes from the logs on its server, and when (PROTOCOL "Logs")."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from nearcast.core.model.cursors import Cursor, Position
from nearcast.core.model.logs import (
    BEFORE_ALL,
    EntryId,
    Log,
    PartLoad,
    cursors_of,
    last_numbers,
    stream_of,
    totals_of,
)
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import CURSORS, LOGS, NUMBERS, OLDER_NUMBERS, TOTALS
from nearcast.core.model.settings import NEVER_S, Timing
from nearcast.core.wire.backend import AgentLink, PartKeys, Weight

LOOK_S = 1.0  # between two looks at a part
SWEEP_S = 60.0  # between two looks for what lives before this one have left
ROWS_PER_LIMIT = 500  # how finely a limit is kept: a 500th of the time, or of the bytes
TRIMMED_MAX = 10_000  # messages that are removed one by one; more are removed in whole nodes of the stream


class Row(NamedTuple):
    """A part at one moment."""

    at_s: float
    last: EntryId
    messages: int
    size_bytes: int


class Part:
    """One part, and how it has grown.

    Ages are counted by our own clock: entries have the server's time, which may be set back. After a restart of the
    agent nothing is known of before, so things may be kept for longer, never for less.
    """

    def __init__(self, log: Log, life: str) -> None:
        self.log = log
        self.life = life
        self.keys = PartKeys(stream_of(log, life), totals_of(life), cursors_of(log, life))
        self.entries = 0  # at the last look
        self._rows: deque[Row] = deque()
        self._newest: Row | None = None
        self._trimmed = BEFORE_ALL

    @property
    def is_empty(self) -> bool:
        """Whether everything is gone that was there."""
        return self._newest is not None and not self.entries

    def weighed(self, weight: Weight, now_s: float) -> None:
        self.entries = weight.entries
        row = self._newest = Row(now_s, weight.last, weight.messages, weight.size_bytes)
        last = self._rows[-1] if self._rows else None
        if (
            last is None
            or now_s - last.at_s >= self.log.retain_s / ROWS_PER_LIMIT
            or row.size_bytes - last.size_bytes >= self.log.retain_bytes / ROWS_PER_LIMIT
        ):
            self._rows.append(row)

    def expired(self, now_s: float, held: EntryId | None) -> tuple[EntryId, bool] | None:
        """Up to which entry to remove, and whether that is little enough to be exact; None if nothing is.

        `held`: a group wants everything behind this entry; what is too much goes nevertheless.
        """
        if self._newest is None:
            return None
        before = self._rows[0] if self._rows else self._newest
        old = too_much = BEFORE_ALL
        row = before
        while self._rows:
            aged = now_s - self._rows[0].at_s > self.log.retain_s
            large = self._newest.size_bytes - self._rows[0].size_bytes > self.log.retain_bytes
            if not (aged or large):
                break
            row = self._rows.popleft()
            old = max(old, row.last)
            too_much = row.last if large else too_much
        upto = max(min(old, held) if held is not None else old, too_much, self._trimmed)
        if upto == BEFORE_ALL or not self.entries:
            return None
        self._trimmed = upto
        return upto, row.messages - before.messages <= TRIMMED_MAX


class Retention:
    """Trims the parts on an agent's server, ages the last numbers, and removes what nobody needs any more."""

    def __init__(self, broker: str, timing: Timing) -> None:
        self.timing = timing
        self.membership = Membership(version=-1, term=0, brokers={})  # the newest that was sent to the server
        self._broker = broker
        self._parts: dict[bytes, Part] = {}  # by stream
        self._looked_s = NEVER_S
        self._swept_s = NEVER_S
        self._emptied: Membership | None = None  # one without logs, for which everything was removed
        self._aged_s: float | None = None

    def clear(self) -> None:
        """The connection to the server is a new one, or the server is."""
        self._parts.clear()
        self._swept_s = NEVER_S
        self._emptied = None

    def tick(self, link: AgentLink, now_s: float) -> None:
        membership = self.membership
        life = membership.life(self._broker)
        if not life or not (membership.logs or membership.logs_version) or self._emptied is membership:
            return
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            for log in membership.logs:
                self._parts.setdefault(stream_of(log, life), Part(log, life))
            for part in self._parts.values():
                link.weigh(part.keys, partial(self._weighed, link, part))
        if now_s - self._swept_s >= SWEEP_S:
            self._swept_s = now_s
            self._emptied = None if membership.logs else membership  # nothing can be added any more
            link.find_keys(LOGS, partial(self._sweep, link, membership, life))
        self._age(link, life, now_s)

    def _age(self, link: AgentLink, life: str, now_s: float) -> None:
        """A publisher gives up what was not acknowledged for two rounds of T_idle; then its last number is useless."""
        if self._aged_s is None or now_s - self._aged_s >= 2 * self.timing.idle_s:
            if self._aged_s is not None:
                link.age_numbers(last_numbers(life))
            self._aged_s = now_s

    def _weighed(self, link: AgentLink, part: Part, weight: Weight, now_s: float) -> None:
        part.weighed(weight, now_s)
        link.read_cursors(part.keys, partial(self._trim, link, part, now_s))

    def _trim(self, link: AgentLink, part: Part, now_s: float, cursors: dict[str, Cursor]) -> None:
        held = min((cursor.position.entry for cursor in cursors.values() if cursor.holds), default=None)
        expired = part.expired(now_s, held)
        if expired is not None:
            upto, exactly = expired
            link.trim(part.keys.stream, upto, exactly=exactly, then=lambda _: None)

    # --- what is left over

    def _sweep(self, link: AgentLink, membership: Membership, life: str, streams: list[bytes]) -> None:
        """Parts of dropped logs go at once. Those of earlier lives expire like others: they may be worth saving.

        A search takes many steps. Once a new membership is on its way to the server, it may have found what only that
        one knows: a log that was just created, or our own next life.
        """
        if membership is not self.membership:
            self._swept_s = NEVER_S
            return
        logs = {log.key: log for log in membership.logs}
        lives = {life} if logs else set()
        for stream in streams:
            found = _parse(stream)
            log = logs.get(found[0]) if found is not None else None
            if found is None or log is None:
                self._forget(link, stream)
                continue
            lives.add(found[1])
            part = self._parts.setdefault(stream, Part(log, found[1]))
            if found[1] != life and part.is_empty:
                self._forget(link, stream)
        for prefix in (NUMBERS, OLDER_NUMBERS, TOTALS, CURSORS):
            link.find_keys(prefix, partial(self._sweep_keys, link, membership, frozenset(lives), prefix))

    def _forget(self, link: AgentLink, stream: bytes) -> None:
        self._parts.pop(stream, None)
        link.forget_keys([stream])

    def _sweep_keys(
        self, link: AgentLink, membership: Membership, lives: frozenset[str], prefix: bytes, keys: list[bytes]
    ) -> None:
        """What stands beside streams goes with the last of them."""
        if membership is not self.membership:
            self._swept_s = NEVER_S
            return
        logs = {log.key for log in membership.logs}
        gone = []
        for key in keys:
            name = key.removeprefix(prefix).decode(errors="replace")
            log, _, life = name.partition(":") if prefix == CURSORS else ("", "", name)
            if life not in lives or (log and log not in logs):
                gone.append(key)
        link.forget_keys(gone)


def _parse(stream: bytes) -> tuple[str, str] | None:
    """The log and the life of a stream; None if it is none of ours."""
    log, colon, life = stream.removeprefix(LOGS).decode(errors="replace").partition(":")
    return (log, life) if colon else None


# --- what is left to read


def _unread(position: Position, weight: Weight) -> int:
    return 0 if position.entry >= weight.last else max(0, weight.messages - max(0, position.count))


def count_unread(link: AgentLink, logs: Sequence[Log], life: str, then: Callable[[dict[str, PartLoad]], None]) -> None:
    """How much each log has in its part of this life."""
    found: dict[str, PartLoad] = {}
    weights: dict[str, Weight] = {}

    def weighed(log: Log, weight: Weight, now_s: float) -> None:
        weights[log.key] = weight

    def read(log: Log, cursors: dict[str, Cursor]) -> None:
        weight = weights[log.key]
        groups = {name: _unread(cursor.position, weight) for name, cursor in cursors.items()}
        found[log.key] = PartLoad(weight.messages, weight.entries, weight.size_bytes, groups)
        if len(found) == len(logs):
            then(found)

    for log in logs:
        keys = PartKeys(stream_of(log, life), totals_of(life), cursors_of(log, life))
        link.weigh(keys, partial(weighed, log))
        link.read_cursors(keys, partial(read, log))
    if not logs:
        then(found)
