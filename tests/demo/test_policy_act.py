"""The second act of the demo on real servers: the policy check passes, or the summary says that it failed."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.demo import policy
from nearcast.demo.policy import (
    CHATS_BUSY_PER_S,
    GUESTS,
    VOTES_BUSY_PER_S,
    Goal,
    PolicyAct,
    PolicyPlan,
    PolicySummary,
    Scene,
)

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

# The whole evening at once: the policy needs less than a minute for that too.
HURRIED = (
    Scene(title="quiet", seconds=1.0),
    Scene(
        title="everything at once",
        chats_per_s=CHATS_BUSY_PER_S,
        votes_per_s=VOTES_BUSY_PER_S,
        guests=GUESTS,
        seconds=0.0,
        goals=(Goal.SERVER_ADDED, Goal.VOTES_REPLICATED, Goal.SCORES_REPLICATED),
    ),
    Scene(title="home", seconds=0.0, goals=(Goal.COLLAPSED, Goal.SERVERS_REMOVED)),
)


def play(*scenes: Scene) -> tuple[PolicySummary, PolicyAct]:
    async def scenario() -> tuple[PolicySummary, PolicyAct]:
        act = PolicyAct(PolicyPlan(scenes=scenes), tell=print)
        return await act.run(), act

    return asyncio.run(scenario())


def test_servers_and_replicas_come_and_go_and_no_subscriber_notices() -> None:
    summary, act = play(*HURRIED)
    assert summary.missed == []
    assert summary.exact, summary
    assert summary.finished
    assert summary.servers_removed == summary.servers_added >= 1
    assert summary.topics_collapsed == summary.topics_replicated >= 2
    assert summary.messages > 1000
    assert summary.deliveries > 2 * summary.messages
    told = [event.text for event in act.events_since(0)]
    for cause in ("high_load", "many_publications", "many_subscribers", "cooled", "low_load"):
        assert any(cause in text for text in told), (cause, told)


def test_what_the_policy_does_not_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "PATIENCE_S", 1.0)
    summary, _ = play(Scene(title="quiet", seconds=0.0, goals=(Goal.SERVER_ADDED, Goal.COLLAPSED)))
    assert summary.missed == ["not within 1 s: a server is added and carries topics"]
    assert summary.exact
    assert (summary.servers_added, summary.topics_replicated) == (0, 0)
