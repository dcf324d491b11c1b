"""Mean and coefficient of variation of the brokers' loads (equations 6-8), kept up to date load by load."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt


class Spread:
    """Sums of differences from a fixed centre: sums of squares of the loads themselves would lose their digits."""

    def __init__(self, loads: Sequence[float]) -> None:
        self._count = len(loads)
        self._centre = sum(loads) / self._count
        self._sum = sum(load - self._centre for load in loads)
        self._squares = sum((load - self._centre) ** 2 for load in loads)

    def changed(self, before: float, after: float) -> None:
        before -= self._centre
        after -= self._centre
        self._sum += after - before
        self._squares += after * after - before * before

    @property
    def mean(self) -> float:
        return self._centre + self._sum / self._count

    @property
    def cov(self) -> float:
        """0 where nobody has load: nothing differs."""
        mean, offset = self.mean, self._sum / self._count
        variance = self._squares / self._count - offset * offset
        return sqrt(max(variance, 0.0)) / mean if mean > 0 else 0.0
