"""EVAL of the simulated server: the scripts of `core/scripts.py`, step by step in Python.

Arguments are those of the Lua scripts, and so are the answers; the conformance test holds both to that. A number that
Lua could not read raises here: in a simulation that is a defect of ours, not something to answer politely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.names import CONTROL, MEMBERS
from nearcast.core.record import TERMS, VERSIONS
from nearcast.core.scripts import CLAIM, END_UNUSED, FIRST_USE, INSTALL, INSTALL_MEMBERS, KEEP
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


def _read(data: bytes | None) -> _Stored | None:
    """None for what is no record."""
    try:
        stored = _decode(data) if data is not None else None
    except (msgspec.DecodeError, RecursionError):
        return None
    return stored if stored is not None and 0 <= stored.version < VERSIONS and 0 <= stored.term < TERMS else None


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
    return array([integer(_install_one(server, keys[0], term, *step)) for step in steps])


def _install_one(server: SimServer, key: bytes, term: int, topic: bytes, version: bytes, record: bytes) -> int:
    stored = _read(server.keys.fields(key).get(topic)) or _NOTHING_STORED
    if term < stored.term:
        return -1
    if _is_older(int(version), stored):
        return stored.version
    server.keys.set_fields(key, {topic: record})
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
    (records,) = keys
    version, record, *topics = arguments
    known = server.keys.fields(MEMBERS)
    if known.get(b"version") != version:
        return bulks((b"stale", known.get(b"document", b"")))
    for topic in topics:
        if topic not in server.keys.fields(records):
            server.keys.set_fields(records, {topic: record})
            server.note_installed(topic, record)
    stored = server.keys.fields(records)
    return bulks((b"records", *(stored[topic] for topic in topics)))


def keep(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    term, *topics = arguments
    for topic in topics:
        record = server.keys.fields(keys[0]).get(topic)
        stored = _read(record)
        if record is not None and stored is not None and stored.term == 0:
            server.keys.set_fields(keys[0], {topic: record.replace(b'"term":0,', b'"term":%b,' % term, 1)})
    records = server.keys.fields(keys[0])
    return bulks(records.get(topic, b"") for topic in topics)


def end_unused(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    version, *topics = arguments
    if server.keys.fields(MEMBERS).get(b"version") != version:
        return array([integer(0)])
    return array([integer(sum(_end_unused(server, keys[0], topic) for topic in topics))])


def _end_unused(server: SimServer, key: bytes, topic: bytes) -> bool:
    stored = _read(server.keys.fields(key).get(topic))
    if stored is None or stored.term != 0 or _is_held(server, topic):
        return False
    server.keys.delete_fields(key, [topic])
    return True


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
    KEEP: keep,
    END_UNUSED: end_unused,
    CLAIM: claim,
}
