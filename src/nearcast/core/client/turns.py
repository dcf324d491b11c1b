"""Turns: a client says of everything it uses, every few seconds, that it still uses it; a part of it each second."""

from __future__ import annotations

from nearcast.core.model.counters import REPORTED_MAX

TURN_S = 1.0
TURNS = 5  # in which everything is said once, unless it is too much


class Turns:
    """Whose turn it is, among things in a fixed order."""

    def __init__(self) -> None:
        self._next = 0
        self._total = 0

    def take(self, total: int) -> tuple[range, int]:
        """The places whose turn it is, which may be beyond the last one; and in how many turns all places have one."""
        if total <= TURNS and total != self._total:
            self._next = 0  # with a few things, a new one is named at once
        self._total = total
        places = max(total, TURNS)  # with fewer things than turns, some turns are empty
        count = min(REPORTED_MAX, -(-places // TURNS))
        start = self._next if self._next < places else 0
        self._next = start + count
        return range(start, start + count), -(-places // count)
