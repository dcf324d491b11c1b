"""Cursors: how far a group has read one part of a log, and which of its members reads on."""

from __future__ import annotations

import re

import msgspec

from nearcast.core.model.logs import BEFORE_ALL, EntryId, format_id, parse_id

_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Position(msgspec.Struct, frozen=True):
    """A place in a part: behind an entry, and behind some messages of the entry that follows it."""

    entry: EntryId = BEFORE_ALL
    index: int = 0  # messages of the next entry that have been read, without numbers that were given up
    count: int = -1  # messages of the part up to `entry`; below 0: not known yet

    def reaches(self, other: Position) -> bool:
        """Whether the other place is here, or before. Behind a report of lost messages only the count is another."""
        return (self.entry, self.index, self.count) >= (other.entry, other.index, other.count)


BEGINNING = Position(count=0)  # of a part that is read from its first message
EARLIEST = Position()  # the first message that is still there


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """What a server notes for a group in one part.

    A member reads a part for as long as it owns the cursor. Each change of the owner is a new term, so what a former
    owner writes late is refused. Beats show that the owner is not stuck.
    """

    position: Position
    floor: int = 0  # a member was given everything older than this version of the logs, and all reports of losses
    since: int = 0  # the version of the logs when the group began
    holds: bool = False  # retention by age waits for it
    term: int = 0
    owner: str = ""
    beat: int = 0


def encode_state(cursor: Cursor) -> bytes:
    """The part of a cursor that its owner decides about."""
    place = cursor.position
    return b"%d %d %d %b %d %d" % (
        cursor.holds,
        cursor.since,
        cursor.floor,
        format_id(place.entry).encode(),
        place.index,
        place.count,
    )


def decode_cursor(text: bytes) -> Cursor | None:
    """A cursor as `core/wire/scripts.py` writes it: term, owner, beat, and its state. None if it is not one."""
    parts = text.decode(errors="replace").split(" ")
    try:
        term, owner, beat, holds, since, floor, entry, index, count = parts
        return Cursor(
            position=Position(parse_id(entry), max(0, int(index)), int(count)),
            floor=int(floor),
            since=int(since),
            holds=holds == "1",
            term=int(term),
            owner=owner.strip("-"),
            beat=int(beat),
        )
    except ValueError:
        return None


def group_problem(group: str) -> str:
    """What is wrong with the name of a group, in words; empty if nothing is."""
    if _GROUP.fullmatch(group):
        return ""
    return f"bad group name {group[:80]!r}: use 1 to 64 letters, digits, dots, dashes and underscores"
