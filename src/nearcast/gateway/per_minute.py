"""How often something happened in the last minute, by whom."""

from __future__ import annotations

from collections import deque

_WINDOW_S = 60.0
_REMEMBERED = 10_000  # of whom; beyond that the ones not seen for longest are forgotten


class PerMinute:
    """It reads no clock: the caller says what time it is, in seconds."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._times: dict[str, deque[float]] = {}

    def note(self, name: str, now_s: float) -> None:
        times = self._times.pop(name, deque(maxlen=self._limit))
        times.append(now_s)
        self._times[name] = times
        if len(self._times) > _REMEMBERED:
            del self._times[next(iter(self._times))]

    def is_full(self, name: str, now_s: float) -> bool:
        times = self._times.get(name)
        return times is not None and len(times) == self._limit and times[0] > now_s - _WINDOW_S
