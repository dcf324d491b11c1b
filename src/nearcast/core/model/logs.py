"""Logs: which messages are kept, for how long, and at how many servers.

Logs stand in the membership document, so that every client and every server knows them. A message of a covered topic is
appended to a stream on the server that carries the topic, by the publish itself.

A broker that is given up and comes back is another broker, with other streams. So what it keeps is named after its
*life*: the broker, and the version of the membership it joined with. What one life keeps of one log is a *part* of the
log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from nearcast.core.model.globs import matcher
from nearcast.core.model.names import LOGS, NUMBERS, OLDER_NUMBERS, RESERVED

NAME_MAX = 64
PATTERNS_MAX = 64  # of one log
LOGS_MAX = 256
RETAIN_S_MIN = 1.0
RETAIN_S_MAX = 10 * 365 * 86400.0
RETAIN_BYTES_MIN = 1 << 16
RETAIN_BYTES_MAX = 1 << 50
QUORUM_MAX = 7

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Log(msgspec.Struct, frozen=True):
    """The messages of all topics that match one of the patterns, published since the log was created."""

    name: str
    created: int  # the version of the membership: a log that is dropped and created again is another one
    topics: tuple[str, ...]  # patterns
    retain_s: float
    retain_bytes: int  # at each broker
    quorum: int = 1  # servers that have a message before it counts as published

    def covers(self, topic: bytes) -> bool:
        return any(matcher(pattern.encode())(topic) for pattern in self.topics)


def covering(logs: Iterable[Log], topic: bytes) -> tuple[Log, ...]:
    """The logs that keep the topic's messages."""
    return tuple(log for log in logs if log.covers(topic))


def life_of(broker: str, joined: int) -> str:
    """The name of a broker's life: it joined with this version of the membership."""
    return f"{broker}@{joined}"


def stream_of(log: Log, life: str) -> bytes:
    """The key of a part: the log's stream on the server of that life."""
    return b"%b%b@%d:%b" % (LOGS, log.name.encode(), log.created, life.encode())


def last_numbers(life: str) -> tuple[bytes, bytes]:
    """The keys of the last number kept of each topic and publisher: those used lately, and the others."""
    return NUMBERS + life.encode(), OLDER_NUMBERS + life.encode()


def problem_of(log: Log) -> str:
    """What is wrong with a log, in words for the person who asked for it; empty if nothing is."""
    if not _NAME.fullmatch(log.name):
        return f"bad log name {log.name[:80]!r}: use 1 to {NAME_MAX} letters, digits, dots, dashes and underscores"
    if not 1 <= len(log.topics) <= PATTERNS_MAX:
        return f"a log of {len(log.topics)} topic patterns: give 1 to {PATTERNS_MAX}"
    for pattern in log.topics:
        if not pattern or pattern.encode().startswith(RESERVED):
            return f"bad topic pattern {pattern!r}: give a topic or a pattern such as order.*"
    if not RETAIN_S_MIN <= log.retain_s <= RETAIN_S_MAX:
        return f"messages cannot be kept for {log.retain_s:g} s: choose 1 s to 10 years"
    if not RETAIN_BYTES_MIN <= log.retain_bytes <= RETAIN_BYTES_MAX:
        return f"{log.retain_bytes} bytes cannot be kept: choose 64 KiB or more"
    if not 1 <= log.quorum <= QUORUM_MAX:
        return f"a quorum of {log.quorum}: choose 1 to {QUORUM_MAX}"
    return ""
