"""Logs that are lost with the store and all servers at once: readers are told so, whatever comes after."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

import nearcast
from nearcast.core.model.logs import Log
from nearcast.errors import Unavailable
from nearcast.testing.cluster import LocalCluster

pytestmark = pytest.mark.live

LOG = Log("orders", 0, ("order.*",), 3600.0, 1 << 28)
LOST = "the log 'orders' is gone, and what it kept: the store and all servers .*: create it again"


async def reading(cluster: LocalCluster, client: nearcast.Client) -> nearcast.Reader:
    """A reader that has read everything of a log."""
    await (await cluster.console()).create_log(LOG)
    await client.publish("order.1", b"kept")
    reader = await client.read("orders")
    assert isinstance(await reader.get(), nearcast.Message)
    return reader


def two_free_ports() -> int:
    """The first of two neighbours."""
    while True:
        with socket.socket() as one, socket.socket() as two, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            two.bind(("127.0.0.1", port + 1))
            return port


def test_a_log_that_is_lost_with_everything_was_not_dropped() -> None:
    async def scenario() -> None:
        async with (
            await LocalCluster.start(brokers=1) as cluster,
            nearcast.connect(cluster.urls["b1"]) as client,
        ):
            reader = await reading(cluster, client)
            await cluster.kill_server("b1")
            await cluster.lose_store()
            await cluster.restart_server("b1")
            with pytest.raises(Unavailable, match=LOST):
                await asyncio.wait_for(reader.get(), 30)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_log_of_another_cluster_is_another_log_even_if_it_looks_the_same() -> None:
    async def scenario() -> None:
        port = two_free_ports()
        first = await LocalCluster.start(brokers=1, first_port=port)
        try:
            async with nearcast.connect(first.urls["b1"]) as client:
                reader = await reading(first, client)
                await first.stop()
                async with await LocalCluster.start(brokers=1, first_port=port) as second:
                    await (await second.console()).create_log(LOG)
                    with pytest.raises(Unavailable, match=LOST):
                        await asyncio.wait_for(reader.get(), 30)
        finally:
            await first.stop()

    asyncio.run(asyncio.wait_for(scenario(), 60))
