"""The commands of the simulated server: how a command is found, checked and run, and the table of them all.

A function of the table gets the session and the arguments, and returns the reply as bytes or raises CommandError. Error
texts are the real server's, because the core reads them and so do people. Options that nearcast does not use are
refused as syntax errors.

Publish/subscribe and EVAL are implemented here. EVAL does what the scripts of `core/wire/scripts.py` do, in Python.
Arguments and answers are those of the Lua scripts; the conformance test checks both. A number that Lua could not read
raises an exception, because in a simulation that is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nearcast.core.model import placement as records
from nearcast.core.model.globs import matcher
from nearcast.core.model.names import CONTROL, FIRST_USES, MEMBERS, RECORDS
from nearcast.core.model.placement import EPOCH_DIGITS
from nearcast.core.wire.frames import encode_record
from nearcast.core.wire.scripts import (
    APPEND,
    CLAIM,
    COMMIT,
    CONFIRM,
    END_UNUSED,
    FIRST_USE,
    INSTALL,
    INSTALL_MEMBERS,
    KEEP,
    PAGE,
    READ,
    TAKE,
)
from nearcast.sim.valkey import connection, keys, replication, streams
from nearcast.sim.valkey.appending import add_mark, append, confirm, last_entry
from nearcast.sim.valkey.cursors import commit, take
from nearcast.sim.valkey.replies import (
    NULL_RESP3,
    OK,
    CommandError,
    array,
    bulk,
    bulks,
    check_channels,
    error,
    integer,
    parse_integer,
    wrong_number,
)

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import Held, Session, SimServer


_RESP3_ONLY = "ERR the simulated server pushes in RESP3 only: send HELLO 3 first"


def publish(session: Session, arguments: list[bytes]) -> bytes:
    check_channels(session, arguments[:1])
    return b":%d\r\n" % session.server.publish(arguments[0], arguments[1])


def subscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _hold(session, b"subscribe", session.channels, arguments)


def psubscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _hold(session, b"psubscribe", session.patterns, arguments)


def unsubscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _release(session, b"unsubscribe", session.channels, arguments)


def punsubscribe(session: Session, arguments: list[bytes]) -> bytes:
    return _release(session, b"punsubscribe", session.patterns, arguments)


def _hold(session: Session, verb: bytes, held: Held, names: list[bytes]) -> bytes:
    if not session.resp3:
        raise CommandError(_RESP3_ONLY)
    check_channels(session, names)
    confirmations = []
    for name in names:
        held.add(name)
        confirmations.append(_confirmation(session, verb, bulk(name)))
    return b"".join(confirmations)


def _release(session: Session, verb: bytes, held: Held, names: list[bytes]) -> bytes:
    """Confirm every name, held or not. Without names, release everything held; if that is nothing, confirm nil."""
    if not session.resp3:
        raise CommandError(_RESP3_ONLY)
    confirmations = []
    for name in names or list(held.names):
        held.drop(name)
        confirmations.append(_confirmation(session, verb, bulk(name)))
    return b"".join(confirmations) or _confirmation(session, verb, NULL_RESP3)


def _confirmation(session: Session, verb: bytes, name: bytes) -> bytes:
    count = len(session.channels.names) + len(session.patterns.names)
    return b">3\r\n%b%b%b" % (bulk(verb), name, integer(count))


def numsub(session: Session, arguments: list[bytes]) -> bytes:
    table = session.server.channels
    return array(part for name in arguments for part in (bulk(name), integer(len(table.get(name, ())))))


def channels(session: Session, arguments: list[bytes]) -> bytes:
    if len(arguments) > 1:
        raise CommandError("ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP.")
    names = session.server.channels
    return bulks(filter(matcher(arguments[0]), names) if arguments else names)


def numpat(session: Session, arguments: list[bytes]) -> bytes:
    return integer(len(session.server.patterns))


# --- scripts


Twin = Callable[["SimServer", list[bytes], list[bytes]], bytes]  # most need no session


class _Stored(msgspec.Struct):
    """The parts of a record that INSTALL reads."""

    version: int
    term: int


_decode = msgspec.json.Decoder(_Stored).decode
_NOTHING_STORED = _Stored(version=-1, term=-1)


def _counts(server: SimServer, first: bytes | None) -> bool:
    """Whether this is a valid first use."""
    members = int(server.keys.fields(MEMBERS).get(b"version", b"-1"))
    return first is not None and len(first) <= EPOCH_DIGITS and first.isdigit() and int(first) <= members


def evaluate(session: Session, arguments: list[bytes]) -> bytes:
    text, count = arguments[0], parse_integer(arguments[1])
    if count > len(arguments) - 2:
        raise CommandError("ERR Number of keys can't be greater than number of args")
    if count < 0:
        raise CommandError("ERR Number of keys can't be negative")
    keys, values = arguments[2 : 2 + count], arguments[2 + count :]
    if text == APPEND:
        return append(session, keys, values)
    twin = TWINS.get(text)
    if twin is None:
        raise CommandError("ERR the simulated server does not have this script: add it to sim/valkey/commands.py")
    return twin(session.server, keys, values)


def install(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    records_key, first_uses, totals, *parts = keys
    term, marks, rest = int(arguments[0]), arguments[1 : 1 + len(parts)], arguments[1 + len(parts) :]
    versions, opened = [], False
    for topic, version, record in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        before = _version_of(server.keys.fields(records_key).get(topic))
        versions.append(_install_one(server, (records_key, first_uses), term, topic, version, record))
        opened = opened or versions[-1] > before
    for stream, mark in zip(parts, marks, strict=True):
        if opened and mark:
            add_mark(server, totals, stream, mark)
    return array([*map(integer, versions), *(bulk(last_entry(server, stream)) for stream in parts)])


def _version_of(record: bytes | None) -> int:
    return _decode(record).version if record is not None else -1


def _install_one(
    server: SimServer, keys: tuple[bytes, bytes], term: int, topic: bytes, version: bytes, record: bytes
) -> int:
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
    version, document, logs = arguments
    stored = int(server.keys.fields(keys[0]).get(b"version", b"-1"))
    if int(version) >= stored:
        server.keys.set_fields(keys[0], {b"version": version, b"document": document, b"logs": logs})
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
    COMMIT: commit,
    CONFIRM: confirm,
    PAGE: streams.page,
    TAKE: take,
}


# --- the table


Handler = Callable[["Session", list[bytes]], bytes]

UNLIMITED = 1 << 20  # arguments; the protocol's own limit
_QUOTED_BYTES = 128  # of an unknown command


class Command(NamedTuple):
    """One command of the table."""

    handler: Handler
    least: int  # arguments
    most: int


def execute(session: Session, parts: list[bytes]) -> bytes:
    """The reply to one command, which has at least a name."""
    name = parts[0]
    command = COMMANDS.get(name) or COMMANDS.get(name.upper())
    if not session.authenticated and (command is None or command.handler not in WITHOUT_AUTH):
        return error("NOAUTH Authentication required.")
    if command is None:
        return error(_unknown(parts))
    if command.handler in WRITES and session.server.following.address is not None:
        session.spoiled = session.queued is not None
        return error("READONLY You can't write against a read only replica.")
    if session.queued is not None and command.handler is not run_transaction:
        session.queued.append(parts)
        return b"+QUEUED\r\n"
    try:
        return _run(session, command, name, parts[1:])
    except CommandError as refused:
        return error(str(refused))


def _run(session: Session, command: Command, name: bytes, arguments: list[bytes]) -> bytes:
    handler, least, most = command
    if least <= len(arguments) <= most:
        return handler(session, arguments)
    raise wrong_number(name)


def _unknown(parts: list[bytes]) -> bytes:
    quoted = b""
    for part in parts[1:]:
        if len(quoted) >= _QUOTED_BYTES:
            break
        quoted += b"'%b' " % part[: _QUOTED_BYTES - len(quoted)]
    return b"ERR unknown command '%b', with args beginning with: %b" % (parts[0][:_QUOTED_BYTES], quoted)


def begin_transaction(session: Session, arguments: list[bytes]) -> bytes:
    session.queued = []
    return OK


def run_transaction(session: Session, arguments: list[bytes]) -> bytes:
    """EXEC: all of it, or nothing if a watched key has changed. Only keys with strings are watched."""
    queued, session.queued = session.queued, None
    if queued is None:
        raise CommandError("ERR EXEC without MULTI")
    watched, session.watched = session.watched, {}
    spoiled, session.spoiled = session.spoiled, False
    if spoiled:
        raise CommandError("EXECABORT Transaction discarded because of previous errors.")
    if any(session.server.keys.string(key) != value for key, value in watched.items()):
        return NULL_RESP3
    return array([execute(session, parts) for parts in queued])


def watch(session: Session, arguments: list[bytes]) -> bytes:
    session.watched |= {key: session.server.keys.string(key) for key in arguments}
    return OK


def unwatch(session: Session, arguments: list[bytes]) -> bytes:
    session.watched.clear()
    return OK


def _family(name: str, members: dict[bytes, Command]) -> Command:
    """A command whose first argument selects one of several."""

    def handler(session: Session, arguments: list[bytes]) -> bytes:
        which = arguments[0]
        member = members.get(which.upper())
        if member is None:
            text = which.decode("utf-8", "surrogateescape")
            raise CommandError(f"ERR unknown subcommand '{text}'. Try {name} HELP.")
        return _run(session, member, b"%b|%b" % (name.encode(), which), arguments[1:])

    return Command(handler, 1, UNLIMITED)


CLIENT = {
    b"SETNAME": Command(connection.client_setname, 1, 1),
    b"GETNAME": Command(connection.client_getname, 0, 0),
    b"LIST": Command(connection.client_list, 0, 0),
    b"KILL": Command(connection.client_kill, 1, UNLIMITED),
}
PUBSUB = {
    b"NUMSUB": Command(numsub, 0, UNLIMITED),
    b"CHANNELS": Command(channels, 0, UNLIMITED),
    b"NUMPAT": Command(numpat, 0, 0),
}
COMMANDS = {
    b"PUBLISH": Command(publish, 2, 2),
    b"SUBSCRIBE": Command(subscribe, 1, UNLIMITED),
    b"UNSUBSCRIBE": Command(unsubscribe, 0, UNLIMITED),
    b"PSUBSCRIBE": Command(psubscribe, 1, UNLIMITED),
    b"PUNSUBSCRIBE": Command(punsubscribe, 0, UNLIMITED),
    b"PUBSUB": _family("PUBSUB", PUBSUB),
    b"GET": Command(keys.get, 1, 1),
    b"SET": Command(keys.set_string, 2, UNLIMITED),
    b"DEL": Command(keys.delete, 1, UNLIMITED),
    b"UNLINK": Command(keys.delete, 1, UNLIMITED),
    b"RENAME": Command(keys.rename, 2, 2),
    b"SCAN": Command(keys.scan, 1, UNLIMITED),
    b"EXISTS": Command(keys.exists, 1, UNLIMITED),
    b"INCR": Command(keys.incr, 1, 1),
    b"PEXPIRE": Command(keys.pexpire, 2, 2),
    b"PTTL": Command(keys.pttl, 1, 1),
    b"HGET": Command(keys.hget, 2, 2),
    b"HMGET": Command(keys.hmget, 2, UNLIMITED),
    b"HSET": Command(keys.hset, 3, UNLIMITED),
    b"HSETNX": Command(keys.hsetnx, 3, 3),
    b"HDEL": Command(keys.hdel, 2, UNLIMITED),
    b"HGETALL": Command(keys.hgetall, 1, 1),
    b"HLEN": Command(keys.hlen, 1, 1),
    b"HSCAN": Command(keys.hscan, 2, UNLIMITED),
    b"XADD": Command(streams.xadd, 4, UNLIMITED),
    b"XLEN": Command(streams.xlen, 1, 1),
    b"XRANGE": Command(streams.xrange, 3, UNLIMITED),
    b"XREVRANGE": Command(streams.xrevrange, 3, UNLIMITED),
    b"XTRIM": Command(streams.xtrim, 3, UNLIMITED),
    b"WAIT": Command(replication.wait, 2, 2),
    b"REPLICAOF": Command(replication.replicaof, 2, 2),
    b"CONFIG": _family("CONFIG", {b"SET": Command(replication.config_set, 2, 2)}),
    b"ACL": _family("ACL", {b"SETUSER": Command(replication.acl_setuser, 1, UNLIMITED)}),
    b"MULTI": Command(begin_transaction, 0, 0),
    b"EXEC": Command(run_transaction, 0, 0),
    b"WATCH": Command(watch, 1, UNLIMITED),
    b"UNWATCH": Command(unwatch, 0, 0),
    b"EVAL": Command(evaluate, 2, UNLIMITED),
    b"HELLO": Command(connection.hello, 0, UNLIMITED),
    b"AUTH": Command(connection.auth, 1, UNLIMITED),
    b"CLIENT": _family("CLIENT", CLIENT),
    b"INFO": Command(connection.info, 0, UNLIMITED),
    b"PING": Command(connection.ping, 0, 1),
    b"ECHO": Command(connection.echo, 1, 1),
    b"QUIT": Command(connection.quit_session, 0, UNLIMITED),
}
WITHOUT_AUTH: frozenset[Handler] = frozenset((connection.hello, connection.auth, connection.quit_session))
WRITES: frozenset[Handler] = frozenset((keys.set_string, keys.hset, keys.delete))  # replicas refuse them
