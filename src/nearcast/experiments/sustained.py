"""How many clients a cluster sustains while more and more join: where the response time is too long for good.

The average response time of each second is averaged over the last 10 s. The sustained number of clients is the number
there was in the last second at which this mean was below the limit. Rebalancings make it jump for a moment; a
cluster that recovers is not at its end. So that such jumps do not go unseen, they are counted: seconds above the limit
before the end, and the number of clients when the limit was first passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nearcast.errors import UsageError

MEAN_S = 10.0


class Sustained(msgspec.Struct, frozen=True, kw_only=True):
    clients: int  # 0 if it was never below the limit
    until_s: float  # the last second below the limit
    ended: bool  # False: the limit was not passed for good, so `clients` is only a lower bound
    clients_at_first_breach: int  # the clients when the limit was first passed, for however short
    seconds_above_before: float  # above the limit before `until_s`


def sustained(
    clients: Sequence[int], response_s: Sequence[float], limit_s: float, *, step_s: float = 1.0, mean_s: float = MEAN_S
) -> Sustained:
    """Both sequences have one entry per step; a response time is NaN where nobody got anything."""
    if not clients or len(clients) != len(response_s):
        raise UsageError("clients and response times need one entry each per step, and at least one step")
    means = trailing_means(response_s, max(1, round(mean_s / step_s)))
    below = [mean < limit_s for mean in means]  # NaN is not below
    last = max((step for step, good in enumerate(below) if good), default=-1)
    first_breach = below.index(False) if False in below else len(below) - 1
    return Sustained(
        clients=clients[last] if last >= 0 else 0,
        until_s=max(last, 0) * step_s,
        ended=last < len(below) - 1,
        clients_at_first_breach=clients[first_breach],
        seconds_above_before=below[: last + 1].count(False) * step_s,
    )


def trailing_means(values: Sequence[float], steps: int) -> list[float]:
    """The mean of each value and the ones before it, `steps` in all where there are so many. NaN counts for nothing."""
    means: list[float] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - steps) : end] if not math.isnan(value)]
        means.append(math.fsum(known) / len(known) if known else math.nan)
    return means
