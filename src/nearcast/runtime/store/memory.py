"""The store in memory, for simulations: the same rules, a clock that is given."""

from __future__ import annotations

from collections.abc import Callable


class MemoryStore:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._leader: tuple[str, float] = ("", -1.0)
        self._term = 0
        self._version = 0
        self._entries: dict[str, bytes] = {}

    def campaign_now(self, candidate: str, lease_s: float) -> int | None:
        leader, until_s = self._leader
        free = self._clock() >= until_s
        if not free and leader != candidate:
            return None
        if free:
            self._term += 1
        self._leader = (candidate, self._clock() + lease_s)
        return self._term

    def load_now(self) -> tuple[int, dict[str, bytes]]:
        return self._version, dict(self._entries)

    def commit_now(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        if (version, term) != (self._version, self._term):
            return False
        self._entries.update(changes)
        self._version += 1
        return True

    async def campaign(self, candidate: str, lease_s: float) -> int | None:
        return self.campaign_now(candidate, lease_s)

    async def load(self) -> tuple[int, dict[str, bytes]]:
        return self.load_now()

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        return self.commit_now(version, term, changes)

    async def close(self) -> None:
        pass
