"""The policy at work on real servers: a hot topic is replicated and collapses, servers are added and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from nearcast.core.model.journal import BrokerState
from nearcast.core.model.placement import Mode
from nearcast.core.wire import bus
from nearcast.runtime.console import Console
from nearcast.runtime.provider import ProviderDesk
from nearcast.testing.audit import Verdict
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import Load, LoadShape
from nearcast.testing.provider import LocalProvider
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

HOT_ABOVE = ("--set", "publication_threshold=200", "--set", "all_subs_threshold=100")


async def until_state(
    console: Console, true: Callable[[bus.State], bool], *topics: str, timeout_s: float = 30.0
) -> bus.State:
    """The first state of which it is true."""
    states: list[bus.State] = []

    async def came() -> bool:
        states[:] = [await console.state(*topics)]
        return true(states[0])

    await until(came, f"a wanted state of {topics or 'the cluster'}", timeout_s)
    return states[0]


async def until_more(load: Load, messages: int) -> None:
    """So many more have been acknowledged."""
    enough = load.acknowledged + messages
    await until(lambda: load.acknowledged >= enough, f"{messages} more messages")


def placed(topic: str, mode: Mode) -> Callable[[bus.State], bool]:
    def true(state: bus.State) -> bool:
        view = state.topics[topic]
        return view.placement.mode is mode and view.target is None

    return true


def test_a_hot_topic_is_replicated_and_collapses_when_it_cools() -> None:
    async def scenario() -> tuple[Verdict, list[str]]:
        options = ["--policy", "dynamoth", "--wait", "1", *HOT_ABOVE]
        async with await LocalCluster.start(3, controller_options=options) as cluster:
            console = await cluster.console()
            await console.move("hot", Mode.SINGLE, ("b1",))
            shape = LoadShape(publishers=6, subscribers=2, rate_per_s=60, names=("hot",))
            async with Load(cluster.urls.values(), shape) as load:
                load.begin()
                await asyncio.sleep(2.0)  # long enough for the policy to decide something
                assert placed("hot", Mode.SINGLE)(await console.state("hot"))
                load.rate_per_s = 900
                state = await until_state(console, placed("hot", Mode.ALL_SUBSCRIBERS), "hot")
                assert len(state.topics["hot"].placement.brokers) >= 2
                await until_more(load, 800)
                load.rate_per_s = 60
                state = await until_state(console, placed("hot", Mode.SINGLE), "hot")
                await until_more(load, 30)
                return await load.end(), [decision.text for decision in state.decisions]

    verdict, decisions = asyncio.run(scenario())
    assert verdict.exact, verdict
    assert verdict.acknowledged == verdict.published > 2000
    assert any("many_publications" in text for text in decisions), decisions
    assert any("cooled" in text for text in decisions), decisions


def test_many_subscribers_are_divided_among_brokers_while_they_come_and_go() -> None:
    async def scenario() -> Verdict:
        thresholds = ("--set", "subscriber_threshold=6", "--set", "all_pubs_threshold=0.1")
        options = ["--policy", "dynamoth", "--wait", "1", *thresholds]
        async with await LocalCluster.start(2, controller_options=options) as cluster:
            console = await cluster.console()
            shape = LoadShape(publishers=2, subscribers=4, rate_per_s=40, names=("news",))
            async with Load(cluster.urls.values(), shape) as load:
                load.begin()
                await asyncio.sleep(2.0)  # long enough for the policy to decide something
                assert placed("news", Mode.SINGLE)(await console.state("news"))
                crowd = LoadShape(publishers=1, subscribers=12, rate_per_s=5, names=("news",))
                async with Load(cluster.urls.values(), crowd) as coming:
                    coming.begin()
                    await until_state(console, placed("news", Mode.ALL_PUBLISHERS), "news")
                    await until_more(load, 40)
                await until_state(console, placed("news", Mode.SINGLE), "news")
                return await load.end()

    verdict = asyncio.run(scenario())
    assert (verdict.lost, verdict.duplicated, verdict.reordered, verdict.gaps, verdict.interrupted) == (0, 0, 0, 0, 0)


def test_servers_are_added_when_load_rises_and_removed_when_it_falls() -> None:
    async def scenario() -> tuple[Verdict, dict[str, str], bus.State]:
        options = ["--policy", "dynamoth", "--wait", "2", "--max-brokers", "2"]
        shape = LoadShape(publishers=4, subscribers=2, topics=8, rate_per_s=100, payload_bytes=200)
        async with (
            await LocalCluster.start(1, controller_options=options, capacity_bytes_per_s=400e3) as cluster,
            ProviderDesk(cluster.store_url, LocalProvider(cluster)),
        ):
            console = await cluster.console()
            async with Load(cluster.urls.values(), shape) as load:
                load.begin()
                await until_more(load, 100)
                load.rate_per_s = 800
                await until_state(console, lambda state: _carries(state, "rented-1"))
                assert "rented-1" in cluster.urls
                await until_more(load, 1000)
                load.rate_per_s = 40
                left = await until_state(console, lambda state: state.brokers["rented-1"].state == BrokerState.LEFT)
                await until_state(console, lambda state: "rented-1" not in cluster.urls, timeout_s=10.0)
                return await load.end(), cluster.urls, left

    verdict, urls, state = asyncio.run(scenario())
    assert verdict.exact, verdict
    assert set(urls) == {"b1"}
    assert all(view.placement.brokers == ("b1",) for view in state.topics.values())


def _carries(state: bus.State, broker: str) -> bool:
    return any(broker in view.placement.brokers for view in state.topics.values())
