"""Streams of a simulated server, and the commands on them, as far as nearcast uses them.

A stream's limit is kept exactly, even with `~`, where a real server may keep some more records.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING

from nearcast.sim.valkey.replies import SYNTAX, CommandError, array, bulk, bulks, integer, parse_integer, wrong_number

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import Session, SimServer


RecordId = tuple[int, int]  # milliseconds, and a number within that millisecond


class Stream:
    """Records in the order of their ids, with their total size: a stream is long, and its size is read often."""

    __slots__ = ("last_id", "records", "size_bytes")

    def __init__(self) -> None:
        self.last_id: RecordId = (0, 0)
        self.records: deque[tuple[RecordId, list[bytes]]] = deque()
        self.size_bytes = 0

    def add(self, record_id: RecordId, fields: list[bytes]) -> None:
        self.last_id = record_id
        self.records.append((record_id, fields))
        self.size_bytes += sum(map(len, fields))

    def copy(self) -> Stream:
        copied = Stream()
        copied.last_id, copied.records, copied.size_bytes = self.last_id, self.records.copy(), self.size_bytes
        return copied

    def trim(self, limit: int) -> None:
        while len(self.records) > limit:
            self._drop_first()

    def trim_before(self, least: RecordId) -> int:
        """Drop the records with lower ids. Returns how many."""
        before = len(self.records)
        while self.records and self.records[0][0] < least:
            self._drop_first()
        return before - len(self.records)

    def _drop_first(self) -> None:
        _, fields = self.records.popleft()
        self.size_bytes -= sum(map(len, fields))

    def between(self, first: RecordId, last: RecordId) -> list[tuple[RecordId, list[bytes]]]:
        """The records with ids from `first` to `last`."""
        records = list(self.records)
        start = bisect_left(records, first, key=lambda record: record[0])
        return [record for record in records[start:] if record[0] <= last]


# --- commands


NUMBER_MAX = (1 << 64) - 1
FIRST_ID: RecordId = (0, 0)
LAST_ID: RecordId = (NUMBER_MAX, NUMBER_MAX)

_ID = re.compile(rb"(\d{1,20})-(\d{1,20})")


def xadd(session: Session, arguments: list[bytes]) -> bytes:
    """XADD key [MAXLEN [=|~] limit] (* | ms-seq) name value ..."""
    key, *rest = arguments
    limit, (asked, *fields) = _limit(rest)
    wanted = _wanted_id(asked)
    if len(fields) < 2 or len(fields) % 2:
        raise wrong_number(b"xadd")
    if wanted == (0, 0):
        raise CommandError("ERR The ID specified in XADD must be greater than 0-0")
    keys = session.server.keys
    stream = keys.stream(key) or Stream()
    record_id = next_id(stream.last_id, keys.now_ms) if wanted is None else wanted
    if record_id <= stream.last_id:
        raise CommandError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream.add(record_id, fields)
    if limit is not None:
        stream.trim(limit)
    keys.put_stream(key, stream)
    return bulk(b"%d-%d" % record_id)


def xlen(session: Session, arguments: list[bytes]) -> bytes:
    stream = session.server.keys.stream(arguments[0])
    return integer(0 if stream is None else len(stream.records))


def xrange(session: Session, arguments: list[bytes]) -> bytes:
    """XRANGE key start end [COUNT count]"""
    key, start, end, *options = arguments
    return _range(session, key, _bound(start, first=True), _bound(end, first=False), options, backwards=False)


def xrevrange(session: Session, arguments: list[bytes]) -> bytes:
    """XREVRANGE key end start [COUNT count]"""
    key, end, start, *options = arguments
    return _range(session, key, _bound(start, first=True), _bound(end, first=False), options, backwards=True)


def xtrim(session: Session, arguments: list[bytes]) -> bytes:
    """XTRIM key MINID [=|~] ms-seq [LIMIT count]"""
    key, strategy, *rest = arguments
    rest = rest[1:] if rest[0] in (b"~", b"=") else rest
    if strategy.upper() != b"MINID" or len(rest) not in (1, 3):
        raise CommandError(SYNTAX)
    least = _wanted_id(rest[0])
    stream = session.server.keys.stream(key)
    if stream is None:
        return integer(0)
    session.server.keys.put_stream(key, stream)
    return integer(stream.trim_before(least or FIRST_ID))


def _range(
    session: Session, key: bytes, first: RecordId, last: RecordId, options: list[bytes], *, backwards: bool
) -> bytes:
    if options and (len(options) != 2 or options[0].upper() != b"COUNT"):
        raise CommandError(SYNTAX)
    stream = session.server.keys.stream(key)
    records = stream.between(first, last) if stream is not None else []
    if backwards:
        records.reverse()
    if options:
        records = records[: parse_integer(options[1])]
    return array(array((bulk(b"%d-%d" % record_id), bulks(fields))) for record_id, fields in records)


def page(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    """PAGE in Python (`core/wire/scripts.py`)."""
    key, after, count, size = arguments
    stream = server.keys.stream(key)
    records = stream.between(_bound(b"(" + after, first=True), LAST_ID) if stream is not None else []
    found, left = [], int(size)
    for record_id, fields in records[: int(count)]:
        if left <= 0:
            break
        found.append(array((bulk(b"%d-%d" % record_id), bulks(fields))))
        left -= sum(map(len, fields))
    return array(found)


def _bound(written: bytes, *, first: bool) -> RecordId:
    """A bound of a range: `-`, `+`, or an id; without its own, if `(` comes before it. Both bounds are inclusive."""
    if written in (b"-", b"+"):
        return FIRST_ID if written == b"-" else LAST_ID
    outside = written.startswith(b"(")
    found = _wanted_id(written[1:] if outside else written) or FIRST_ID
    if not outside:
        return found
    time_ms, number = found
    if first:
        return (time_ms, number + 1) if number < NUMBER_MAX else (time_ms + 1, 0)
    return (time_ms, number - 1) if number else (time_ms - 1, NUMBER_MAX)


def _limit(rest: list[bytes]) -> tuple[int | None, list[bytes]]:
    """The number after MAXLEN, and what follows."""
    if rest[0].upper() != b"MAXLEN":
        return None, rest
    rest = rest[2:] if rest[1:2] in ([b"~"], [b"="]) else rest[1:]
    if len(rest) < 2:
        raise CommandError(SYNTAX)
    limit = parse_integer(rest[0])
    if limit < 0:
        raise CommandError("ERR The MAXLEN argument must be >= 0.")
    return limit, rest[1:]


def _wanted_id(asked: bytes) -> RecordId | None:
    """The id that was given; None if the server's clock should set it."""
    if asked == b"*":
        return None
    written = _ID.fullmatch(asked)
    if written is None:
        raise CommandError("ERR Invalid stream ID specified as stream command argument")
    return int(written[1]), int(written[2])


def next_id(last: RecordId, now_ms: int) -> RecordId:
    return (now_ms, 0) if now_ms > last[0] else (last[0], last[1] + 1)
