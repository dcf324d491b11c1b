"""The latency filter: of each peer's last round trips, only a low percentile counts (Ledlie).

Single measurements are up to a thousand times too long, because a packet waited somewhere. They are never too short.
"""

from __future__ import annotations

from collections import deque

PEERS_MAX = 4096  # whoever was heard longest ago is forgotten


class LatencyFilter:
    """The last round trips of every peer."""

    def __init__(self, window: int, percentile: float, peers_max: int = PEERS_MAX) -> None:
        self._window = window
        self._percentile = percentile
        self._peers_max = peers_max
        self._samples: dict[str, deque[float]] = {}  # in the order in which peers were last heard

    def __len__(self) -> int:
        return len(self._samples)

    def filtered(self, peer: str, rtt_s: float) -> float:
        """The round trip that counts, now that this one was measured."""
        samples = self._samples.pop(peer, None)
        if samples is None:
            samples = deque(maxlen=self._window)
            if len(self._samples) >= self._peers_max:
                del self._samples[next(iter(self._samples))]
        samples.append(rtt_s)
        self._samples[peer] = samples
        ordered = sorted(samples)
        return ordered[min(int(len(ordered) * self._percentile / 100), len(ordered) - 1)]

    def forget(self, peer: str) -> None:
        self._samples.pop(peer, None)
