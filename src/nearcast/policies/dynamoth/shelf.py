"""A shelf: the loaded topics of one broker by share, so that the busiest one that fits is found without a search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from math import inf

Item = tuple[float, int]  # the bytes per second this broker sends of a topic, and the topic's number
Allowed = Callable[[int], bool]


class Shelf:
    """Two sorted lists: topics that are here alone are moved before shares of replicated ones."""

    __slots__ = ("replicated", "single")

    def __init__(self, single: Iterable[Item], replicated: Iterable[Item]) -> None:
        self.single = sorted(single)
        self.replicated = sorted(replicated)

    def copy(self) -> Shelf:
        other = Shelf((), ())
        other.single, other.replicated = self.single.copy(), self.replicated.copy()
        return other

    def put(self, item: Item, alone: bool) -> None:
        insort(self.single if alone else self.replicated, item)

    def take(self, item: Item, alone: bool) -> None:
        items = self.single if alone else self.replicated
        items.pop(bisect_left(items, item))

    def busiest(self, at_most: float, at_least: float, allowed: Allowed) -> Item | None:
        """The largest share in the range. A replicated topic must be allowed where it would go."""
        end = bisect_right(self.single, (at_most, inf))
        if end and self.single[end - 1][0] >= at_least:
            return self.single[end - 1]
        for item in reversed(self.replicated[: bisect_right(self.replicated, (at_most, inf))]):
            if item[0] < at_least:
                break
            if allowed(item[1]):
                return item
        return None

    def lightest(self, above: float, at_most: float, allowed: Allowed) -> Item | None:
        """The smallest share in the range."""
        begin = bisect_right(self.single, (above, inf))
        if begin < len(self.single) and self.single[begin][0] <= at_most:
            return self.single[begin]
        for item in self.replicated[bisect_right(self.replicated, (above, inf)) :]:
            if item[0] > at_most:
                break
            if allowed(item[1]):
                return item
        return None
