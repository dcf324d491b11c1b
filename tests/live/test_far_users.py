"""Users behind a gateway count with their own distance from it, on real processes over an emulated network."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

import nearcast
from nearcast.core.model.distances import Candidate
from nearcast.subscriber.client import Subscriber
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.network.emulated import EmulatedNetwork
from nearcast.testing.network.placed import place_cluster
from nearcast.testing.network.sites import Site, World
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

WORLD = World((Site("east", 0.005), Site("west", 0.005)), {("east", "west"): 0.025}, jitter_share=0.0)
PHONE_S = 0.060  # one way, from the phone to its gateway
NOISE_S = 0.015  # of two cores that do everything
TOPIC = "chat"
KNOWN_S = 40.0


def test_a_phone_behind_a_gateway_makes_its_topic_slow() -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(
                await LocalCluster.start(brokers=["b1", "b2"], gateways=True, emulated=True)
            )
            console = await stack.enter_async_context(await cluster.console())
            network = await stack.enter_async_context(EmulatedNetwork(WORLD, random.Random(1)))
            await place_cluster(network, cluster, {"b1": "east", "b2": "west"})
            gateway = cluster.gateway_urls["b2"]
            await network.place(gateway, "west")
            desk = await network.attach("desk", "east")
            phone = await network.attach("phone", "west", access_delay_s=PHONE_S - 0.005, only=[gateway])
            client = await stack.enter_async_context(nearcast.connect(cluster.urls["b1"], resolve=desk.resolve))
            own = phone.resolve(gateway).replace("redis://", "http://")
            ann = await stack.enter_async_context(Subscriber.connect(own, "ann", tokens=None))
            bob = await stack.enter_async_context(Subscriber.connect(gateway, "bob", tokens=None, long_poll=True))
            await bob.subscribe_topic(TOPIC)
            await client.publish(TOPIC, b"x")

            async def now() -> Candidate | None:
                found = (await console.state(TOPIC)).distances.get(TOPIC)
                return found.now if found is not None else None

            async def found(low_s: float, high_s: float) -> bool:
                current = await now()
                return current is not None and low_s <= current.subscriber_s <= high_s

            await until(lambda: found(0.0, NOISE_S), "who polls is not measured", KNOWN_S)
            await ann.subscribe_topic(TOPIC)
            await until(lambda: found(PHONE_S, PHONE_S + NOISE_S), "the phone's delay shows", KNOWN_S)
            await ann.publish(TOPIC, b"from the phone")

            async def is_publisher() -> bool:
                current = await now()
                return current is not None and PHONE_S <= current.publisher_s <= PHONE_S + NOISE_S

            await until(is_publisher, "the phone publishes", KNOWN_S)

    asyncio.run(scenario())
