"""How long the emergency workload's reports take from their publication to their delivery, per channel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

import msgspec

from nearcast.testing.load import percentile
from nearcast.workloads.emergency.scenario import EmergencyChannel


class ChannelLatency(msgspec.Struct, frozen=True, kw_only=True):
    """What one channel took. `over_s` is how much the median is above the period."""

    period_s: float
    rows: int
    p50_s: float | None
    p99_s: float | None
    over_s: float | None


class Latencies:
    """Collects latencies by subscription: the first result may come before its subscriber knows the channel."""

    def __init__(self) -> None:
        self._channel_of: dict[str, str] = {}
        self._of: defaultdict[str, list[float]] = defaultdict(list)

    def subscribed(self, subscription: str, channel: str) -> None:
        self._channel_of[subscription] = channel

    def got(self, subscription: str, latencies_s: Iterable[float]) -> None:
        self._of[subscription].extend(latencies_s)

    @property
    def all_s(self) -> list[float]:
        return list(chain.from_iterable(self._of.values()))

    def of(self, channel: EmergencyChannel) -> ChannelLatency:
        found_s = [
            latency_s
            for subscription, latencies_s in self._of.items()
            if self._channel_of.get(subscription) == channel.name
            for latency_s in latencies_s
        ]
        p50_s = percentile(found_s, 50)
        return ChannelLatency(
            period_s=channel.period_s,
            rows=len(found_s),
            p50_s=p50_s,
            p99_s=percentile(found_s, 99),
            over_s=None if p50_s is None else p50_s - channel.period_s,
        )
