"""The latencies of the last few seconds, for whoever watches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

RECENT_S = 3.0


class Recent:
    """Of one topic, all its subscribers together. Times are seconds since the Unix epoch."""

    def __init__(self) -> None:
        self._arrivals: deque[tuple[float, float]] = deque()  # received at, latency

    def add(self, received_s: float, latency_s: float) -> None:
        self._arrivals.append((received_s, latency_s))
        self._forget(received_s)

    def latencies_s(self, now_s: float) -> list[float]:
        self._forget(now_s)
        return [latency_s for _, latency_s in self._arrivals]

    def _forget(self, now_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] < now_s - RECENT_S:
            self._arrivals.popleft()


def percentile(values: Iterable[float], percent: int) -> float | None:
    """The smallest value that `percent` of them do not exceed; None if there are none."""
    ordered: Sequence[float] = sorted(values)
    return ordered[(len(ordered) * percent - 1) // 100] if ordered else None
