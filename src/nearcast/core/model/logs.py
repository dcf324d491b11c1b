"""Logs: which messages are kept, for how long, and at how many servers.

Logs stand in the membership document, so that every client and every server knows them. A message of a covered topic is
appended to a stream on the server that carries the topic, by the publish itself.

A server that lost its memory has lost what it kept, and a broker that is given up and comes back is another broker. So
what is kept is named after a *life*: the broker, and the version of the membership with which this run of its server
began. What one life keeps of one log is a *part* of the log. Lives that have ended stay in the membership for a while,
so that readers learn what has become of their parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from nearcast.core.model.globs import matcher
from nearcast.core.model.names import CURSORS, LOGS, NUMBERS, OLDER_NUMBERS, TOTALS, is_topic

NAME_MAX = 64
PATTERNS_MAX = 64  # of one log
LOGS_MAX = 256
RETAIN_S_MIN = 1.0
RETAIN_S_MAX = 10 * 365 * 86400.0
RETAIN_BYTES_MIN = 1 << 16
RETAIN_BYTES_MAX = 1 << 50
QUORUM_MAX = 7
PAGE_BYTES = 256 << 10  # of entries read at once: more would hold up everything else on the link
DIGITS_MAX = 18  # of numbers in logs: scripts calculate with up to 16, and 64 bits are enough for more
GROUPS_MAX = 64  # whose reading is noted when a life ends; the others hear that something may be lost
FORMER_MAX = 256  # lives that have ended and are still in the membership; the oldest are forgotten first

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ID = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")


class Log(msgspec.Struct, frozen=True):
    """The messages of all topics that match one of the patterns, published since the log was created."""

    name: str
    created: int  # the version of the membership: a log that is dropped and created again is another one
    topics: tuple[str, ...]  # patterns
    retain_s: float
    retain_bytes: int  # at each broker
    quorum: int = 1  # servers that have a message before it counts as published

    @property
    def key(self) -> str:
        """What tells it from all other logs, including one of the same name that was dropped before."""
        return f"{self.name}@{self.created}"

    def covers(self, topic: bytes) -> bool:
        return any(matcher(pattern.encode())(topic) for pattern in self.topics)


def covering(logs: Iterable[Log], topic: bytes) -> tuple[Log, ...]:
    """The logs that keep the topic's messages."""
    return tuple(log for log in logs if log.covers(topic))


def quorum_of(logs: Iterable[Log]) -> int:
    """How many servers must have a message that these logs keep before it counts as published."""
    return max((log.quorum for log in logs), default=1)


# --- lives and parts


EntryId = tuple[int, int]  # of an entry in a stream: the server's milliseconds, and a number
BEFORE_ALL: EntryId = (0, 0)


class PartState(StrEnum):
    """What has become of the parts of a life that has ended."""

    LOST = "lost"  # nobody has them, or what is left of them was given up
    SEALING = "sealing"  # its replicas are being stopped: wait
    HELD = "held"  # a replica has them


class PartLoad(msgspec.Struct, frozen=True, array_like=True):
    """How much there is in a part."""

    total: int  # messages ever kept
    entries: int  # that are still there
    size_bytes: int  # ever kept
    groups: dict[str, int] = {}  # group -> messages that it has not read

    @property
    def is_read(self) -> bool:
        """Whether nothing is left that somebody may want: all groups have read it, and there is one."""
        return not self.entries or (bool(self.groups) and not any(self.groups.values()))


class FormerLife(msgspec.Struct, frozen=True):
    """A life that has ended."""

    life: str
    ended: int  # with this version of the membership
    state: PartState = PartState.LOST
    url: str = ""  # where its parts are read, if they are held
    replicas: dict[str, str] = {}  # that may have something of it: URL -> the replica's run when it was listed
    counts: dict[str, int] | None = None  # log -> messages it had kept in the end; None: not known
    unread: dict[str, dict[str, int]] = {}  # log -> group -> messages of them that it had not read


class Sealed(msgspec.Struct, frozen=True):
    """A replica that follows nobody any more."""

    run_id: str  # of the replica itself
    life: str  # of which it has something; empty if it has nothing
    offset: int  # how far it had followed


def life_of(broker: str, began: int) -> str:
    """The name of a life: this run of the broker's server began with this version of the membership."""
    return f"{broker}@{began}"


