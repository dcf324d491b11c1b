"""The lease of a broker: what its server says about it, and what that proves to a client."""

from __future__ import annotations

from collections import deque

import msgspec

from nearcast.core.model.settings import NEVER_S

OPEN_MAX = 8  # questions in flight: a distant server is asked every heartbeat, a stalled one is not


class Lease(msgspec.Struct, frozen=True):
    """What a server says about its lease."""

    beat: int = 0  # the agent's newest
    granted: int = 0  # the newest that the leader has granted


class Proof:
    """The proof of a broker's lease, for one link of a client (PROTOCOL "Why the lease is safe").

    The agent counts beats on its server, reports each to the leader, and notes on the server which beat was granted. A
    client reads both. A grant of a higher beat than a question found was given after that question was sent, so the
    broker has its lease until `sent + lease_s`, by the client's own clock. No other host's clock matters, and no clock
    that can be set.
    """

    __slots__ = ("_found", "_open", "asked_s")

    def __init__(self) -> None:
        self.asked_s = NEVER_S  # when the newest question was sent
        self._open: deque[float] = deque()  # when the questions that have no answer yet were sent
        self._found: deque[tuple[float, int]] = deque()  # (when it was sent, the beat it found), not proven yet

    @property
    def open_since_s(self) -> float | None:
        """Since when the oldest question has been waiting for its answer."""
        return self._open[0] if self._open else None

    @property
    def may_ask(self) -> bool:
        return len(self._open) < OPEN_MAX

    def ask(self, now_s: float) -> None:
        self.asked_s = now_s
        self._open.append(now_s)

    def found(self, beat: int) -> None:
        """The oldest question is answered. If two found the same beat, whatever proves one proves the later one."""
        sent_s = self._open.popleft()
        while self._found and self._found[-1][1] >= beat:
            self._found.pop()
        self._found.append((sent_s, beat))

    def proven(self, granted: int) -> float | None:
        """When the latest question was sent that this grant came after, if there is one not proven before."""
        sent_s = None
        while self._found and self._found[0][1] < granted:
            sent_s, _ = self._found.popleft()
        return sent_s
