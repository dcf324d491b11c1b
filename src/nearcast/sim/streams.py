"""The simulated server's commands on streams: as much as agents need to append their reports.

A limit is kept exactly, also with `~`, where a real server may keep some records more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearcast.sim.keyspace import RecordId, Stream
from nearcast.sim.replies import SYNTAX, CommandError, bulk, integer, parse_integer, wrong_number

if TYPE_CHECKING:
    from nearcast.sim.server import Session

_ID = re.compile(rb"(\d{1,19})-(\d{1,19})")


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
    record_id = _next_id(stream.last_id, keys.now_ms) if wanted is None else wanted
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
    """None: by the server's clock."""
    if asked == b"*":
        return None
    written = _ID.fullmatch(asked)
    if written is None:
        raise CommandError("ERR Invalid stream ID specified as stream command argument")
    return int(written[1]), int(written[2])


def _next_id(last: RecordId, now_ms: int) -> RecordId:
    return (now_ms, 0) if now_ms > last[0] else (last[0], last[1] + 1)