def broker_of(life: str) -> str:
    return life.rpartition("@")[0]


def unanswered_of(life: str) -> str:
    """What replicas may have had of a life that were given up: a part of its own, which is lost."""
    broker, _, began = life.rpartition("@")
    return f"{broker}+replicas@{began}"


def stream_of(log: Log, life: str) -> bytes:
    """The key of a part: the log's stream on the server of that life, and a channel on which appends are announced."""
    return b"%b%b:%b" % (LOGS, log.key.encode(), life.encode())


def cursors_of(log: Log, life: str) -> bytes:
    """The key of the cursors in a part: how far each group has read it."""
    return b"%b%b:%b" % (CURSORS, log.key.encode(), life.encode())


def last_numbers(life: str) -> tuple[bytes, bytes]:
    """The keys of the last number kept of each topic and publisher: those used lately, and the others."""
    return NUMBERS + life.encode(), OLDER_NUMBERS + life.encode()


def totals_of(life: str) -> bytes:
    """The key of the numbers of messages and bytes that were ever kept, by stream."""
    return TOTALS + life.encode()


def keys_of(logs: Iterable[Log], life: str) -> tuple[bytes, ...]:
    """The keys that keeping a message touches: last numbers, totals, and the streams."""
    return (*last_numbers(life), totals_of(life), *(stream_of(log, life) for log in logs))


Mark = dict[str, str]  # life -> id: what must have been read before a reader continues behind the mark


def encode_mark(after: Mark, life: str) -> bytes:
    """A mark for a part of this life, in which everything stands in order anyway; empty if there is nothing to say."""
    elsewhere = {other: entry for other, entry in after.items() if other != life}
    return msgspec.json.encode(elsewhere) if elsewhere else b""


def decode_mark(data: bytes) -> Mark:
    """A mark that is none asks for nothing: anyone who may publish to a log can write anything there."""
    try:
        return msgspec.json.decode(data, type=Mark)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def parse_number(text: bytes | str) -> int | None:
    """A number as the scripts write it; None if it is none, or longer than any of ours."""
    return int(text) if text.isdigit() and text.isascii() and len(text) <= DIGITS_MAX else None


def parse_id(text: bytes | str) -> EntryId:
    """An id as the server writes it; one that is no id counts as before all others."""
    found = _ID.fullmatch(text.decode(errors="replace") if isinstance(text, bytes) else text)
    entry = (int(found[1]), int(found[2])) if found is not None else BEFORE_ALL
    return entry if max(entry) < 1 << 64 else BEFORE_ALL


def after_all(marks: dict[str, Mark], more: Mapping[str, Mark]) -> None:
    """Add marks, by log: where both name a life, the later entry counts."""
    for log, mark in more.items():
        known = marks.setdefault(log, {})
        for life, entry in mark.items():
            known[life] = max(known.get(life, ""), entry, key=parse_id)


def format_id(entry: EntryId) -> str:
    return f"{entry[0]}-{entry[1]}"


def bytes_field(stream: bytes) -> bytes:
    """The field of the totals that counts a stream's bytes; the stream's own name counts its messages."""
    return stream + b":bytes"


def problem_of(log: Log) -> str:
    """What is wrong with a log, in words for the person who asked for it; empty if nothing is."""
    if not _NAME.fullmatch(log.name):
        return f"bad log name {log.name[:80]!r}: use 1 to {NAME_MAX} letters, digits, dots, dashes and underscores"
    if not 1 <= len(log.topics) <= PATTERNS_MAX:
        return f"a log of {len(log.topics)} topic patterns: give 1 to {PATTERNS_MAX}"
    for pattern in log.topics:
        if not is_topic(pattern.encode("utf-8", "surrogatepass")):
            return f"bad topic pattern {pattern[:80]!r}: give a topic or a pattern such as order.*"
    if not RETAIN_S_MIN <= log.retain_s <= RETAIN_S_MAX:
        return f"messages cannot be kept for {log.retain_s:g} s: choose 1 s to 10 years"
    if not RETAIN_BYTES_MIN <= log.retain_bytes <= RETAIN_BYTES_MAX:
        return f"{log.retain_bytes} bytes cannot be kept: choose 64 KiB or more"
    if not 1 <= log.quorum <= QUORUM_MAX:
        return f"a quorum of {log.quorum}: choose 1 to {QUORUM_MAX}"
    return ""
