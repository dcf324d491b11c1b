"""Where to log in, by latency: users measure gateways, over an emulated network, and ask."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import httpx
import pytest
from gateway_world import Worlds

from nearcast.gateway.coordination import BusCoordination, Whereabouts
from nearcast.gateway.server import GatewayServer, listen
from nearcast.gateway.service import Gateway
from nearcast.subscriber.client import Subscriber
from nearcast.subscriber.nearest import measured, nearest
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.network.relay import DelayedRelay, LinkShape
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

NEAR_S, FAR_S = 0.002, 0.04  # one way


async def start_gateway(stack: AsyncExitStack, cluster: LocalCluster, broker: str, delay_s: float) -> Gateway:
    """A gateway that users reach with a delay."""
    listening, url = listen("127.0.0.1:0")
    parts = urlsplit(url)
    relay = await DelayedRelay.start((parts.hostname or "", parts.port or 0), LinkShape(delay_s), rng=random.Random(1))
    stack.push_async_callback(relay.close)
    coordination = BusCoordination(cluster.store_url, Whereabouts())
    reached = f"http://127.0.0.1:{relay.port}"
    gateway = Gateway(broker, reached, cluster.urls[broker], cluster.store_url, coordination=coordination)
    server = GatewayServer(gateway, listening)
    await server.start()
    stack.push_async_callback(server.stop)
    return gateway


def test_a_user_that_asks_for_the_nearest_gateway_logs_in_there() -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            cluster = await stack.enter_async_context(await LocalCluster.start(brokers=2))
            far = await start_gateway(stack, cluster, "b1", FAR_S)
            near = await start_gateway(stack, cluster, "b2", NEAR_S)
            found = await measured({"b1": far.url, "b2": near.url, "gone": "http://127.0.0.1:9"})
            assert set(found) == {"b1", "b2"}
            assert 2 * NEAR_S <= found["b2"] < 2 * FAR_S <= found["b1"]

            async def answered() -> bool:
                return await nearest(far.url, "probe") == near.url

            await until(answered, "the controller knows both gateways")
            for user in ("ann", "ben"):
                async with Subscriber.connect(far.url, user, tokens=None, nearest=True) as subscriber:
                    assert (subscriber.broker, subscriber.url) == ("b2", near.url)
            # Without measurements the third and fourth newcomers are placed in turn.
            placed = {(await far.request(user, None, None, {}))[0] for user in ("cyd", "dan")}
            assert placed == {"b1", "b2"}

    asyncio.run(scenario())


def test_without_an_answer_a_user_logs_in_at_the_gateway_it_knows(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with caplog.at_level(logging.WARNING):
            assert await nearest("http://127.0.0.1:9", "ann") == "http://127.0.0.1:9"
        assert "the nearest gateway is not known" in caplog.text

    asyncio.run(scenario())


def test_round_trips_are_checked_and_gateways_listed(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
                assert (await http.get("/gateways")).json() == {"b1": url}
                good = await http.get("/broker?user=ann&rtt=b1:0.0123&rtt=b2:1e-3")
                assert good.json() == {"broker": "b1", "url": url}
                wrong = ["b1", ":0.1", "b1:", "b1:x", "b1:0", "b1:-1", "b1:11", "b1:nan", "b1:inf", "b1:1e999"]
                for text in wrong:
                    answer = await http.get("/broker", params={"user": "ann", "rtt": text})
                    assert answer.status_code == 422, text
                    assert "rtt" in answer.json()["problem"]
                many = await http.get("/broker", params={"user": "ann", "rtt": [f"b{n}:0.1" for n in range(65)]})
                assert (many.status_code, "at most 64" in many.json()["problem"]) == (422, True)

    asyncio.run(scenario())
