"""What a topic's clients mean for its brokers: the worst latency at each, and the few best brokers.

A message goes from its publisher to the broker and on to a subscriber, so a topic's worst latency at a broker is that
of its farthest publisher plus that of its farthest subscriber: E(t) of ePulsar. Who publishes and subscribes hears
itself, so the two may be one client. Latencies are one way: half the round trip. The paper adds whole round trips;
double the result for its convention.

An agent reports the best brokers of a topic, by exact worst latency: about 50 bytes, however many clients there are.
The paper's way, two centroids and the largest deviations from them, is here as baseline. W(t, b) bounds E(t) from
above, but loosely.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nearcast.coordinates.probes import Floats
from nearcast.errors import UsageError

BEST = 8  # brokers in a report: the best by measurement is nearly always among the best eight by estimate


class Candidate(msgspec.Struct, frozen=True):
    """A broker that could carry the topic."""

    broker: int
    worst_s: float
    p90_s: float  # over all pairs of publisher and subscriber


def worst_one_way_s(publishers_rtt_s: Floats, subscribers_rtt_s: Floats) -> Floats:
    """E(t) at every broker, from the round trips of publishers and subscribers, one row each."""
    _check(publishers_rtt_s, subscribers_rtt_s)
    worst_s: Floats = (publishers_rtt_s.max(axis=0) + subscribers_rtt_s.max(axis=0)) / 2
    return worst_s


def percentile_one_way_s(publishers_rtt_s: Floats, subscribers_rtt_s: Floats, percentile: float) -> Floats:
    """The percentile over all pairs, at every broker."""
    _check(publishers_rtt_s, subscribers_rtt_s)
    pairs = (publishers_rtt_s[:, None, :] + subscribers_rtt_s[None, :, :]) / 2
    return np.percentile(pairs.reshape(-1, pairs.shape[2]), percentile, axis=0)


def best_brokers(publishers_rtt_s: Floats, subscribers_rtt_s: Floats, count: int = BEST) -> list[Candidate]:
    """The brokers with the least worst latency, best first; of equal ones, the lower number."""
    worst_s = worst_one_way_s(publishers_rtt_s, subscribers_rtt_s)
    chosen = np.argsort(worst_s, kind="stable")[:count]
    p90_s = percentile_one_way_s(publishers_rtt_s[:, chosen], subscribers_rtt_s[:, chosen], 90.0)
    return [
        Candidate(int(broker), float(worst_s[broker]), float(p90)) for broker, p90 in zip(chosen, p90_s, strict=True)
    ]


def _check(publishers_rtt_s: Floats, subscribers_rtt_s: Floats) -> None:
    if not len(publishers_rtt_s) or not len(subscribers_rtt_s):
        raise UsageError("a topic without publishers or without subscribers has no worst latency")


# --- the paper's centroids


class Centroids(msgspec.Struct, frozen=True):
    """A topic as ePulsar reports it: two centroids, and W(t). Coordinates are positions with the height last."""

    publishers: Floats
    subscribers: Floats
    deviation_s: float


def centroids(publishers: Floats, subscribers: Floats) -> Centroids:
    _check(publishers, subscribers)
    of_publishers, of_subscribers = publishers.mean(axis=0), subscribers.mean(axis=0)
    deviation_s = float(_apart_s(publishers, of_publishers).max() + _apart_s(subscribers, of_subscribers).max())
    return Centroids(of_publishers, of_subscribers, deviation_s)


def centroid_worst_s(topic: Centroids, brokers: Floats) -> Floats:
    """W(t, b) at every broker, one way as the others here."""
    apart_s = _apart_s(brokers, topic.publishers) + _apart_s(brokers, topic.subscribers)
    return (apart_s + topic.deviation_s) / 2


def _apart_s(coordinates: Floats, point: Floats) -> Floats:
    distance: Floats = np.sqrt(((coordinates[:, :-1] - point[:-1]) ** 2).sum(axis=1))
    apart_s: Floats = distance + coordinates[:, -1] + point[-1]
    return apart_s
