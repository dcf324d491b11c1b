"""The emergency workload on real processes: gateways, topics, Spark, subscribers that move, a data cluster killed."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from nearcast.workloads.emergency.run import BALANCING, EmergencyPlan, EmergencySummary, run_emergency
from nearcast.workloads.emergency.scenario import EMERGENCY_CHANNELS, EmergencySettings
from nearcast.workloads.emergency.stage import EmergencyCluster

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("heavy")]

SMALL = EmergencyPlan(
    settings=EmergencySettings(users=30, reports=300, speed=30.0),
    channels=tuple(replace(channel, period_s=5) for channel in EMERGENCY_CHANNELS),
    cluster=EmergencyCluster(brokers=3, balancing=BALANCING),
    location_s=2.0,
)


def played(plan: EmergencyPlan) -> EmergencySummary:
    summary = asyncio.run(run_emergency(plan, print))
    print(summary)
    return summary


@pytest.mark.timeout(400)
def test_everybody_gets_what_it_is_owed_once_while_subscribers_move_and_the_data_cluster_is_killed() -> None:
    summary = played(SMALL)
    assert summary.exact, summary
    assert summary.notifications.delivered > 100, "too little happened: this proved nothing"
    assert summary.subscriber_moves > 0
    assert (summary.shuffles, summary.kills) == (1, 1)


@pytest.mark.timeout(1200)
def test_the_same_at_the_size_of_the_paper() -> None:
    plan = EmergencyPlan(settings=EmergencySettings(speed=5.0), cluster=EmergencyCluster(balancing=BALANCING))
    summary = played(plan)
    assert summary.exact, summary
    assert summary.notifications.subscribers == 400
    assert summary.reports == 10_000
    assert summary.subscriber_moves > 100
