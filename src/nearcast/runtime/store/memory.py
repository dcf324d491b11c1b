"""The store in memory, for simulations: the same rules."""

from __future__ import annotations

from collections.abc import Callable

from nearcast.core.controller_effects import Leadership


class MemoryStore:
    def __init__(self) -> None:
        self._leader = ""
        self._beats = 0
        self._term = 0
        self._version = 0
        self._entries: dict[str, bytes] = {}

    @property
    def _held(self) -> str:
        return f"{self._leader}#{self._beats}" if self._leader else ""

    def campaign_now(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        if self._leader != candidate:
            if self._held not in ("", stale):
                return Leadership(None, self._held, self._version)
            self._leader = candidate
            self._term = max(self._term, above) + 1
        self._beats += 1
        return Leadership(self._term, self._held, self._version)

    def resign_now(self, candidate: str) -> None:
        if self._leader == candidate:
            self._leader = ""

    def load_now(self) -> tuple[int, dict[str, bytes]]:
        return self._version, dict(self._entries)

    def commit_now(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        if (version, term) != (self._version, self._term):
            return False
        self._entries.update(changes)
        self._version += 1
        return True

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        return self.campaign_now(candidate, stale, above)

    async def resign(self, candidate: str) -> None:
        self.resign_now(candidate)

    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        version, entries = self.load_now()
        take(entries)
        return version

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        return self.commit_now(version, term, changes)

    async def close(self) -> None:
        pass
