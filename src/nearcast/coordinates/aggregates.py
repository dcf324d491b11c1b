"""What an agent reports of a topic: the brokers that would be nearest to its clients.

The size of a report does not depend on the number of clients. Unlike deviations from a centroid, maxima can be merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nearcast.core.model.distances import CANDIDATES_MAX, Candidate, TopicDistances

Floats = NDArray[np.float64]

QUANTILES = 64  # of publishers and of subscribers, if there are too many pairs to look at each
DIGITS = 5  # of seconds that are reported: noise below that is no news


def topic_distances(
    brokers: Sequence[str], now: int, publishers_s: Floats, subscribers_s: Floats, count: int = CANDIDATES_MAX
) -> TopicDistances | None:
    """The broker it is on, and the best ones, by the worst pair. None without publishers or without subscribers.

    `publishers_s` and `subscribers_s`: one row per client, one column per broker, one way.
    """
    if not len(publishers_s) or not len(subscribers_s):
        return None
    farthest = publishers_s.max(axis=0), subscribers_s.max(axis=0)
    order = np.argsort(farthest[0] + farthest[1], kind="stable")[:count]
    chosen = [now, *order.tolist()]
    p90 = _p90(publishers_s[:, chosen], subscribers_s[:, chosen])
    found = [
        Candidate(brokers[broker], _rounded(farthest[0][broker]), _rounded(farthest[1][broker]), _rounded(p90[place]))
        for place, broker in enumerate(chosen)
    ]
    return TopicDistances(found[0], tuple(found[1:]))


def _p90(publishers_s: Floats, subscribers_s: Floats) -> Floats:
    """Of all pairs, for each broker; of a grid of quantiles, if there are many."""
    publishers_s, subscribers_s = _thinned(publishers_s), _thinned(subscribers_s)
    pairs = publishers_s[:, None, :] + subscribers_s[None, :, :]
    return np.quantile(pairs.reshape(-1, pairs.shape[2]), 0.9, axis=0, method="inverted_cdf")


def _thinned(rows: Floats) -> Floats:
    if len(rows) <= QUANTILES:
        return rows
    return np.quantile(rows, (np.arange(QUANTILES) + 0.5) / QUANTILES, axis=0)


def _rounded(seconds: float) -> float:
    return round(float(seconds), DIGITS)
