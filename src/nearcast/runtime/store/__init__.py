"""The store behind the controller: a leader's term, and a versioned map that changes by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nearcast.core.controller_effects import Leadership


class Store(Protocol):
    """What a store must do. `tests/contract/test_store.py` holds every implementation to it."""

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        """Become or stay the leader. Returns the term if it is us, how the leadership is held now, and the version.

        Who holds it changes how it is held with every campaign. It is free for who knows how it is held, which says:
        I have watched this long enough to know that nobody renews it. The store needs no clock for that. A new leader
        gets a higher term, also than `above`: a store that has lost its data may have given that out before.
        """
        ...

    async def resign(self, candidate: str) -> None:
        """Let another one lead at once, if this candidate leads."""
        ...

    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        """Hand over all entries as of one moment, part by part; returns the version. Fails if they change meanwhile.

        They do not for the newest leader: nobody else can commit.
        """
        ...

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        """Write all changes and raise the version by one, if version and term are still the newest; else nothing."""
        ...

    async def close(self) -> None: ...
