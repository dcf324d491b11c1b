"""Latencies as subscribers saw them: per topic in short buckets of time, and the share within the bound.

A latency is one way, from publish to receipt by one subscriber, and counts at the time of publishing. Publishers and
subscribers run on one host with one clock.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence

import msgspec

from nearcast.testing.load import percentile

BUCKET_S = 0.25
CALM_BUCKETS = 4  # latency is back under the bound when so many buckets in a row are
CALM_SHARE = 0.95  # of a bucket's messages within the bound: one late message is the machine's


class Bucket(msgspec.Struct):
    """What was published on one topic in one bucket."""

    count: int = 0
    late: int = 0
    sum_s: float = 0.0
    most_s: float = 0.0

    @property
    def calm(self) -> bool:
        return self.count > 0 and self.late <= (1 - CALM_SHARE) * self.count


class Recording:
    """`begun_s`: Unix time of second 0."""

    def __init__(self, bound_s: float, begun_s: float) -> None:
        self.bound_s = bound_s
        self.begun_s = begun_s
        self.buckets: dict[str, list[Bucket]] = {}
        self._latencies_s = array("d")

    def note(self, topic: str, published_at: float, latency_s: float) -> None:
        """What was published before second 0 does not count."""
        at_s = published_at - self.begun_s
        if at_s < 0:
            return
        self._latencies_s.append(latency_s)
        buckets, number = self.buckets.setdefault(topic, []), int(at_s / BUCKET_S)
        while len(buckets) <= number:
            buckets.append(Bucket())
        bucket = buckets[number]
        bucket.count += 1
        bucket.late += latency_s > self.bound_s
        bucket.sum_s += latency_s
        bucket.most_s = max(bucket.most_s, latency_s)

    @property
    def count(self) -> int:
        return len(self._latencies_s)

    @property
    def share_within(self) -> float:
        """Of all deliveries; NaN if there were none."""
        late = sum(bucket.late for buckets in self.buckets.values() for bucket in buckets)
        return 1 - late / self.count if self.count else math.nan

    def percentile_s(self, percent: int) -> float | None:
        return percentile(self._latencies_s, percent)

    def means_s(self, topic: str, every: int) -> list[float | None]:
        """The mean latency of a topic per `every` buckets; None where nothing arrived."""
        buckets = self.buckets.get(topic, [])
        groups = [buckets[start : start + every] for start in range(0, len(buckets), every)]
        return [_mean_s(group) for group in groups]

    def back_after_s(self, topics: Iterable[str], changed_s: float, until_s: float) -> float | None:
        """How long after a change all these topics were under the bound again, and stayed there for a second.

        0 if they never left it, None if they were not back at `until_s`.
        """
        backs_s = [self._back_s(self.buckets.get(topic, []), changed_s, until_s) for topic in topics]
        found_s = [back_s for back_s in backs_s if back_s is not None]
        return max(found_s) if backs_s and len(found_s) == len(backs_s) else None

    def _back_s(self, buckets: Sequence[Bucket], changed_s: float, until_s: float) -> float | None:
        # The bucket of the change holds messages from before and after it.
        first, last = int(changed_s / BUCKET_S) + 1, min(int(until_s / BUCKET_S), len(buckets))
        for start in range(first, last - CALM_BUCKETS + 1):
            if all(bucket.calm for bucket in buckets[start : start + CALM_BUCKETS]):
                return 0.0 if start == first else start * BUCKET_S - changed_s
        return None


def _mean_s(buckets: Sequence[Bucket]) -> float | None:
    count = sum(bucket.count for bucket in buckets)
    return sum(bucket.sum_s for bucket in buckets) / count if count else None
