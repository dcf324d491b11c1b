"""Bounds: how long the messages of a topic may take."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from nearcast.core.model.globs import Globs
from nearcast.errors import UsageError

BOUND_MIN_S, BOUND_MAX_S = 1e-4, 60.0
BOUNDS_MAX = 1000  # in a cluster


class Bound(msgspec.Struct, frozen=True):
    """How long a message may take, one way, from a publisher to a subscriber."""

    seconds: float
    percentile: float | None = None  # of the pairs of a publisher and a subscriber; None: all of them

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and BOUND_MIN_S <= self.seconds <= BOUND_MAX_S):
            raise UsageError(f"a bound must be between {BOUND_MIN_S * 1e3:g} ms and {BOUND_MAX_S:g} s")
        if self.percentile is not None and not 0.0 < self.percentile < 100.0:
            raise UsageError("a percentile must be above 0 and below 100; leave it out for the worst pair")

    def __str__(self) -> str:
        share = "" if self.percentile is None else f" for {self.percentile:g} % of the pairs"
        return f"{self.seconds * 1e3:g} ms{share}"


Bounds = Mapping[str, Bound]  # by topic, or by pattern of topics


class BoundsOfTopics:
    """To look up the bounds of many topics."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._globs = Globs(bounds)

    def of(self, topic: str) -> Bound | None:
        """The topic's own bound, otherwise that of the longest pattern that matches it; of two, the later by name."""
        if topic in self._bounds or not self._bounds:
            return self._bounds.get(topic)
        longest = max(self._globs.matching(topic), key=lambda pattern: (len(pattern), pattern), default=None)
        return self._bounds[longest] if longest is not None else None
