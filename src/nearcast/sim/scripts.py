"""EVAL of the simulated server: the scripts of `core/scripts.py`, step by step in Python.

Arguments are those of the Lua scripts, and so are the answers; the conformance test holds both to that. A number that
Lua could not read raises here: in a simulation that is a defect of ours, not something to answer politely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nearcast.core import record as records
from nearcast.core.names import CONTROL, FIRST_USES, MEMBERS, RECORDS
from nearcast.core.record import EPOCH_DIGITS
from nearcast.core.scripts import CLAIM, END_UNUSED, FIRST_USE, INSTALL, INSTALL_MEMBERS, KEEP, READ
from nearcast.core.wire import encode_record
from nearcast.sim.replies import CommandError, array, bulks, integer, parse_integer

if TYPE_CHECKING:
    from nearcast.sim.server import Session, SimServer

Twin = Callable[["SimServer", list[bytes], list[bytes]], bytes]


class _Stored(msgspec.Struct):
    """What INSTALL looks at in a record."""

    version: int
    term: int


_decode = msgspec.json.Decoder(_Stored).decode
_NOTHING_STORED = _Stored(version=-1, term=-1)


def _counts(server: SimServer, first: bytes | None) -> bool:
    """Whether this is a first use that can be."""
    members = int(server.keys.fields(MEMBERS).get(b"version", b"-1"))
    return first is not None and len(first) <= EPOCH_DIGITS and first.isdigit() and int(first) <= members


def evaluate(session: Session, arguments: list[bytes]) -> bytes:
    text, count = arguments[0], parse_integer(arguments[1])
    if count > len(arguments) - 2:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise CommandError("ERR Number of keys can't be negative")
    twin = TWINS.get(text)
    if twin is None:
        raise CommandError("ERR the simulated server has no twin of this script: add one to sim/scripts.py")
    return twin(session.server, arguments[2 : 2 + count], arguments[2 + count :])


def install(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    term = int(arguments[0])
    steps = zip(arguments[1::3], arguments[2::3], arguments[3::3], strict=True)
    return array([integer(_install_one(server, keys, term, *step)) for step in steps])


def _install_one(server: SimServer, keys: list[bytes], term: int, topic: bytes, version: bytes, record: bytes) -> int:
    key, first_uses = keys
    before = server.keys.fields(key).get(topic)
    stored = _decode(before) if before is not None else _NOTHING_STORED
    if term < stored.term:
        return -1
    if _is_older(int(version), stored):
        return stored.version
    server.keys.set_fields(key, {topic: record})
    server.keys.delete_fields(first_uses, [topic])
    server.note_installed(topic, record)
    server.publish(CONTROL + topic, b"R" + record)
    return int(version)


def _is_older(version: int, stored: _Stored) -> bool:
    return version < stored.version


def install_members(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    version, document = arguments
    stored = int(server.keys.fields(keys[0]).get(b"version", b"-1"))
    if int(version) >= stored:
        server.keys.set_fields(keys[0], {b"version": version, b"document": document})
        server.publish(keys[0], version)
        stored = int(version)
    return array([integer(stored)])


def first_use(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    (first_uses,) = keys
    version, *topics = arguments
    known = server.keys.fields(MEMBERS)
    if known.get(b"version") != version:
        return bulks((b"stale", known.get(b"document", b"")))
    for topic in topics:
        if topic not in server.keys.fields(RECORDS) and topic not in server.keys.fields(first_uses):
            server.keys.set_fields(first_uses, {topic: version})
            server.note_installed(topic, encode_record(records.first_use(int(version), server.name)))
    return bulks((b"found", *(_found(server, topic) for topic in topics)))


def read(server: SimServer, keys: list[bytes], topics: list[bytes]) -> bytes:
    return bulks(_found(server, topic) for topic in topics)


def _found(server: SimServer, topic: bytes) -> bytes:
    """The topic's record, or the version of its first use."""
    first = server.keys.fields(FIRST_USES).get(topic, b"")
    return server.keys.fields(RECORDS).get(topic) or (first if _counts(server, first) else b"")


def keep(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    key, first_uses = keys
    topics = arguments[::3]
    for topic, version, record in zip(topics, arguments[1::3], arguments[2::3], strict=True):
        if topic not in server.keys.fields(key) and server.keys.fields(first_uses).get(topic) == version:
            server.keys.set_fields(key, {topic: record})
            server.keys.delete_fields(first_uses, [topic])
    kept = server.keys.fields(key)
    return bulks(kept.get(topic, b"") for topic in topics)


def end_unused(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    version, *topics = arguments
    if server.keys.fields(MEMBERS).get(b"version") != version:
        return array([integer(0)])
    return array([integer(sum(_end_unused(server, keys[0], topic) for topic in topics))])


def _end_unused(server: SimServer, key: bytes, topic: bytes) -> bool:
    if _is_held(server, topic) and _counts(server, server.keys.fields(key).get(topic)):
        return False
    return bool(server.keys.delete_fields(key, [topic]))


def _is_held(server: SimServer, topic: bytes) -> bool:
    return bool(server.channels.get(topic) or server.channels.get(CONTROL + topic))


def claim(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    (key,) = keys
    who, stale = arguments
    held = server.keys.fields(key)
    holder, beat = held.get(b"holder"), held.get(b"beat")
    if holder is not None and beat is not None and holder != who and beat != stale and _is_there(server, key, holder):
        return bulks((holder, beat))
    next_beat = b"%d" % (int(beat or b"0") + 1)
    server.keys.set_fields(key, {b"holder": who, b"beat": next_beat})
    return bulks((who, next_beat))


def _is_there(server: SimServer, key: bytes, holder: bytes) -> bool:
    return bool(server.channels.get(b"%b:%b" % (key, holder)))


TWINS: dict[bytes, Twin] = {
    INSTALL: install,
    INSTALL_MEMBERS: install_members,
    FIRST_USE: first_use,
    READ: read,
    KEEP: keep,
    END_UNUSED: end_unused,
    CLAIM: claim,
}
