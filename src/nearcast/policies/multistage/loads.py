"""The data of multistage balancing: demand, the loads of brokers, their spread, and thresholds.

Subscribers, brokers and backend subscriptions are numbers here; the caller keeps the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.errors import UsageError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int32]
Offsets = NDArray[np.int64]

NOWHERE = -1  # the broker of an offline subscriber, where only those online count


# --- demand


class Demand(msgspec.Struct, frozen=True, eq=False):
    """Who wants what: Y as a sparse matrix of subscribers and backend subscriptions, R, and who is online.

    Rows of Y are slices of `wanted`, ascending and without repetition.
    """

    starts: Offsets  # subscriber i wants wanted[starts[i]:starts[i + 1]]
    wanted: Numbers  # backend subscriptions k with y_ik = 1
    rates: Floats  # lambda_k: bytes per second of results, a moving average
    online: Flags  # by subscriber

    def __post_init__(self) -> None:
        rows = len(self.starts) - 1
        ordered = rows >= 0 and self.starts[0] == 0 and bool((np.diff(self.starts) >= 0).all())
        if not ordered or self.starts[-1] != len(self.wanted) or len(self.online) != rows:
            raise UsageError("starts must rise from 0 to the number of subscriptions, one row per subscriber")
        if len(self.wanted) and not 0 <= int(self.wanted.min()) <= int(self.wanted.max()) < len(self.rates):
            raise UsageError("a subscriber wants a subscription that has no rate: give one rate per subscription")
        if not (np.isfinite(self.rates).all() and (self.rates >= 0).all()):
            raise UsageError("rates must be finite and not negative")
        repeated = np.diff(self.wanted) <= 0
        repeated[self.starts[1:-1][(self.starts[1:-1] > 0) & (self.starts[1:-1] < len(self.wanted))] - 1] = False
        if repeated.any():
            raise UsageError("the subscriptions of each subscriber must be ascending, without repetition")

    @staticmethod
    def of(wanted: Sequence[Sequence[int]], rates: Sequence[float], online: Sequence[bool] | None = None) -> Demand:
        """From plain lists; all subscribers are online unless `online` says otherwise."""
        rows = [sorted(set(row)) for row in wanted]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        flat = np.array([k for row in rows for k in row], dtype=np.int32)
        flags = np.ones(len(rows), dtype=np.bool_) if online is None else np.array(online, dtype=np.bool_)
        return Demand(starts, flat, np.array(rates, dtype=np.float64), flags)

    @property
    def subscribers(self) -> int:
        return len(self.online)

    def by_subscriber(self) -> Floats:
        """u_i: the sum of the rates a subscriber wants (line 8), online or not."""
        found = np.zeros(self.subscribers)
        some = np.diff(self.starts) > 0
        if some.any():
            found[some] = np.add.reduceat(self.rates[self.wanted], self.starts[:-1][some])
        return found


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """X: the broker of every subscriber. An offline subscriber keeps its broker, and is not moved."""

    brokers: int
    home: Numbers  # by subscriber

    def __post_init__(self) -> None:
        lowest, highest = (int(self.home.min()), int(self.home.max())) if len(self.home) else (0, 0)
        if not 0 <= lowest <= highest < self.brokers:
            raise UsageError(f"there must be a broker, and every subscriber needs one from 0 to {self.brokers - 1}")


def moving_average(samples: Floats) -> Floats:
    """Rates from the newest measurements, one row each, to smooth out peaks (section 6.1.2)."""
    if samples.ndim != 2 or not len(samples):
        raise UsageError("give at least one row of measured rates")
    return np.asarray(samples.mean(axis=0), dtype=np.float64)


# --- loads


class Spread:
    """The mean and coefficient of variation of the brokers' loads (equations 6-8), updated load by load.

    It sums differences from a fixed centre, because sums of squares of the loads themselves would lose precision.
    """

    def __init__(self, loads: Sequence[float]) -> None:
        self._count = len(loads)
        self._centre = sum(loads) / self._count
        self._sum = sum(load - self._centre for load in loads)
        self._squares = sum((load - self._centre) ** 2 for load in loads)

    def changed(self, before: float, after: float) -> None:
        before -= self._centre
        after -= self._centre
        self._sum += after - before
        self._squares += after * after - before * before

    @property
    def mean(self) -> float:
        return self._centre + self._sum / self._count

    @property
    def cov(self) -> float:
        """The coefficient of variation; 0 if no broker has load."""
        mean, offset = self.mean, self._sum / self._count
        variance = self._squares / self._count - offset * offset
        return sqrt(max(variance, 0.0)) / mean if mean > 0 else 0.0


ROWS_AT_ONCE = 100_000  # subscribers counted together: bounds the memory of the first count


class BrokerLoads:
    """F_j = I_j + O_j of every broker (equations 1-5), in bytes per second, updated by each move and never recomputed.

    n_jk is a dense table of counters, z_jk is n_jk > 0. A move touches only the counters of one subscriber's
    subscriptions at two brokers, and changes the incoming load of a broker where a counter leaves or reaches zero.
    """

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
        # Single numbers are read faster from a list than from an array.
        self._rows = list(self.counts)
        self._starts: list[int] = demand.starts.tolist()
        self._own: list[float] = self.by_subscriber.tolist()

    def wanted(self, subscriber: int) -> NDArray[np.intp]:
        # NumPy converts other index types at every use, so they are converted once here.
        return self.demand.wanted[self._starts[subscriber] : self._starts[subscriber + 1]].astype(np.intp)

    def own(self, subscriber: int) -> float:
        """u_i."""
        return self._own[subscriber]

    def new_incoming(self, subscriber: int, target: int) -> float:
        """What a broker would have to fetch for the subscriber in addition to what it fetches now."""
        wanted = self.wanted(subscriber)
        return self._sum_where_zero(self._rows[target].take(wanted), wanted)

    def freed_incoming(self, subscriber: int) -> float:
        """What the subscriber's broker fetches for it alone."""
        wanted = self.wanted(subscriber)
        others = self._rows[self.home[subscriber]].take(wanted) - 1
        return self._sum_where_zero(others, wanted)

    def similarity(self, subscriber: int) -> Floats:
        """sim_j of line 10: for each broker, the total rate of the subscriber's subscriptions that it holds."""
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
        # Every broker holds the popular subscriptions: usually no counter is zero, and there is nothing to sum.
        if np.count_nonzero(counts) == len(counts):
            return 0.0
        return float(np.add.reduce(self.demand.rates[wanted[counts == 0]]))


