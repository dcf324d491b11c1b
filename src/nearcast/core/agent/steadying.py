"""Steadying: clients that travel together do not notice it at the same moment.

In between, a topic seems to have clients at both ends, and a broker in the middle looks best: the topic would go there,
and move on a few seconds later. So while the distances of a topic's clients change much, the leader is told to wait a
moment, but not long and not again and again: some clients are always on the move.
"""

from __future__ import annotations

STEADY_S = 1.0  # without a change: as often as clients say where they are
LONGEST_S = 3.0  # that the leader waits
REST_S = 10.0  # from one time that it waits to the next


class Steadying:
    """Inputs: changed, tick."""

    def __init__(self) -> None:
        self._changed: dict[str, tuple[float, float]] = {}  # by topic, when it first changed and when last

    def changed(self, topic: str, now_s: float) -> None:
        """The topic's latency has changed much."""
        first_s, _ = self._changed.get(topic, (now_s, now_s))
        self._changed[topic] = (first_s, now_s)

    def waits(self, topic: str, now_s: float) -> bool:
        """Whether the leader should wait."""
        if topic not in self._changed:
            return False
        first_s, last_s = self._changed[topic]
        return now_s - last_s < STEADY_S and now_s - first_s < LONGEST_S

    def tick(self, now_s: float) -> list[str]:
        """The topics for which the leader need not wait."""
        over = [topic for topic in self._changed if not self.waits(topic, now_s)]
        for topic in over:
            if now_s - self._changed[topic][0] >= REST_S:
                del self._changed[topic]
        return over
