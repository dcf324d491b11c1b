"""TAKE and COMMIT in Python: how groups share the parts of a log (`core/wire/scripts.py`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nearcast.core.model.names import INBOX
from nearcast.sim.valkey.replies import bulk, bulks

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import SimServer

_MEMBER = re.compile(rb"(\S+) ([0-9]+)")
_CURSOR = re.compile(rb"(\d+) (\S+) (\d+) (.+)")


def commit(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    (key,) = keys
    group, owner, term, state, release = arguments
    cursor = server.keys.fields(key).get(b"g:" + group, b"")
    found = _CURSOR.fullmatch(cursor)
    if found is None or (found[2], found[1]) != (owner, term):
        return bulk(cursor)
    holder = b"-" if release == b"1" else owner
    changed = b"%b %b %d %b" % (term, holder, int(found[3]) + 1, state)
    server.keys.set_fields(key, {b"g:" + group: changed})
    return bulk(changed)


def take(server: SimServer, keys: list[bytes], arguments: list[bytes]) -> bytes:
    (key,) = keys
    group, member, stale, new, wanted = arguments
    others = _members(server, key, b"m:" + group, member)
    cursor = server.keys.fields(key).get(b"g:" + group)
    if not cursor and not new:
        return bulks((b"", *others))
    if not cursor:
        cursor = b"0 - 0 " + new
        server.keys.set_fields(key, {b"g:" + group: cursor})
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        return bulks((cursor, *others))
    term, owner, beat, state = found.groups()
    free = owner == b"-" or beat == stale or not _is_connected(server, owner)
    if wanted == b"1" and owner != member and free:
        cursor = b"%d %b %d %b" % (int(term) + 1, member, int(beat) + 1, state)
        server.keys.set_fields(key, {b"g:" + group: cursor})
    return bulks((cursor, *others))


def _members(server: SimServer, key: bytes, field: bytes, member: bytes) -> list[bytes]:
    """The other members that are connected, each with its beat; those that are not are forgotten."""
    others: list[bytes] = []
    own = 0.0
    for other, beat in _MEMBER.findall(server.keys.fields(key).get(field, b"")):
        if other == member:
            own = float(beat)
        elif _is_connected(server, other):
            others += (other, beat)
    server.keys.set_fields(key, {field: b" ".join((*others, member, f"{own + 1:.0f}".encode()))})
    return others


def _is_connected(server: SimServer, member: bytes) -> bool:
    return bool(server.channels.get(INBOX + member))
