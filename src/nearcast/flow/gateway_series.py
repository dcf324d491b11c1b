"""What a simulation of gateways showed, second by second. Loads are in bytes per second."""

from __future__ import annotations

import msgspec
import numpy as np

from nearcast.flow.demand import FloatArray, IntArray


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with moves, when it was made, and what the policy expected of it."""

    at_s: int
    moves: int
    shuffled: bool
    cov_before: float
    cov_after: float
    problem: str = ""


class GatewaySeries(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    loads: FloatArray  # F_j: a row per second, a column per broker
    incoming: FloatArray  # I_j
    clients: IntArray  # subscribers of each broker that have a subscription, alike
    moves: IntArray  # that have taken effect, in all, up to each second
    backend: IntArray  # subscriptions at the data cluster
    frontend: IntArray
    rebalanced: tuple[Rebalanced, ...]

    @property
    def seconds(self) -> int:
        return len(self.loads)

    @property
    def cov(self) -> FloatArray:
        """Standard deviation of the loads over their mean (equations 6-8); 0 while there is no load."""
        mean = self.loads.mean(axis=1)
        return np.where(mean > 0, self.loads.std(axis=1) / np.where(mean > 0, mean, 1.0), 0.0)

    @property
    def highest(self) -> FloatArray:
        """The load of the busiest broker."""
        return np.asarray(self.loads.max(axis=1), dtype=np.float64)

    @property
    def moves_later(self) -> int:
        """Moves that were not of the first plan."""
        return int(self.moves[-1]) - (self.rebalanced[0].moves if self.rebalanced else 0)

    @property
    def shuffles(self) -> int:
        return sum(each.shuffled for each in self.rebalanced)
