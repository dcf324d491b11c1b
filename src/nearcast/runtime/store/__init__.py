"""The store behind the controller: a leader's term, and a versioned map that changes by compare-and-set."""

from __future__ import annotations

from typing import Protocol


class Store(Protocol):
    """What a store must do. `tests/contract/test_store.py` holds every implementation to it."""

    async def campaign(self, candidate: str, lease_s: float) -> int | None:
        """Become or stay the leader for `lease_s`. Returns the term if it is us; a new leader gets a higher one."""
        ...

    async def load(self) -> tuple[int, dict[str, bytes]]:
        """The version and all entries, as of one moment."""
        ...

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        """Write all changes and raise the version by one, if version and term are still the newest; else nothing."""
        ...

    async def close(self) -> None: ...