def _counted(demand: Demand, home: Numbers, brokers: int) -> NDArray[np.int32]:
    """n_jk by equation 3, for the subscribers that have a home."""
    width = len(demand.rates)
    counts = np.zeros(brokers * width, dtype=np.int32)
    for first in range(0, demand.subscribers, ROWS_AT_ONCE):
        starts = demand.starts[first : first + ROWS_AT_ONCE + 1]
        broker = np.repeat(home[first : first + ROWS_AT_ONCE].astype(np.int64), np.diff(starts))
        cells = broker * width + demand.wanted[starts[0] : starts[-1]]
        counts += np.bincount(cells[broker != NOWHERE], minlength=len(counts)).astype(np.int32)
    return counts.reshape(brokers, width)


# --- thresholds


class Scheme(StrEnum):
    """How a target is chosen (section 5.2)."""

    LDM = "ldm"  # the broker with the least load
    SDM = "sdm"  # of the brokers below the mean load, the one that has most of the subscriber's subscriptions


class MultistageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds, with their sources and the rules between them.

    Loads are bytes per second, incoming and outgoing together. The coefficient of variation has no unit.
    """

    scheme: Scheme = Scheme.LDM
    alpha: float = 0.15  # 6.2.2: subscribers move while the coefficient of variation is above it
    beta_bytes_per_s: float = 300e6  # 6.2.2: and only while the mean load is above this
    gamma: float = 0.5  # the paper has no figure: figure 13's NR placement (2,000 of 10,000 subscribers on one of ten
    # brokers, below 500 on others) is at about this value and needs a shuffle; RR and RND (6.1.3) stay far below it
    theta_bytes_per_s: float = 300e6  # no figure either: the same as beta, because below beta no move is worth its cost
    moves_max: int = 1_000_000  # ours: a plan has no more single moves than this

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.alpha <= self.gamma, "0 <= alpha <= gamma"),
            (0 <= self.beta_bytes_per_s <= self.theta_bytes_per_s, "0 <= beta_bytes_per_s <= theta_bytes_per_s"),
            (self.moves_max >= 1, "moves_max >= 1"),
        )
        for kept, rule in rules:
            if not kept:
                raise UsageError(f"the thresholds of multistage balancing break the rule {rule}: change one of them")
