"""The subscribers of each broker in the order of their loads, with moves between brokers.

A rank says how heavy a subscriber is among all: ranks never change, so each broker keeps a sorted list of them. The
heaviest is last, because Algorithm 1 takes from there: removing near the end of a list moves next to nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

import numpy as np

from nearcast.policies.multistage.demand import NOWHERE, Floats, Numbers


class Ranking:
    """Heavier first; of equal ones, the lower number first."""

    def __init__(self, by_subscriber: Floats, home: Numbers, brokers: int) -> None:
        order = heaviest_first(by_subscriber)[::-1]
        self._loads: list[float] = by_subscriber[order].tolist()  # by rank
        self._order = order
        self._rank = np.empty_like(order)
        self._rank[order] = np.arange(len(order))
        homes = home[order]
        placed = np.flatnonzero(homes != NOWHERE)
        by_broker = placed[np.argsort(homes[placed], kind="stable")]
        ends = np.searchsorted(homes[by_broker], np.arange(1, brokers))
        self._ranks: list[list[int]] = [part.tolist() for part in np.split(by_broker, ends)]

    def at_most(self, broker: int, load: float) -> Iterator[int]:
        """Subscribers of a broker whose own load is not above the given one and not zero, the heaviest first."""
        ranks = self._ranks[broker]
        highest = len(ranks)
        if ranks and self._loads[ranks[-1]] > load:
            highest = bisect_left(ranks, bisect_right(self._loads, load))
        for place in range(highest - 1, -1, -1):
            if self._loads[ranks[place]] <= 0:
                return
            yield self._order.item(ranks[place])

    def move(self, subscriber: int, source: int, target: int) -> None:
        rank = self._rank.item(subscriber)
        ranks = self._ranks[source]
        del ranks[-1 if ranks[-1] == rank else bisect_left(ranks, rank)]
        insort(self._ranks[target], rank)


def heaviest_first(by_subscriber: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """All subscribers by falling load; of equal ones, the lower number first."""
    return np.argsort(-by_subscriber, kind="stable")
