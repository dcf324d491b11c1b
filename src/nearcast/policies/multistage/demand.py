"""Who wants what: subscribers and their backend subscriptions as a sparse matrix, with the rate of each subscription.

Subscribers, brokers and backend subscriptions are numbers here; whoever calls keeps the names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.errors import UsageError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int32]
Offsets = NDArray[np.int64]

NOWHERE = -1  # the broker of a subscriber that is offline, where only those online count


class Demand(msgspec.Struct, frozen=True, eq=False):
    """Y, R and who is online. Rows of Y are slices of `wanted`, ascending and without repetition."""

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
            raise UsageError("the subscriptions of each subscriber must be ascending, each given once")

    @staticmethod
    def of(wanted: Sequence[Sequence[int]], rates: Sequence[float], online: Sequence[bool] | None = None) -> Demand:
        """From plain lists; everybody is online unless told otherwise."""
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
    """X: the broker of every subscriber. One who is offline keeps its broker, and is not moved."""

    brokers: int
    home: Numbers  # by subscriber

    def __post_init__(self) -> None:
        lowest, highest = (int(self.home.min()), int(self.home.max())) if len(self.home) else (0, 0)
        if not 0 <= lowest <= highest < self.brokers:
            raise UsageError(f"every subscriber needs a broker from 0 to {self.brokers - 1}, and there must be one")


def moving_average(samples: Floats) -> Floats:
    """Rates from the newest measurements, one row each: section 6.1.2, against instant peaks."""
    if samples.ndim != 2 or not len(samples):
        raise UsageError("give at least one row of measured rates")
    return np.asarray(samples.mean(axis=0), dtype=np.float64)
