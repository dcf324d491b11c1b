"""Stage 3 (section 5.3), the greedy shuffle GSH: everybody anew, the heaviest to the broker with the least load."""

from __future__ import annotations

from heapq import heapify, heapreplace
from math import fsum

import numpy as np
from numpy.typing import NDArray

from nearcast.policies.multistage.demand import Demand, Floats, Numbers
from nearcast.policies.multistage.ranking import heaviest_first

ROWS_AT_ONCE = 20_000  # subscribers whose subscriptions are plain lists at a time


def shuffled(demand: Demand, by_subscriber: Floats, home: Numbers, brokers: int) -> Numbers:
    """The new broker of every subscriber online; `home` for the others. Of equal brokers, the lower number.

    One without load stays where it is: all of them would end on the broker with the least load.
    """
    order = heaviest_first(by_subscriber)
    order = order[demand.online[order] & (by_subscriber[order] > 0)]
    greedy = _Greedy(demand, brokers)
    found = home.copy()
    for first in range(0, len(order), ROWS_AT_ONCE):
        rows = order[first : first + ROWS_AT_ONCE]
        found[rows] = greedy.place(rows, by_subscriber[rows].tolist())
    return found


class _Greedy:
    """A heap of brokers by load, and what each broker does not hold yet.

    Brokers soon hold most of what is wanted. What all of them hold adds nothing to any incoming load, so it is left out
    of a part's rows before the loop: few subscriptions are looked at one by one.
    """

    def __init__(self, demand: Demand, brokers: int) -> None:
        self._demand = demand
        self._rates: list[float] = demand.rates.tolist()
        everything = set(range(len(self._rates)))
        self._missing = [everything.copy() for _ in range(brokers)]
        self._heap = [(0.0, broker) for broker in range(brokers)]
        heapify(self._heap)

    def place(self, rows: NDArray[np.int64], loads: list[float]) -> list[int]:
        wanted, ends = self._missing_somewhere(rows)
        heap, missing, rates = self._heap, self._missing, self._rates
        placed, start = [], 0
        for load, end in zip(loads, ends, strict=True):
            total, broker = heap[0]
            if start < end:
                new = missing[broker].intersection(wanted[start:end])
                if new:
                    missing[broker] -= new
                    load += fsum([rates[k] for k in new])
                start = end
            heapreplace(heap, (total + load, broker))
            placed.append(broker)
        return placed

    def _missing_somewhere(self, rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """What these subscribers want and some broker does not hold, one after the other, and where each one's end."""
        starts = self._demand.starts
        lengths = starts[rows + 1] - starts[rows]
        ends = np.cumsum(lengths)
        places = np.arange(int(ends[-1])) + np.repeat(starts[rows] - (ends - lengths), lengths)
        wanted = self._demand.wanted[places]
        missing = np.zeros(len(self._rates), dtype=np.bool_)
        missing[list(set().union(*self._missing))] = True
        kept = missing[wanted]
        before = np.concatenate([[0], np.cumsum(kept)])
        return wanted[kept].tolist(), before[ends].tolist()
