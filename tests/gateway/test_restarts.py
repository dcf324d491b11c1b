"""Gateways and the data cluster die and come back: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gateway_world import ROW, DataCluster, Worlds, no_more, take, take_results

from nearcast.core.wire.gateway import Result
from nearcast.subscriber.client import Subscriber
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live


def test_the_data_cluster_is_away_for_a_while(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with Subscriber.connect(url, "ann") as ann, Subscriber.connect(url, "bob") as bob:
                fire = await ann.subscribe("by_kind", kind="fire")
                await bob.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
                await w.data.stop()
                await until(lambda: w.gateways["b1"].health["data_cluster"] != "connected")
                late = asyncio.create_task(ann.subscribe("by_kind", kind="flood"))
                await bob.close()
                async with Subscriber.connect(url, "bob", token=bob.token) as again:
                    assert list(again.held) == [fire]
                    assert not late.done()
                    await w.data.start()
                    await w.data.execute({fire: [ROW]})
                    flood = await late
                    await w.data.execute({fire: [ROW], flood: [ROW]})
                    assert await take_results(again, 3) == [1, 2, 3]
                    assert sorted(await take_results(ann, 3)) == [2, 3, 3]
                    assert no_more(ann)

    asyncio.run(scenario())


def test_a_gateway_starts_again_with_what_it_held(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            port = int(url.rpartition(":")[2])
            async with Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 1) == [1]
                await w.stop_gateway("b1")
                await w.data.execute({fire: [ROW]})
                await w.start_gateway("b1", port)
                await w.data.execute({fire: [ROW]})
                assert await take_results(ann, 2) == [2, 3]
                assert ann.reconnects == 1
                await ann.unsubscribe(fire)
                await until(lambda: w.data.held() == {"b1": 0})

    asyncio.run(scenario())


def test_a_subscription_that_nobody_holds_any_more_is_released_when_it_is_notified(world: Worlds) -> None:
    """As after a kill between the removal of a user's entry and the release."""

    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            port = int(url.rpartition(":")[2])
            async with Subscriber.connect(url, "ann") as ann:
                fire = await ann.subscribe("by_kind", kind="fire")
                flood = await ann.subscribe("by_kind", kind="flood")
            directory = w.gateways["b1"].directory
            await directory.remove("ann", "b1", fire)
            await directory.remove("ann", "b1", flood)
            await w.stop_gateway("b1")
            assert w.data.held() == {"b1": 2}
            await w.start_gateway("b1", port)
            await w.until_notified()
            await w.data.execute({fire: [ROW]})
            await until(lambda: w.data.held() == {"b1": 1})

    asyncio.run(scenario())


def test_an_agent_is_killed_with_its_gateway_and_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1, gateways=True) as cluster:
            data = DataCluster(tmp_path / "data", cluster.store_url)
            await data.start()
            await data.create_channel()
            try:
                url = cluster.gateway_urls["b1"]
                async with Subscriber.connect(url, "ann") as ann, Subscriber.connect(url, "bob", long_poll=True) as bob:
                    fire = await ann.subscribe("by_kind", kind="fire")
                    await bob.subscribe("by_kind", kind="fire")
                    for number in range(30):
                        await data.execute({fire: [ROW]})
                        if number in (9, 19):
                            await cluster.kill_agent("b1")
                        if number in (14, 24):
                            await cluster.restart_agent("b1")
                    for subscriber in (ann, bob):
                        events = await take(subscriber, 30)
                        assert [e.execution for e in events if isinstance(e, Result)] == list(range(1, 31))
                        assert subscriber.reconnects >= 1
                    await asyncio.sleep(0.5)  # for what comes twice
                    assert no_more(ann)
                    assert no_more(bob)
            finally:
                await data.close()

    asyncio.run(scenario())
