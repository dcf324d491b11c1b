"""The simulated server's commands on keys: strings, times to end, hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.sim.glob import matcher
from nearcast.sim.replies import (
    INT64_MAX,
    OK,
    SYNTAX,
    CommandError,
    array,
    bulk,
    bulk_or_null,
    bulks,
    integer,
    mapping,
    parse_integer,
    wrong_number,
)

if TYPE_CHECKING:
    from nearcast.sim.server import Session

# --- strings and keys


def get(session: Session, arguments: list[bytes]) -> bytes:
    return bulk_or_null(session.server.keys.string(arguments[0]), session.resp3)


def set_string(session: Session, arguments: list[bytes]) -> bytes:
    key, value, *options = arguments
    keys = session.server.keys
    only_new, ends = _set_options(options)
    when_ms = None
    if ends is not None:
        kind, number = ends
        when_ms = _end_ms(parse_integer(number), keys.now_ms if kind == b"PX" else 0)
    if only_new and key in keys:
        return bulk_or_null(None, session.resp3)
    keys.put(key, value)
    if when_ms is not None:
        keys.end_at(key, when_ms)
    return OK


def _set_options(options: list[bytes]) -> tuple[bool, tuple[bytes, bytes] | None]:
    """Whether NX is there, and (PX or PXAT, its number)."""
    only_new, ends = False, None
    rest = iter(options)
    for option in rest:
        kind = option.upper()
        if kind == b"NX":
            only_new = True
            continue
        number = next(rest, None)
        if kind not in (b"PX", b"PXAT") or number is None or (ends is not None and ends[0] != kind):
            raise CommandError(SYNTAX)
        ends = (kind, number)
    return only_new, ends


def _end_ms(number: int, base_ms: int) -> int:
    if number <= 0 or number > INT64_MAX - base_ms:
        raise CommandError("ERR invalid expire time in 'set' command")
    return number + base_ms


def delete(session: Session, arguments: list[bytes]) -> bytes:
    session.server.note_deleted(arguments)
    return integer(sum(session.server.keys.delete(key) for key in arguments))


def exists(session: Session, arguments: list[bytes]) -> bytes:
    return integer(sum(key in session.server.keys for key in arguments))


def incr(session: Session, arguments: list[bytes]) -> bytes:
    keys, key = session.server.keys, arguments[0]
    stored = keys.string(key)
    value = 0 if stored is None else parse_integer(stored)
    if value == INT64_MAX:
        raise CommandError("ERR increment or decrement would overflow")
    keys.change(key, b"%d" % (value + 1))
    return integer(value + 1)


def pexpire(session: Session, arguments: list[bytes]) -> bytes:
    key, keys = arguments[0], session.server.keys
    delay_ms = parse_integer(arguments[1])
    if delay_ms > INT64_MAX - keys.now_ms:
        raise CommandError("ERR invalid expire time in 'pexpire' command")
    if key not in keys:
        return integer(0)
    keys.end_at(key, keys.now_ms + delay_ms)
    return integer(1)


def pttl(session: Session, arguments: list[bytes]) -> bytes:
    keys, key = session.server.keys, arguments[0]
    if key not in keys:
        return integer(-2)
    left_ms = keys.left_ms(key)
    return integer(-1 if left_ms is None else left_ms)


# --- hashes


def hget(session: Session, arguments: list[bytes]) -> bytes:
    return bulk_or_null(session.server.keys.fields(arguments[0]).get(arguments[1]), session.resp3)


def hmget(session: Session, arguments: list[bytes]) -> bytes:
    key, *names = arguments
    fields = session.server.keys.fields(key)
    return array(bulk_or_null(fields.get(name), session.resp3) for name in names)


def hset(session: Session, arguments: list[bytes]) -> bytes:
    if len(arguments) % 2 == 0:
        raise wrong_number(b"hset")
    pairs = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    return integer(session.server.keys.set_fields(arguments[0], pairs))


def hsetnx(session: Session, arguments: list[bytes]) -> bytes:
    keys = session.server.keys
    key, field, value = arguments
    if field in keys.fields(key):
        return integer(0)
    return integer(keys.set_fields(key, {field: value}))


def hdel(session: Session, arguments: list[bytes]) -> bytes:
    return integer(session.server.keys.delete_fields(arguments[0], arguments[1:]))


def hgetall(session: Session, arguments: list[bytes]) -> bytes:
    fields = session.server.keys.fields(arguments[0])
    return mapping(((name, bulk(value)) for name, value in fields.items()), session.resp3)


def hlen(session: Session, arguments: list[bytes]) -> bytes:
    return integer(len(session.server.keys.fields(arguments[0])))


def hscan(session: Session, arguments: list[bytes]) -> bytes:
    """Everything in one step, as the real server does with a small hash."""
    key, cursor, *options = arguments
    if not cursor.isdigit() or int(cursor) >= 1 << 64:
        raise CommandError("ERR invalid cursor")
    fields = session.server.keys.fields(key)
    pattern = _scan_pattern(options) if fields else b"*"
    # The scan takes a single star for "no pattern", so it finds the empty name, which `*` does not match elsewhere.
    names = list(fields) if pattern == b"*" else list(filter(matcher(pattern), fields))
    return array((bulk(b"0"), bulks(data for name in names for data in (name, fields[name]))))


def _scan_pattern(options: list[bytes]) -> bytes:
    pattern = b"*"
    rest = iter(options)
    for option in rest:
        kind, value = option.upper(), next(rest, None)
        if kind not in (b"MATCH", b"COUNT") or value is None:
            raise CommandError(SYNTAX)
        if kind == b"MATCH":
            pattern = value
        elif parse_integer(value) < 1:
            raise CommandError(SYNTAX)
    return pattern
