"""Ending: an agent goes round the first uses on its server, and ends what nobody uses (PROTOCOL "How topics end").

A topic that nobody has placed lives on its directory, whether its first use is written there or not. So that may go
when neither a publisher nor a subscriber holds the topic: whoever still believes in it finds none when it comes, and
asks the directory, which writes the same again, or a newer one if the membership has changed.

What the controller has been told of has a record. While the ring changes nothing ends: first uses are being collected.
What is left on a broker that is not the topic's directory means nothing to anybody, and ends like the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.membership import Membership, read_membership
from nearcast.core.settings import Timing

if TYPE_CHECKING:
    from nearcast.core.backend import AgentLink


class Ending:
    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self._begins_s: float | None = None
        self._cursor: bytes | None = None  # how far this round has come; None between rounds
        self._waiting = False  # for the server
        self.ended = 0  # first uses

    def clear(self) -> None:
        """A round ends with its connection to the server."""
        self._cursor, self._waiting = None, False

    def tick(self, link: AgentLink, now_s: float) -> None:
        """Take the next step, or begin the next round: one step at a time, some milliseconds of a server's time."""
        next_s = now_s + self.timing.idle_s
        if self._begins_s is None or self._begins_s > next_s:  # the latter: the cluster goes by a shorter T_idle now
            self._begins_s = next_s
        if self._waiting or (self._cursor is None and now_s < self._begins_s):
            return
        if self._cursor is None:
            self._begins_s, self._cursor = next_s, b"0"
        self._waiting = True
        link.read_members(partial(self._look, link))

    def _look(self, link: AgentLink, document: bytes | None, now_s: float) -> None:
        membership = _read(document)
        if membership is None or membership.previous_ring is not None or self._cursor is None:
            self.clear()
        else:
            link.scan_first_uses(self._cursor, partial(self._end, link, membership.version))

    def _end(self, link: AgentLink, members: int, cursor: bytes, topics: Sequence[bytes]) -> None:
        self._cursor = cursor if cursor != b"0" else None
        link.end_unused(members, topics, self._ended)

    def _ended(self, count: int) -> None:
        self._waiting = False
        self.ended += count


def _read(document: bytes | None) -> Membership | None:
    """The membership on the server, if there is one with a ring."""
    membership = read_membership(document)
    return membership if membership is not None and membership.ring else None
