"""Guarantee 1 on real servers: topics move and change mode, agents and controllers are killed, and nobody notices."""

from __future__ import annotations

import asyncio

import pytest

import nearcast
from nearcast.core.model.placement import Mode
from nearcast.testing.chaos import FULL, Outcome, Storm, StormPlan, run_storm
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import LoadShape

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

SHORT = StormPlan(
    LoadShape(publishers=8, subscribers=8, topics=6, rate_per_s=2500),
    messages=20_000,
    moves=4,
    mode_changes=2,
    agent_kills=1,
    controller_kills=1,
    kill_every_s=2.0,
)


def check(outcome: Outcome, plan: StormPlan) -> None:
    """The storm was as strong as planned, and nothing of it was seen."""
    done, shape, verdict = outcome.progress, plan.load, outcome.verdict
    assert verdict.exact, outcome
    assert verdict.acknowledged == verdict.published >= plan.messages
    assert verdict.delivered == verdict.acknowledged * shape.subscribers
    assert set(done.moves) == set(shape.topic_names)
    assert min(done.moves.values()) >= plan.moves
    assert min(done.mode_changes.values()) >= plan.mode_changes
    assert done.agent_kills >= plan.agent_kills
    assert done.controller_kills >= plan.controller_kills


def test_a_short_storm_is_not_noticed() -> None:
    seen: list[tuple[int, int]] = []

    async def scenario() -> Outcome:
        async with await LocalCluster.start(brokers=3) as cluster:
            storm = Storm(cluster, SHORT, lambda progress: seen.append((progress.published, progress.delivered)))
            return await storm.run()

    outcome = asyncio.run(scenario())
    check(outcome, SHORT)
    assert seen == sorted(seen), "the progress went backwards"
    assert seen[-1] == (outcome.verdict.published, outcome.verdict.delivered)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_long_storm_is_not_noticed() -> None:
    outcome = run_storm(FULL)
    check(outcome, FULL)
    print(outcome)


def test_a_move_is_not_noticed_whatever_the_number_of_subscribers() -> None:
    """At some numbers (8, 15, 16, 29 ...) a server counts subscribers wrongly: see core/wire/valkey.py."""

    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster:
            console, clients = await cluster.console(), []
            subscriptions = []
            for number in range(1, 33):
                client = await nearcast.connect(cluster.urls["b1"])
                clients.append(client)
                subscriptions.append(await client.subscribe("t"))
                if number in (1, 7, 8, 14, 15, 16, 28, 29, 32):
                    await console.move("t", Mode.SINGLE, ("b2",), timeout_s=4.5)  # it would take T_ready: 5 s
                    await console.move("t", Mode.SINGLE, ("b1",), timeout_s=4.5)
            assert [event for subscription in subscriptions for event in subscription.take()] == []
            await asyncio.gather(*(client.close() for client in clients))

    asyncio.run(scenario())
