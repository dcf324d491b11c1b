"""Restless topics: those that keep moving for their bound although they gain little by it.

If two brokers are about as good, and the bound is about there, the noise of measurements decides which of them keeps
it. Such a topic would move as often as it may, for ever. So after a few moves that gained little, the policy is told.
"""

from __future__ import annotations

from collections import deque

from nearcast.core.model.planning import Cause, PlaceTopic

LITTLE = 0.2  # of the latency: twice the error of a measurement, and a little more
MOVES_MAX = 3  # for little, in
WINDOW_S = 300.0


class Restless:
    """Inputs: placed, tick."""

    def __init__(self) -> None:
        self._moved: dict[str, deque[float]] = {}  # by topic: when it last moved for little

    def placed(self, change: PlaceTopic, now_s: float) -> bool:
        """The policy has moved a topic. Returns whether that has made it restless."""
        reason, predicted_s = change.reason, change.predicted_s
        if reason.cause is not Cause.BOUND or predicted_s is None or predicted_s < (1 - LITTLE) * reason.value:
            return False
        moved = self._moved.setdefault(change.topic, deque(maxlen=MOVES_MAX))
        moved.append(now_s)
        return self._is_restless(moved, now_s)

    def tick(self, now_s: float) -> None:
        for topic in [topic for topic, moved in self._moved.items() if now_s - moved[-1] > WINDOW_S]:
            del self._moved[topic]

    def topics(self, now_s: float) -> frozenset[str]:
        return frozenset(topic for topic, moved in self._moved.items() if self._is_restless(moved, now_s))

    def _is_restless(self, moved: deque[float], now_s: float) -> bool:
        return len(moved) == MOVES_MAX and now_s - moved[0] <= WINDOW_S
