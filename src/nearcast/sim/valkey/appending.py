"""APPEND in Python: batches are published and kept in one step (`core/wire/scripts.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nearcast.core.model.logs import bytes_field
from nearcast.core.model.names import FIRST_USES, MEMBERS, RECORDS
from nearcast.sim.valkey.replies import CommandError, array, bulk, check_channels, integer
from nearcast.sim.valkey.streams import Stream, next_id

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import Session, SimServer


class _Step(NamedTuple):
    """One topic of a call."""

    topic: bytes
    epoch: bytes
    settled: bytes
    first: bytes
    last: bytes
    batch: bytes


def append(session: Session, keys: list[bytes], arguments: list[bytes]) -> bytes:
    server = session.server
    numbers, older, totals, *streams = keys
    version, publisher, *rest = arguments
    logs = server.keys.fields(MEMBERS).get(b"logs")
    if logs != version:
        return bulk(logs or b"")
    server.keys.set_fields(numbers, {b"": b""})
    replies: list[bytes] = []
    kept: list[_Step] = []
    for step in map(_Step._make, zip(*[iter(rest)] * 6, strict=True)):
        name = step.topic + b":" + publisher
        epoch = _epoch(server, step.topic)
        last = int(server.keys.fields(numbers).get(name) or server.keys.fields(older).get(name) or b"0")
        if epoch != step.epoch:
            replies.append(bulk(b"e" + epoch))
        elif max(last + 1, int(step.settled)) != int(step.first):
            replies.append(bulk(b"n%d" % last))
            server.keys.set_fields(numbers, {name: b"%d" % last})
        else:
            replies.append(_published(session, step))
            if replies[-1].startswith(b":"):
                server.keys.set_fields(numbers, {name: step.last})
                kept.append(step)
    added = sum(int(step.last) - int(step.first) + 1 for step in kept)
    size = sum(len(step.batch) for step in kept)
    for stream in streams if kept else ():
        count = _increase(server, totals, stream, added)
        _increase(server, totals, bytes_field(stream), size)
        batches = [part for step in kept for part in (step.topic, step.batch)]
        for step in kept:
            server.note_kept(stream, step.topic, step.batch)
        _add(server, stream, [b"publisher", publisher, b"logs", version, b"count", count, *batches])
    return array(replies)


def confirm(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    (numbers, older), (name,) = keys, arguments
    last = server.keys.fields(numbers).get(name) or server.keys.fields(older).get(name) or b"0"
    server.keys.set_fields(numbers, {name: last})
    return bulk(last)


def _increase(server: SimServer, key: bytes, field: bytes, by: int) -> bytes:
    increased = b"%d" % (int(server.keys.fields(key).get(field, b"0")) + by)
    server.keys.set_fields(key, {field: increased})
    return increased


def _epoch(server: SimServer, topic: bytes) -> bytes:
    record = server.keys.fields(RECORDS).get(topic)
    if record is not None:
        found = msgspec.json.decode(record)
        return b"%d" % found["placement"][0] if found["previous"] is None else b""
    return server.keys.fields(FIRST_USES).get(topic, b"")


def _published(session: Session, step: _Step) -> bytes:
    try:
        check_channels(session, [step.topic])
    except CommandError as refused:
        return bulk(b"x" + str(refused).encode())
    return integer(session.server.publish(step.topic, step.batch))


def add_mark(server: SimServer, totals: bytes, stream: bytes, mark: bytes) -> None:
    count = server.keys.fields(totals).get(stream, b"0")
    logs = server.keys.fields(MEMBERS).get(b"logs", b"0")
    _add(server, stream, [b"begin", mark, b"logs", logs, b"count", count])


def last_entry(server: SimServer, key: bytes) -> bytes:
    """The id of the last entry; empty if there is none."""
    stream = server.keys.stream(key)
    return b"%d-%d" % stream.records[-1][0] if stream is not None and stream.records else b""


def _add(server: SimServer, key: bytes, fields: list[bytes]) -> None:
    stream = server.keys.stream(key) or Stream()
    stream.add(next_id(stream.last_id, server.keys.now_ms), fields)
    server.keys.put_stream(key, stream)
    server.publish(key, b"")
