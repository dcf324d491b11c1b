"""Parts of the simulated server's commands: replies as bytes, and users' rights.

Rights are the part of a real server's ACLs that matters for topics. A user may use all commands and keys, and all
channels except those denied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.sim.valkey.server import Session, SimServer


OK = b"+OK\r\n"
NULL_RESP2 = b"$-1\r\n"
NULL_RESP3 = b"_\r\n"

INT64_MAX = 2**63 - 1
_INTEGER = re.compile(rb"0|-?[1-9][0-9]*")


class CommandError(Exception):
    """The command is refused. The text is the server's error, beginning with its code."""


NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def wrong_number(name: bytes) -> CommandError:
    return CommandError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")


def error(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    # The text may quote an argument, and a line break in it would end the reply early.
    return b"-%b\r\n" % data.replace(b"\r", b" ").replace(b"\n", b" ")


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def bulk_or_null(data: bytes | None, resp3: bool) -> bytes:
    if data is None:
        return NULL_RESP3 if resp3 else NULL_RESP2
    return bulk(data)


def integer(value: int) -> bytes:
    return b":%d\r\n" % value


def array(items: Iterable[bytes]) -> bytes:
    """An array of items that are already replies."""
    parts = list(items)
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def bulks(items: Iterable[bytes]) -> bytes:
    return array(map(bulk, items))


def mapping(pairs: Iterable[tuple[bytes, bytes]], resp3: bool) -> bytes:
    """A map of keys to items that are already replies; RESP2 has flat arrays instead."""
    parts = [bulk(key) + reply for key, reply in pairs]
    return b"%b%b" % (b"%%%d\r\n" % len(parts) if resp3 else b"*%d\r\n" % (2 * len(parts)), b"".join(parts))


def verbatim(text: bytes, resp3: bool) -> bytes:
    """Text for people. RESP3 marks it as such, and the mark counts towards the length."""
    return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text) if resp3 else bulk(text)


def parse_integer(data: bytes) -> int:
    """A 64-bit integer as servers read it: no spaces, no plus sign, no leading zeros."""
    if not _INTEGER.fullmatch(data) or not -INT64_MAX - 1 <= int(data) <= INT64_MAX:
        raise CommandError(NOT_AN_INTEGER)
    return int(data)


NO_CHANNEL = "NOPERM No permissions to access a channel"


# --- rights


class User:
    """A user of the server, with the channels denied to it."""

    def __init__(self, password: bytes, *, replicates: bool = False) -> None:
        self.password = password
        self.replicates = replicates  # it may attach as a replica
        self.denied: set[bytes] = set()  # channels and patterns


def check_channels(session: Session, names: Iterable[bytes]) -> None:
    """Refuse the whole command if one of the channels is denied, before anything is run, as a server does."""
    user = session.user
    if user is not None and user.denied and not user.denied.isdisjoint(names):
        raise CommandError(NO_CHANNEL)


def deny(server: SimServer, user: User, *names: bytes) -> None:
    """Like ACL SETUSER: connections of the user that hold one of the channels are closed."""
    user.denied.update(names)
    for session in list(server.sessions):
        held = session.channels.names.keys() | session.patterns.names.keys()
        if session.user is user and not user.denied.isdisjoint(held):
            session.close()
            server.killed.append(session)
