"""Replies of the simulated server as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable

OK = b"+OK\r\n"
NULL_RESP2 = b"$-1\r\n"
NULL_RESP3 = b"_\r\n"

INT64_MAX = 2**63 - 1
_INTEGER = re.compile(rb"0|-?[1-9][0-9]*")


class CommandError(Exception):
    """The command is refused; the text is the server's error, with its code in front."""


NOT_AN_INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


def wrong_number(name: bytes) -> CommandError:
    return CommandError(f"ERR wrong number of arguments for '{name.decode().lower()}' command")


def error(text: str | bytes) -> bytes:
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    # The text may quote an argument, and a line break in that would end the reply early.
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
    """An array of things that are replies already."""
    parts = list(items)
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def bulks(items: Iterable[bytes]) -> bytes:
    return array(map(bulk, items))


def mapping(pairs: Iterable[tuple[bytes, bytes]], resp3: bool) -> bytes:
    """A map of keys to things that are replies already; RESP2 has flat arrays instead."""
    parts = [bulk(key) + reply for key, reply in pairs]
    return b"%b%b" % (b"%%%d\r\n" % len(parts) if resp3 else b"*%d\r\n" % (2 * len(parts)), b"".join(parts))


def verbatim(text: bytes, resp3: bool) -> bytes:
    """Text for people, which RESP3 marks as such: the mark counts into the length."""
    return b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text) if resp3 else bulk(text)


def parse_integer(data: bytes) -> int:
    """A 64-bit integer as the servers read one: no spaces, no plus sign, no leading zeros."""
    if not _INTEGER.fullmatch(data) or not -INT64_MAX - 1 <= int(data) <= INT64_MAX:
        raise CommandError(NOT_AN_INTEGER)
    return int(data)
