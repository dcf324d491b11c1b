"""Topics follow their clients on real servers, over an emulated network."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack

import pytest

import nearcast
from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Spread
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.network.emulated import EmulatedNetwork
from nearcast.testing.network.placed import place_cluster
from nearcast.testing.network.sites import Site, World
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

WORLD = World((Site("east", 0.008), Site("west", 0.008)), {("east", "west"): 0.023}, jitter_share=0.0)
BOUND_S = 0.040  # a message takes 16 ms through the broker of the own site, and 46 ms through the other
TOPIC = "swarm.1"
BACK_S = 15.0
SETTLED_S = 40.0  # at first: coordinates take a while


@pytest.mark.parametrize("ranking", ["top8", pytest.param("centroids", marks=pytest.mark.slow)])
def test_a_topic_follows_its_swarm_and_nothing_is_lost(ranking: str) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(
                await LocalCluster.start(
                    brokers=["b1", "b2"],
                    controller_options=["--policy", "epulsar", "--set", f"ranking={ranking}", "--wait", "2"],
                    emulated=True,
                )
            )
            console = await stack.enter_async_context(await cluster.console())
            network = await stack.enter_async_context(EmulatedNetwork(WORLD, random.Random(1)))
            await place_cluster(network, cluster, {"b1": "east", "b2": "west"})
            swarm = await network.attach("swarm", "east")
            leader, follower = [
                await stack.enter_async_context(nearcast.connect(cluster.urls["b1"], resolve=swarm.resolve))
                for _ in range(2)
            ]
            await console.set_bound("swarm.*", Bound(BOUND_S))
            subscription = await follower.subscribe(TOPIC)
            got: list[tuple[float, float, int]] = []  # when, latency, number

            async def listen() -> None:
                async for event in subscription:
                    assert isinstance(event, nearcast.Message), event
                    got.append((time.monotonic(), event.latency_s, event.sequence))

            async def speak() -> None:
                while True:
                    await leader.publish(TOPIC, b"x" * 100)
                    await asyncio.sleep(0.02)  # the rate of the stream

            async def is_at(broker: str) -> bool:
                return (await console.state(TOPIC)).topics[TOPIC].placement.brokers == (broker,)

            async def is_near(broker: str) -> bool:
                found = (await console.state(TOPIC)).distances.get(TOPIC)
                return found is not None and found.subscribers == Spread(1, broker, 1)

            tasks = [asyncio.create_task(listen()), asyncio.create_task(speak())]
            within_s = SETTLED_S
            for site, broker in (("east", "b1"), ("west", "b2"), ("east", "b1")):
                swarm.move(site)
                await until(lambda broker=broker: is_at(broker), f"the topic is at {broker}", within_s)
                await until(lambda broker=broker: is_near(broker), f"clients are shown near {broker}", BACK_S)
                within_s = BACK_S
                before = len(got)
                await until(lambda before=before: len(got) > before + 50, "messages flow")
                late = [latency_s for _, latency_s, _ in got[-25:] if latency_s > BOUND_S]
                assert len(late) < 5, "it is near again"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            numbers = [number for _, _, number in got]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            said = [decision.text for decision in (await console.overview()).decisions]
            assert sum("predicted" in text for text in said) >= 2, said

    asyncio.run(scenario())
