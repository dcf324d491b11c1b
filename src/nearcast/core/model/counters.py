"""Counters: what clients report to the agents once a second, so that no agent has to see every message."""

from __future__ import annotations

import math
from enum import IntFlag

import msgspec

from nearcast.core.model.message import Event, Message

SAMPLES_MAX = 256  # latencies of one topic in one report
REPORTED_MAX = 1000  # topics in one report of a client; also silent topics per second, which take turns
PATTERNS_MAX = 100  # in one report of a client
PROBED_MAX = 64  # brokers in one report of a client
REPORT_BYTES_MAX = 2 << 20  # of a client: 1,000 topics with the longest names take less
COUNT_MAX = 1 << 40  # messages or bytes of one topic in one report

# Latency histogram: fixed logarithmic buckets, so that histograms of all clients and seconds add up exactly. Bucket i
# holds latencies up to 100 us * 2^(i/2): 0.1 ms .. about 100 s in 40 buckets.
BUCKETS = 40
_SMALLEST_S = 100e-6


def bucket_of(latency_s: float) -> int:
    if latency_s <= _SMALLEST_S:
        return 0
    return min(BUCKETS - 1, math.ceil(2 * math.log2(latency_s / _SMALLEST_S)))


def bucket_limit_s(bucket: int) -> float:
    """The longest latency a bucket holds."""
    return _SMALLEST_S * float(2 ** (bucket / 2))


class TopicCounters(msgspec.Struct, frozen=True):
    """One topic since the last report. `latencies` is sparse: bucket -> samples, one sample per batch received."""

    published: int = 0
    published_bytes: int = 0
    received: int = 0
    received_bytes: int = 0
    publishers: int = 0
    subscribers: int = 0
    latencies: dict[int, int] = {}

    def merged(self, other: TopicCounters) -> TopicCounters:
        latencies = dict(self.latencies)
        for bucket, count in other.latencies.items():
            latencies[bucket] = latencies.get(bucket, 0) + count
        return TopicCounters(
            self.published + other.published,
            self.published_bytes + other.published_bytes,
            self.received + other.received,
            self.received_bytes + other.received_bytes,
            self.publishers + other.publishers,
            self.subscribers + other.subscribers,
            latencies,
        )

    @property
    def plausible(self) -> bool:
        """Whether a client can have counted this in a second: anyone may write to the counters channel."""
        counts = (
            self.published,
            self.published_bytes,
            self.received,
            self.received_bytes,
            self.publishers,
            self.subscribers,
            *self.latencies.values(),
        )
        return all(0 <= count <= COUNT_MAX for count in counts) and all(0 <= b < BUCKETS for b in self.latencies)


SILENT = TopicCounters(subscribers=1)  # of a subscription that has received nothing


class Role(IntFlag):
    """What a client does on a topic."""

    PUBLISHES = 1
    SUBSCRIBES = 2


class Behind(msgspec.Struct, frozen=True, array_like=True):
    """How much farther than a client, which is a gateway, its farthest users are. Seconds, there and back."""

    publishers_s: float = 0.0
    subscribers_s: float = 0.0


NOBODY_BEHIND = Behind()


class ClientReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client sends to an agent: its counters, by topic; every few seconds also which topics it uses, even
    without traffic, how far it is from the brokers it has probed, and who is behind it.
    """

    client: int
    seconds: float
    topics: dict[str, TopicCounters]
    uses: dict[str, int] = {}  # topic -> roles
    patterns: tuple[str, ...] = ()  # that it subscribes to
    round_trips_s: dict[str, float] = {}  # by broker
    behind: dict[str, Behind] = {}  # by topic in `uses`; without an entry, nobody is


class ReceiveMeter:
    """What a subscriber received since its last report; latency is sampled once per run of messages."""

    __slots__ = ("_bytes", "_latencies_s", "_messages")

    def __init__(self) -> None:
        self._messages = self._bytes = 0
        self._latencies_s: list[float] = []

    def count(self, events: list[Event], payload_bytes: int) -> None:
        self._messages += len(events)
        self._bytes += payload_bytes
        first = events[0]
        if isinstance(first, Message) and len(self._latencies_s) < SAMPLES_MAX:
            self._latencies_s.append(first.latency_s)

    def take(self) -> TopicCounters:
        counters = TopicCounters(
            received=self._messages,
            received_bytes=self._bytes,
            subscribers=1,
            latencies=histogram(self._latencies_s),
        )
        self._messages = self._bytes = 0
        self._latencies_s = []
        return counters


def histogram(latencies_s: list[float]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for latency_s in latencies_s:
        bucket = bucket_of(latency_s)
        counts[bucket] = counts.get(bucket, 0) + 1
    return counts


def percentile_s(latencies: dict[int, int], share: float) -> float | None:
    """The upper limit of the bucket in which the given share of samples is reached; None without samples."""
    total = sum(latencies.values())
    seen = 0
    for bucket in sorted(latencies):
        seen += latencies[bucket]
        if seen >= share * total:
            return bucket_limit_s(bucket)
    return None
