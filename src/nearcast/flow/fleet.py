"""The fleet: which brokers there are, are coming, and are leaving. The dry counterpart of a provider of real servers.

A broker has a row in the arrays: its number in order of joining, never used again after it was released.
"""

from __future__ import annotations

from nearcast.core.ring import Ring
from nearcast.errors import UsageError
from nearcast.flow.settings import FlowSettings


class Fleet:
    def __init__(self, brokers: int, settings: FlowSettings) -> None:
        if not 1 <= brokers <= settings.brokers_max:
            raise UsageError(f"{brokers} brokers at the start: use 1 to {settings.brokers_max} (brokers_max)")
        self._settings = settings
        self.names: list[str] = []  # by row, of all there ever were
        self.rows: dict[str, int] = {}  # of those there are now
        self.draining: set[str] = set()
        self.rented: set[str] = set()
        self._due_s: list[float] = []  # of those that are coming
        for _ in range(brokers):
            self._join()
        self.ring = self._new_ring()

    @property
    def coming(self) -> int:
        return len(self._due_s)

    @property
    def spare(self) -> int:
        return self._settings.brokers_max - len(self.rows) - self.coming

    # --- growing

    def rent(self, count: int, now_s: float) -> None:
        self._due_s += [now_s + self._settings.start_s] * min(count, self.spare)

    def joined(self, now_s: float) -> list[str]:
        """The brokers that join now."""
        due = [due_s for due_s in self._due_s if due_s <= now_s]
        self._due_s = [due_s for due_s in self._due_s if due_s > now_s]
        names = [self._join() for _ in due]
        self.rented.update(names)
        if names:
            self.ring = self._new_ring()
        return names

    def _join(self) -> str:
        name = f"b{len(self.names) + 1}"
        self.rows[name] = len(self.names)
        self.names.append(name)
        return name

    # --- shrinking

    def drain(self, name: str) -> bool:
        """Whether the broker is draining from now on: the last one there is stays."""
        if name not in self.rows or len(self.rows) - len(self.draining) <= 1:
            return False
        self.draining.add(name)
        self.ring = self._new_ring()
        return True

    def keep(self, name: str) -> None:
        self.draining.discard(name)
        self.ring = self._new_ring()

    def release(self, name: str) -> None:
        del self.rows[name]
        self.draining.discard(name)
        self.rented.discard(name)

    def _new_ring(self) -> Ring:
        staying = [name for name in self.rows if name not in self.draining]
        return Ring(staying, self._settings.virtual_nodes)
