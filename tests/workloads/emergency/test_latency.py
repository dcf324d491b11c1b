"""Latencies per channel."""

from __future__ import annotations

from nearcast.workloads.emergency.latency import Latencies
from nearcast.workloads.emergency.scenario import EmergencyChannel

QUICK = EmergencyChannel(name="quick", period_s=10)
SLOW = EmergencyChannel(name="slow", period_s=30)


def test_latencies_count_for_their_channel_even_if_the_result_came_before_the_subscription_was_known():
    latencies = Latencies()
    latencies.got("s1", [4.0, 12.0, 14.0])
    latencies.subscribed("s1", "quick")
    latencies.subscribed("s2", "quick")
    latencies.got("s2", [13.0])
    latencies.subscribed("s3", "slow")
    quick = latencies.of(QUICK)
    assert (quick.period_s, quick.rows, quick.p50_s, quick.p99_s, quick.over_s) == (10, 4, 12.0, 14.0, 2.0)
    assert latencies.of(SLOW).p50_s is latencies.of(SLOW).over_s is None
    assert sorted(latencies.all_s) == [4.0, 12.0, 13.0, 14.0]
