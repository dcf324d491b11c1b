"""What a topic's clients mean for its brokers: the worst latency at each, and the few best brokers.

A message goes from its publisher to the broker and on to a subscriber, so a topic's worst latency at a broker is that
of its farthest publisher plus that of its farthest subscriber: E(t) of ePulsar. Who publishes and subscribes hears
itself, so the two may be one client. Latencies are one way: half the round trip. The paper adds whole round trips;
double the result for its convention.

An agent reports the best brokers of a topic, by exact worst latency, and the broker that most clients are nearest to:
some hundred bytes, however many clients there are.
The paper's way, two centroids and the largest deviations from them, is here as baseline. W(t, b) bounds E(t) from
above, but loosely.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nearcast.coordinates.probes import Floats
from nearcast.core.model.distances import CANDIDATES_MAX, Candidate, Centroids, Spread, TopicDistances
from nearcast.errors import UsageError

QUANTILES = 64  # of publishers and of subscribers, if there are too many pairs to look at each
DIGITS = 5  # of seconds that are reported: noise below that is no news


def worst_one_way_s(publishers_rtt_s: Floats, subscribers_rtt_s: Floats) -> Floats:
    """E(t) at every broker, from the round trips of publishers and subscribers, one row each."""
    _check(publishers_rtt_s, subscribers_rtt_s)
    worst_s: Floats = (publishers_rtt_s.max(axis=0) + subscribers_rtt_s.max(axis=0)) / 2
    return worst_s


def topic_distances(
    brokers: Sequence[str], now: int, publishers_rtt_s: Floats, subscribers_rtt_s: Floats, count: int = CANDIDATES_MAX
) -> TopicDistances:
    """What an agent reports: the broker it is on, and the best ones by the worst pair.

    Maxima of publishers and of subscribers stand apart: those of several agents can be merged, unlike deviations from
    a centroid.
    """
    worst_s = worst_one_way_s(publishers_rtt_s, subscribers_rtt_s)
    chosen = [now, *np.argsort(worst_s, kind="stable")[:count].tolist()]
    ours, theirs = publishers_rtt_s[:, chosen], subscribers_rtt_s[:, chosen]
    p90_s = percentile_one_way_s(ours, theirs, 90.0)
    found = [
        Candidate(brokers[broker], *(round(float(seconds), DIGITS) for seconds in figures))
        for broker, *figures in zip(chosen, ours.max(axis=0) / 2, theirs.max(axis=0) / 2, p90_s, strict=True)
    ]
    ours_near, theirs_near = spread(brokers, publishers_rtt_s), spread(brokers, subscribers_rtt_s)
    return TopicDistances(found[0], tuple(found[1:]), publishers=ours_near, subscribers=theirs_near)


def spread(brokers: Sequence[str], clients_rtt_s: Floats) -> Spread:
    """Which broker most clients are nearest to. Naming them all would not be constant in the number of clients."""
    counts = np.bincount(clients_rtt_s.argmin(axis=1))
    most = int(counts.argmax())
    return Spread(len(clients_rtt_s), brokers[most], int(counts[most]))


def percentile_one_way_s(publishers_rtt_s: Floats, subscribers_rtt_s: Floats, percentile: float) -> Floats:
    """The percentile over all pairs, at every broker; of a grid of quantiles, if there are many clients."""
    _check(publishers_rtt_s, subscribers_rtt_s)
    ours, theirs = _thinned(publishers_rtt_s), _thinned(subscribers_rtt_s)
    pairs = (ours[:, None, :] + theirs[None, :, :]) / 2
    return np.percentile(pairs.reshape(-1, pairs.shape[2]), percentile, axis=0)


def _thinned(rows: Floats) -> Floats:
    if len(rows) <= QUANTILES:
        return rows
    return np.quantile(rows, (np.arange(QUANTILES) + 0.5) / QUANTILES, axis=0)


def _check(publishers_rtt_s: Floats, subscribers_rtt_s: Floats) -> None:
    if not len(publishers_rtt_s) or not len(subscribers_rtt_s):
        raise UsageError("a topic without publishers or without subscribers has no worst latency")


# --- the paper's centroids


def centroids(publishers: Floats, subscribers: Floats) -> Centroids:
    """A topic as ePulsar reports it. Coordinates are positions with the height last, one row for each client."""
    _check(publishers, subscribers)
    of_publishers, of_subscribers = publishers.mean(axis=0), subscribers.mean(axis=0)
    deviation_s = float(_apart_s(publishers, of_publishers).max() + _apart_s(subscribers, of_subscribers).max())
    return Centroids(_rounded(of_publishers), _rounded(of_subscribers), round(deviation_s, DIGITS))


def _rounded(point: Floats) -> tuple[float, ...]:
    return tuple(round(value, DIGITS) for value in point.tolist())


def centroid_worst_s(topic: Centroids, brokers: Floats) -> Floats:
    """W(t, b) at every broker, one way as the others here."""
    apart_s = _apart_s(brokers, np.array(topic.publishers)) + _apart_s(brokers, np.array(topic.subscribers))
    return (apart_s + topic.deviation_s) / 2


def _apart_s(coordinates: Floats, point: Floats) -> Floats:
    distance: Floats = np.sqrt(((coordinates[:, :-1] - point[:-1]) ** 2).sum(axis=1))
    apart_s: Floats = distance + coordinates[:, -1] + point[-1]
    return apart_s
