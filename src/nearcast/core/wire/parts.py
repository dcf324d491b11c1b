"""What is done with parts of logs on a server: publishers append, readers read on, agents trim.

`link.py` has the connection, `scripts.py` the atomic steps, `valkey.py` everything that is not about logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from nearcast.core.model.cursors import Cursor, decode_cursor, encode_state
from nearcast.core.model.logs import BEFORE_ALL, PAGE_BYTES, EntryId, bytes_field, format_id, parse_id, parse_number
from nearcast.core.model.names import MEMBERS
from nearcast.core.wire.backend import (
    Entry,
    OnCursor,
    OnKept,
    OnKeys,
    OnNumber,
    OnPage,
    OnTaken,
    OnTrimmed,
    OnWeight,
    Page,
    PartKeys,
    Taken,
    Weight,
)
from nearcast.core.wire.link import Link, Reply
from nearcast.core.wire.scripts import APPEND, COMMIT, PAGE, TAKE
from nearcast.core.wire.steps import Step, calls_of, were_kept

_Where = tuple[int, tuple[bytes, ...], int]  # where steps go: version of the logs, keys, publisher
TRIMMED_MAX = 10_000  # entries in one step; also the server's own limit


class PartLink(Link):
    """Steps and questions about last numbers are sent together, after everything else in that turn."""

    __slots__ = ("_keeping", "_numbers")

    def __init__(self, broker: str) -> None:
        super().__init__(broker)
        self._numbers: list[tuple[tuple[bytes, bytes], bytes, OnNumber]] = []
        self._keeping: dict[_Where, list[tuple[Step, OnKept]]] = {}

    # --- publishers

    def keep(self, logs: int, keys: tuple[bytes, ...], publisher: int, step: Step, then: OnKept) -> None:
        self._keeping.setdefault((logs, keys, publisher), []).append((step, then))

    def read_number(self, keys: tuple[bytes, bytes], topic: bytes, publisher: int, then: OnNumber) -> None:
        self._numbers.append((keys, b"%b:%016x" % (topic, publisher), then))

    def _send_numbers(self) -> None:
        numbers, self._numbers = self._numbers, []
        for (lately, older), name, then in numbers:
            found: list[Reply] = []
            self.send(partial(_note, found), "HGET", lately, name)
            self.send(partial(_number_read, found, then), "HGET", older, name)

    def _send_steps(self) -> None:
        keeping, self._keeping = self._keeping, {}
        for (logs, keys, publisher), steps in keeping.items():
            for call in calls_of(steps):
                arguments: list[bytes | int] = [part for step, _ in call for part in step]
                self.send(
                    partial(were_kept, call), "EVAL", APPEND, len(keys), *keys, logs, b"%016x" % publisher, *arguments
                )

    # --- readers

    def read_part(self, keys: PartKeys, after: EntryId, count: int, then: OnPage) -> None:
        """At most this many entries after an id; the one that reaches `PAGE_BYTES` is the last."""
        self._read_page(keys, then, "EVAL", PAGE, 0, keys.stream, format_id(after), count, PAGE_BYTES)

    def read_last(self, keys: PartKeys, then: OnPage) -> None:
        """The last entry alone."""
        self._read_page(keys, then, "XREVRANGE", keys.stream, "+", "-", "COUNT", 1)

    def _read_page(self, keys: PartKeys, then: OnPage, *command: bytes | str | int) -> None:
        """The version of the logs and the total come first: what is appended meanwhile is of that version or later."""
        found: list[Reply] = []

        def read(reply: Reply, now_s: float) -> None:
            logs, total = found
            entries = _entries(reply)
            then(Page(_number(logs), _number(total), entries) if entries is not None else None, now_s)

        self.send(partial(_note, found), "HGET", MEMBERS, "logs")
        self.send(partial(_note, found), "HGET", keys.totals, keys.stream)
        self.send(read, *command)

    def take_cursor(
        self, keys: PartKeys, group: str, member: str, stale: int, new: Cursor | None, *, wanted: bool, then: OnTaken
    ) -> None:
        """Say that the member is there, and own the group's cursor if it is wanted and free.

        It is free if nobody owns it, if its owner is no longer connected, or if its beat is the stale one. `new` is
        written if there is none.
        """

        def taken(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                then(None, now_s)
                return
            text, *members = reply
            found = zip(members[::2], map(parse_number, members[1::2]), strict=True)
            beats = {member.decode(errors="replace"): beat for member, beat in found if beat is not None}
            cursor = decode_cursor(text)
            then(Taken(cursor, beats, text if cursor is None else b""), now_s)

        state = encode_state(new) if new is not None else b""
        self.send(taken, "EVAL", TAKE, 1, keys.cursors, group, member, stale, state, int(wanted))

    def commit_cursor(self, keys: PartKeys, group: str, cursor: Cursor, *, release: bool, then: OnCursor) -> None:
        """Write the cursor, if its owner is still the same and so is its term; `then` gets what is there now."""

        def committed(reply: Reply, now_s: float) -> None:
            then(decode_cursor(reply) if isinstance(reply, bytes) else None, now_s)

        arguments = (group, cursor.owner, cursor.term, encode_state(cursor), int(release))
        self.send(committed, "EVAL", COMMIT, 1, keys.cursors, *arguments)

    # --- agents

    def weigh(self, keys: PartKeys, then: OnWeight) -> None:
        found: list[Reply] = []

        def weighed(reply: Reply, now_s: float) -> None:
            totals, length = found
            messages, size = totals if isinstance(totals, list) else (None, None)
            entries = _entries(reply)
            last = entries[0][0] if entries else BEFORE_ALL
            then(Weight(_number(messages), _number(size), last, _number(length)), now_s)

        self.send(partial(_note, found), "HMGET", keys.totals, keys.stream, bytes_field(keys.stream))
        self.send(partial(_note, found), "XLEN", keys.stream)
        self.send(weighed, "XREVRANGE", keys.stream, "+", "-", "COUNT", 1)

    def trim(self, stream: bytes, upto: EntryId, *, exactly: bool, then: OnTrimmed) -> None:
        """Forget the entries up to an id: all of them, or a bounded number of whole nodes, which costs little."""
        least = format_id((upto[0], upto[1] + 1))
        how = ("=", least) if exactly else ("~", least, "LIMIT", TRIMMED_MAX)
        self.send(lambda reply, _: then(reply if isinstance(reply, int) else 0), "XTRIM", stream, "MINID", *how)

    def read_cursors(self, keys: PartKeys, then: Callable[[dict[str, Cursor]], None]) -> None:
        """The cursors of all groups."""

        def read(reply: Reply, now_s: float) -> None:
            then(_cursors(reply))

        self.send(read, "HGETALL", keys.cursors)

    def find_keys(self, prefix: bytes, then: OnKeys) -> None:
        found: list[bytes] = []

        def step(reply: Reply, now_s: float) -> None:
            if not isinstance(reply, list):
                return
            cursor, keys = reply
            found.extend(keys)
            if cursor == b"0":
                then(found)
            else:
                self.send(step, "SCAN", cursor, "MATCH", prefix + b"*", "COUNT", 1000)

        self.send(step, "SCAN", "0", "MATCH", prefix + b"*", "COUNT", 1000)

    def forget_keys(self, keys: Sequence[bytes]) -> None:
        if keys:
            self.send(None, "UNLINK", *keys)

    def age_numbers(self, keys: tuple[bytes, bytes]) -> None:
        """Last numbers that were not used since the last time are forgotten, all others are the older ones now."""
        lately, older = keys
        self.send(None, "RENAME", lately, older)  # an error if there is none


def _note(found: list[Reply], reply: Reply, now_s: float) -> None:
    found.append(reply)


def _number_read(found: list[Reply], then: OnNumber, older: Reply, now_s: float) -> None:
    then(max(_number(reply) for reply in (*found, older)), now_s)


def _number(reply: Reply) -> int:
    if isinstance(reply, int):
        return reply
    return parse_number(reply) or 0 if isinstance(reply, bytes) else 0


def _entries(reply: Reply) -> list[Entry] | None:
    """None if the server has refused."""
    return [(parse_id(entry), fields) for entry, fields in reply] if isinstance(reply, list) else None


def _cursors(reply: Reply) -> dict[str, Cursor]:
    pairs = reply.items() if isinstance(reply, dict) else ()
    found = (
        (field.removeprefix(b"g:").decode(errors="replace"), decode_cursor(text))
        for field, text in pairs
        if field[:2] == b"g:"
    )
    return {group: cursor for group, cursor in found if cursor is not None}
