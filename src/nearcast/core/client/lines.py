"""Lines: the entries of a part of a log, as a reader has them between reading and delivery (PROTOCOL "Logs").

Anyone who may publish to a log can write anything there, so what is no entry of ours is recognised here.
"""

from __future__ import annotations

import msgspec

from nearcast.core.model.cursors import Position
from nearcast.core.model.logs import EntryId, Mark, decode_mark, parse_number
from nearcast.core.model.message import Kept, Message
from nearcast.core.model.names import decode_topic
from nearcast.core.wire.backend import Entry
from nearcast.core.wire.batches import decode_batch
from nearcast.core.wire.frames import BATCH, HEADER, HEADER_BYTES, OF_USERS, SKIPS, split_user

MARK = b"begin"  # the first field of a mark


class Line(msgspec.Struct, eq=False):
    """An entry that waits for its turn: messages, a mark, or a report of what is missing before the next one."""

    entry: EntryId
    before: Position  # behind the entry before it
    count: int  # messages of the part up to this entry
    version: int  # of the logs when it was written
    events: list[Kept]  # none in a mark, or if all its numbers were given up
    mark: Mark = {}
    size_bytes: int = 0
    fetches: dict[str, int] = {}  # of the parts that the mark waits for, when it was first looked at
    delivered: int = 0  # events of the part that were delivered before it; known when it is delivered

    def behind(self, taken: int) -> Position:
        """The place behind this many of its events."""
        if taken == len(self.events):
            return Position(self.entry, 0, self.count)
        return Position(self.before.entry, self.before.index + taken, self.before.count)


def read_line(upto: Position, entry_id: EntryId, fields: list[bytes], received_at: float) -> Line | None:
    """The entry that follows a place; None if nearcast has not written it."""
    if len(fields) < 6 or fields[2] != b"logs":
        return None
    version, count = parse_number(fields[3]), parse_number(fields[5])
    if version is None or count is None:
        return None
    if fields[0] == MARK:
        return Line(entry_id, upto, count, version, [], decode_mark(fields[1]))
    events: list[Kept] = []
    for topic, batch in zip(fields[6::2], fields[7::2], strict=False):
        messages = _messages(decode_topic(topic), batch, received_at)
        if messages is None:
            return None
        events += messages
    return Line(entry_id, upto, count, version, events, size_bytes=sum(map(len, fields)))


def count_in(fields: list[bytes]) -> int:
    """The messages of an entry, with numbers that were given up."""
    return sum(_count(batch) for batch in fields[7::2])


def version_in(fields: list[bytes]) -> int:
    """The version of the logs with which an entry was written; 0 if it says none."""
    return parse_number(fields[3]) or 0 if len(fields) > 3 else 0


def has_messages(entries: list[Entry]) -> bool:
    """Whether one of the entries is no mark."""
    return any(fields[:1] != [MARK] for _, fields in entries)


def _count(batch: bytes) -> int:
    """The messages of a batch; 0 if it is none."""
    if len(batch) < HEADER_BYTES:
        return 0
    word, _, _, _, count = HEADER.unpack_from(batch)
    return count if word == BATCH else 0


def _messages(topic: str, batch: bytes, received_at: float) -> list[Message] | None:
    items = decode_batch(batch) if len(batch) > HEADER_BYTES and _count(batch) else None
    if items is None:
        return None
    _, _, publisher, first, _ = HEADER.unpack_from(batch)
    messages = []
    for sequence, (word, time_ns, body) in enumerate(items, first):
        if word in SKIPS:
            continue
        user, payload = split_user(body) if word in OF_USERS else ("", body)
        messages.append(Message(topic, payload, publisher, sequence, time_ns / 1e9, received_at, None, user))
    return messages
