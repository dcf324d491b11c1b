"""The proof of a broker's lease, for one link of a client (PROTOCOL "Why the lease is safe").

The agent counts beats on its server, tells the leader of each, and notes there which beat was granted. A client reads
both. A grant of a higher beat than a question found was given after that question was sent, so the broker has its lease
until `sent + lease_s`, by the client's own clock. No clock of another host has a part in it, and none that can be set.
"""

from __future__ import annotations

from collections import deque

import msgspec

OPEN_MAX = 8  # questions on their way at once: a far server is asked every heartbeat, one that stands still is not


class Lease(msgspec.Struct, frozen=True):
    """What a server says of its lease."""

    beat: int = 0  # the agent's newest
    granted: int = 0  # the newest that the leader has granted


class Proof:
    __slots__ = ("_found", "_open", "asked_s")

    def __init__(self) -> None:
        self.asked_s = -1e9  # when the newest question was sent
        self._open: deque[float] = deque()  # when those were sent that have no answer yet
        self._found: deque[tuple[float, int]] = deque()  # (when it was sent, the beat it found), not proven yet

    @property
    def open_since_s(self) -> float | None:
        """Since when the oldest question waits for its answer."""
        return self._open[0] if self._open else None

    @property
    def may_ask(self) -> bool:
        return len(self._open) < OPEN_MAX

    def ask(self, now_s: float) -> None:
        self.asked_s = now_s
        self._open.append(now_s)

    def found(self, beat: int) -> None:
        """The oldest question is answered. Of two that found the same beat, whatever proves one proves the later."""
        sent_s = self._open.popleft()
        while self._found and self._found[-1][1] >= beat:
            self._found.pop()
        self._found.append((sent_s, beat))

    def proven(self, granted: int) -> float | None:
        """When the latest question was sent that this grant came after, if there is one that was not proven before."""
        sent_s = None
        while self._found and self._found[0][1] < granted:
            sent_s, _ = self._found.popleft()
        return sent_s
