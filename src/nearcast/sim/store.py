"""The store of a simulated cluster: the one in memory, which can lose what it had."""

from __future__ import annotations

from collections import deque
from copy import copy

from nearcast.runtime.store.memory import MemoryStore

PAST_MAX = 100


class SimStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self._past: deque[MemoryStore] = deque(maxlen=PAST_MAX)  # as it was before each of the last commits

    def commit_now(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        before = copy(self)
        before._entries = dict(self._entries)
        ok = super().commit_now(version, term, changes)
        if ok:
            self._past.append(before)
        return ok

    def lose(self, commits: int | None) -> None:
        """Go back to how it was before so many commits; to nothing at all if None."""
        past = [MemoryStore(), *self._past]
        old = past[0] if commits is None else past[-min(commits, len(past))]
        for name in vars(MemoryStore()):
            setattr(self, name, getattr(old, name))
        self._entries = dict(self._entries)
        self._past.clear()
