"""A pace: so much at once, and then so much a second."""

from __future__ import annotations


class Pace:
    __slots__ = ("_burst", "_per_s", "_room", "_seen_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = self._room = burst
        self._seen_s: float | None = None

    def room(self, now_s: float) -> float:
        """How much may be spent now."""
        if self._seen_s is not None:
            self._room = min(self._burst, self._room + self._per_s * (now_s - self._seen_s))
        self._seen_s = now_s
        return self._room

    def spend(self, amount: float) -> None:
        """More than there was room for is paid back by waiting."""
        self._room -= amount
