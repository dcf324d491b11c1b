"""Virtual time: events in order of (time, sequence), so that ties are broken the same way in every run."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timeline:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def clock(self) -> float:
        return self.now_s

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self._sequence += 1
        heappush(self._events, (self.now_s + delay_s, self._sequence, action, arguments))

    def run_until(self, end_s: float) -> None:
        events = self._events
        while events and events[0][0] <= end_s:
            self.now_s, _, action, arguments = heappop(events)
            action(*arguments)
        self.now_s = end_s
