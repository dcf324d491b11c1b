"""Stage 2 (section 5.2): lines 5-25 of Algorithm 1, single subscribers leave the broker with the most load.

A step costs the subscriptions of one subscriber, a search in a sorted list, and a look at the load of each broker; SDM
looks up the subscriptions of one subscriber at each broker. Subscribers too heavy for any target are jumped over.
"""

from __future__ import annotations

import numpy as np

from nearcast.policies.multistage.config import MultistageConfig, Scheme
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.plan import Steps
from nearcast.policies.multistage.ranking import Ranking

ROUNDING = 1e-9  # share of a load: a difference below it is none


def migrate(loads: BrokerLoads, config: MultistageConfig) -> tuple[Steps, str]:
    """Move until balanced. Changes `loads`; returns the moves, and why they ended before that if they did."""
    steps = Steps()
    if not _unbalanced(loads, config):
        return steps, ""
    ranking = Ranking(loads.by_subscriber, loads.home, len(loads.total))
    while _unbalanced(loads, config):
        if len(steps) >= config.moves_max:
            return steps, f"the limit of {config.moves_max} moves is reached: raise moves_max, or plan again"
        source = loads.total.index(max(loads.total))
        found = _valid_move(loads, ranking, source, config.scheme)
        if found is None:
            return steps, f"no move of one subscriber away from broker {source} helps: add a broker, or raise alpha"
        subscriber, target = found
        steps.append(subscriber, source, target, loads.spread.cov)
        loads.move(subscriber, target)
        ranking.move(subscriber, source, target)
    return steps, ""


def _unbalanced(loads: BrokerLoads, config: MultistageConfig) -> bool:
    """Line 6."""
    return loads.spread.cov > config.alpha and loads.spread.mean > config.beta_bytes_per_s


def _valid_move(loads: BrokerLoads, ranking: Ranking, source: int, scheme: Scheme) -> tuple[int, int] | None:
    """Lines 9-21: the first subscriber by load that may go, and where to."""
    lowest = min(loads.total)
    least_loaded = loads.total.index(lowest)
    for subscriber in ranking.at_most(source, (loads.total[source] - lowest) * (1 + ROUNDING)):
        target = least_loaded if scheme is Scheme.LDM else most_similar(loads, subscriber, loads.spread.mean)
        if target is not None and target != source and _valid(loads, subscriber, source, target):
            return subscriber, target
    return None


def most_similar(loads: BrokerLoads, subscriber: int, mean: float) -> int | None:
    """Line 15: the broker below the mean with the highest similarity, the lower number of equal ones; maybe none."""
    below = np.flatnonzero(np.array(loads.total) < mean)
    if not len(below):
        return None
    return int(below[loads.similarity(subscriber)[below].argmax()])


def _valid(loads: BrokerLoads, subscriber: int, source: int, target: int) -> bool:
    """Line 17, after the move: the target does not exceed the source's load before it.

    Where it would just reach it, the source must end below the target's load before: else the same two loads change
    places, and so they would for ever.
    """
    own = loads.own(subscriber)
    limit = loads.total[source]
    if loads.total[target] + 2 * own < limit * (1 - ROUNDING):
        return True  # whatever it shares: it brings its load twice at most, in and out
    after = loads.total[target] + own + loads.new_incoming(subscriber, target)
    if abs(after - limit) <= ROUNDING * limit:
        left = limit - own - loads.freed_incoming(subscriber)
        return left < loads.total[target] - ROUNDING * limit
    return after < limit
