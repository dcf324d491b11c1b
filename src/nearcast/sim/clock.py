"""The clocks of a simulated host: one that only moves forward, and one that people set.

Machines live by the first, which may run a little fast or slow. Servers end keys by the second, as Valkey does: it may
be stepped in both directions at any moment (NTP, a virtual machine that was resumed, an administrator).
"""

from __future__ import annotations

from nearcast.sim.timeline import Timeline

WALL_BEGINS_S = 1_600_000_000.0  # Unix time at the beginning of a run: a clock may be set back, but not before 1970


class HostClock:
    def __init__(self, timeline: Timeline, drift: float = 0.0) -> None:
        """`drift`: by which share of the time the monotonic clock runs fast."""
        self._timeline = timeline
        self._speed = 1.0 + drift
        self._stepped_s = 0.0

    @property
    def now_s(self) -> float:
        return self._timeline.now_s * self._speed

    def wall_s(self) -> float:
        return WALL_BEGINS_S + self._timeline.now_s + self._stepped_s

    def step(self, by_s: float) -> None:
        self._stepped_s += by_s
