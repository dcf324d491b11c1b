"""The keys of a simulated server, and the commands on them: strings, hashes and expiry. Streams are in `streams.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nearcast.core.model.globs import matcher
from nearcast.sim.valkey.replies import (
    INT64_MAX,
    OK,
    SYNTAX,
    WRONG_TYPE,
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
from nearcast.sim.valkey.streams import Stream

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import Session


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
    """Whether NX is given, and (PX or PXAT, its number)."""
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


def rename(session: Session, arguments: list[bytes]) -> bytes:
    if not session.server.keys.rename(*arguments):
        raise CommandError("ERR no such key")
    return OK


def scan(session: Session, arguments: list[bytes]) -> bytes:
    """SCAN cursor [MATCH pattern] [COUNT count]: all keys at once, as a server does with few of them."""
    pattern = _scan_pattern(arguments[1:])
    names = session.server.keys.names()
    return array((bulk(b"0"), bulks(filter(matcher(pattern), names))))


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
    # The scan treats a single star as "no pattern", so it finds the empty name, which `*` does not match elsewhere.
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


# --- the keyspace


Hash = dict[bytes, bytes]
Value = bytes | Hash | Stream
Changes = dict[bytes, tuple[Value | None, int | None]]  # key -> value, and when it ends; without a value it is gone


class Keyspace:
    """All keys of a server. Some have a time at which they end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[bytes, Value] = {}
        self._ends_ms: dict[bytes, int] = {}
        self._changed: set[bytes] | None = None  # keys written since the last look; None while nobody looks

    # --- replicas

    def follow_changes(self) -> None:
        """From now on, note which keys change."""
        self._changed = self._changed if self._changed is not None else set()

    def take_changes(self) -> Changes:
        """What has changed since the last call."""
        changed, self._changed = self._changed, set() if self._changed is not None else None
        return {key: self._copy(key) for key in sorted(changed)} if changed else {}

    def snapshot(self) -> Changes:
        return {key: self._copy(key) for key in self.names()}

    def apply(self, changes: Changes) -> None:
        """Take over what another server has."""
        for key, (value, ends_ms) in changes.items():
            self.delete(key)
            if value is not None:
                self._values[key] = value
            if ends_ms is not None:
                self._ends_ms[key] = ends_ms

    def _copy(self, key: bytes) -> tuple[Value | None, int | None]:
        value = self._value(key)
        copied = value if value is None or isinstance(value, bytes) else value.copy()
        return copied, self._ends_ms.get(key)

    def _write(self, *keys: bytes) -> None:
        if self._changed is not None:
            self._changed.update(keys)

    # --- all keys

    @property
    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + _size_bytes(value) for key, value in self._values.items())

    def clear(self) -> None:
        self._values.clear()
        self._ends_ms.clear()

    # --- keys of any kind

    def __contains__(self, key: bytes) -> bool:
        return self._value(key) is not None

    def names(self) -> list[bytes]:
        return [key for key in list(self._values) if key in self]

    def rename(self, key: bytes, new: bytes) -> bool:
        """Returns whether there was such a key."""
        value = self._value(key)
        if value is None:
            return False
        self.delete(key)
        self.delete(new)
        self._values[new] = value
        self._write(new)
        return True

    def delete(self, key: bytes) -> bool:
        """Returns whether there was such a key."""
        present = key in self
        self._write(key)
        self._values.pop(key, None)
        self._ends_ms.pop(key, None)
        return present

    def end_at(self, key: bytes, when_ms: int) -> None:
        """Let a key end at this time; if that has passed, the key is deleted at once."""
        if when_ms <= self.now_ms:
            self.delete(key)
        else:
            self._write(key)
            self._ends_ms[key] = when_ms

    def left_ms(self, key: bytes) -> int | None:
        """Time left for a key that exists; None if it has no end."""
        when_ms = self._ends_ms.get(key)
        return None if when_ms is None else when_ms - self.now_ms

    def _value(self, key: bytes) -> Value | None:
        if key in self._ends_ms and self.now_ms > self._ends_ms[key]:
            del self._values[key], self._ends_ms[key]
        return self._values.get(key)

    # --- strings

    def string(self, key: bytes) -> bytes | None:
        value = self._value(key)
        if isinstance(value, dict | Stream):
            raise CommandError(WRONG_TYPE)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Replaces whatever was there, including its end."""
        self._write(key)
        self._values[key] = value
        self._ends_ms.pop(key, None)

    def change(self, key: bytes, value: bytes) -> None:
        """Give a string a new value; it keeps its end."""
        self._write(key)
        self._values[key] = value

    # --- hashes

    def fields(self, key: bytes) -> Hash:
        """The fields of a hash, read-only; a missing key has none."""
        value = self._value(key)
        if isinstance(value, bytes | Stream):
            raise CommandError(WRONG_TYPE)
        return {} if value is None else value

    def set_fields(self, key: bytes, pairs: Hash) -> int:
        """Returns the number of new fields."""
        self._write(key)
        fields = self.fields(key)
        before = len(fields)
        fields.update(pairs)
        self._values[key] = fields
        return len(fields) - before

    def delete_fields(self, key: bytes, names: list[bytes]) -> int:
        fields = self.fields(key)
        self._write(key)
        deleted = sum(fields.pop(name, None) is not None for name in names)
        if deleted and not fields:
            self.delete(key)
        return deleted

    # --- streams

    def stream(self, key: bytes) -> Stream | None:
        value = self._value(key)
        if isinstance(value, bytes | dict):
            raise CommandError(WRONG_TYPE)
        return value

    def streams(self, prefix: bytes) -> dict[bytes, Stream]:
        """All streams whose key begins like this."""
        return {
            key: value for key, value in self._values.items() if key.startswith(prefix) and isinstance(value, Stream)
        }

    def put_stream(self, key: bytes, stream: Stream) -> None:
        self._write(key)
        self._values[key] = stream


def _size_bytes(value: Value) -> int:
    if isinstance(value, Stream):
        return value.size_bytes
    return len(value) if isinstance(value, bytes) else sum(len(name) + len(data) for name, data in value.items())
