"""Mean and confidence interval of a few runs that differ in their seed: Student's t, two-sided, 95 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

from nearcast.errors import UsageError

# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom, from the usual tables.
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
T_975_MANY = 1.96  # of the normal distribution, to which it tends


class Estimate(msgspec.Struct, frozen=True):
    """`low` to `high` holds the true mean with 95 % confidence, if runs are alike but for chance."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} (95 %: {self.low:.4g} to {self.high:.4g})"

    @property
    def interval(self) -> tuple[float, float]:
        return (self.low, self.high)


def estimate(values: Sequence[float]) -> Estimate:
    """One value alone has no interval: it is the whole line."""
    if not values:
        raise UsageError("an estimate needs at least one run: use one seed or more")
    mean = fmean(values)
    if len(values) == 1:
        return Estimate(mean, -math.inf, math.inf)
    freedom = len(values) - 1
    quantile = T_975[freedom - 1] if freedom <= len(T_975) else T_975_MANY
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)
