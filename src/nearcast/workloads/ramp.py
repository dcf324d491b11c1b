"""A ramp: a number of players over time, linear between given points."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import msgspec

from nearcast.errors import UsageError


class Ramp(msgspec.Struct, frozen=True):
    """Points (seconds, players), with growing times. Before the first and after the last the number stays."""

    points: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        times = [at_s for at_s, _ in self.points]
        if not times or any(later <= earlier for earlier, later in pairwise(times)):
            raise UsageError("a ramp needs one or more points (seconds, players) with growing times")
        if min(players for _, players in self.points) < 0:
            raise UsageError("a ramp's players must not be negative")

    @classmethod
    def steady(cls, players: int) -> Ramp:
        return cls(((0.0, players),))

    @property
    def most(self) -> int:
        return max(players for _, players in self.points)

    def at(self, at_s: float) -> int:
        after = bisect_right(self.points, at_s, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (from_s, players), (to_s, target) = self.points[after - 1], self.points[after]
        return round(players + (target - players) * (at_s - from_s) / (to_s - from_s))
