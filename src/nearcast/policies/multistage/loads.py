"""The loads of brokers by equations 1-5, brought up to date by each move: never computed anew.

n_jk is a dense table of counters, z_jk is n_jk > 0. A move touches only the counters of one subscriber's subscriptions
at two brokers, and brings the incoming load of a broker up or down where a counter leaves or reaches zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearcast.errors import UsageError
from nearcast.policies.multistage.demand import NOWHERE, Assignment, Demand, Floats, Numbers
from nearcast.policies.multistage.spread import Spread

ROWS_AT_ONCE = 100_000  # subscribers counted together: bounds the memory of the first count


class BrokerLoads:
    """F_j = I_j + O_j of every broker, bytes per second, with everything needed to keep them true."""

    def __init__(self, demand: Demand, assignment: Assignment) -> None:
        if len(assignment.home) != demand.subscribers:
            raise UsageError(f"{len(assignment.home)} subscribers have a broker, {demand.subscribers} have a demand")
        self.demand = demand
        self.by_subscriber = demand.by_subscriber()  # u_i
        self.home: Numbers = np.where(demand.online, assignment.home, NOWHERE).astype(np.int32)
        self.counts = _counted(demand, self.home, assignment.brokers)  # n_jk, a row per broker
        incoming, outgoing = (self.counts > 0) @ demand.rates, self.counts @ demand.rates
        self.incoming: list[float] = incoming.tolist()  # I_j
        self.total: list[float] = (incoming + outgoing).tolist()  # F_j
        self.spread = Spread(self.total)
        # One number at a time is read faster from a list than from an array.
        self._rows = list(self.counts)
        self._starts: list[int] = demand.starts.tolist()
        self._own: list[float] = self.by_subscriber.tolist()

    def wanted(self, subscriber: int) -> NDArray[np.intp]:
        # NumPy turns other indices into its own at every use: once is enough.
        return self.demand.wanted[self._starts[subscriber] : self._starts[subscriber + 1]].astype(np.intp)

    def own(self, subscriber: int) -> float:
        """u_i."""
        return self._own[subscriber]

    def new_incoming(self, subscriber: int, target: int) -> float:
        """What a broker would have to fetch for the subscriber that it does not fetch yet."""
        wanted = self.wanted(subscriber)
        return self._sum_where_zero(self._rows[target].take(wanted), wanted)

    def freed_incoming(self, subscriber: int) -> float:
        """What the subscriber's broker fetches for it alone."""
        wanted = self.wanted(subscriber)
        others = self._rows[self.home[subscriber]].take(wanted) - 1
        return self._sum_where_zero(others, wanted)

    def similarity(self, subscriber: int) -> Floats:
        """sim_j of line 10: the rates of the subscriber's subscriptions that each broker holds."""
        wanted = self.wanted(subscriber)
        return np.asarray((self.counts.take(wanted, axis=1) > 0) @ self.demand.rates[wanted], dtype=np.float64)

    def move(self, subscriber: int, target: int) -> None:
        source = self.home.item(subscriber)
        wanted = self.wanted(subscriber)
        left, held = self._rows[source], self._rows[target]
        others = left.take(wanted) - 1
        left[wanted] = others
        before = held.take(wanted)
        held[wanted] = before + 1
        self.home[subscriber] = target
        own = self._own[subscriber]
        self._change(source, -self._sum_where_zero(others, wanted), -own)
        self._change(target, self._sum_where_zero(before, wanted), own)

    def _change(self, broker: int, incoming: float, outgoing: float) -> None:
        before = self.total[broker]
        after = before + incoming + outgoing
        self.incoming[broker] += incoming
        self.total[broker] = after
        self.spread.changed(before, after)

    def _sum_where_zero(self, counts: NDArray[np.int32], wanted: NDArray[np.intp]) -> float:
        # Popular subscriptions are held everywhere: most often no counter is zero, and nothing has to be summed.
        if np.count_nonzero(counts) == len(counts):
            return 0.0
        return float(np.add.reduce(self.demand.rates[wanted[counts == 0]]))


def _counted(demand: Demand, home: Numbers, brokers: int) -> NDArray[np.int32]:
    """n_jk by equation 3, of the subscribers that have a home."""
    width = len(demand.rates)
    counts = np.zeros(brokers * width, dtype=np.int32)
    for first in range(0, demand.subscribers, ROWS_AT_ONCE):
        starts = demand.starts[first : first + ROWS_AT_ONCE + 1]
        broker = np.repeat(home[first : first + ROWS_AT_ONCE].astype(np.int64), np.diff(starts))
        cells = broker * width + demand.wanted[starts[0] : starts[-1]]
        counts += np.bincount(cells[broker != NOWHERE], minlength=len(counts)).astype(np.int32)
    return counts.reshape(brokers, width)
