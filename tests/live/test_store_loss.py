"""A store that comes back with nothing: topics stay where they are, messages flow on, and everybody is told."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

import nearcast
from nearcast.core.model.message import Interrupted, Message
from nearcast.core.model.placement import Mode
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.runtime.servers import LocalServer
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

RECOVERED_S = 15.0


async def recovered(cluster: LocalCluster) -> bool:
    """Whether the loss was found, and everything found again."""
    try:
        async with Console(cluster.store_url) as console:
            state = await console.state(timeout_s=1.0)
    except ClusterError:
        return False
    return state.loss is not None and state.loss.verified


async def command(cluster: LocalCluster, *arguments: str) -> tuple[dict[str, Any], str]:
    """What the command prints as JSON, and what it says besides."""
    line = (sys.executable, "-P", "-m", "nearcast", *arguments, "--output", "json", "--url", cluster.urls["b1"])
    process = await asyncio.create_subprocess_exec(*line, stdout=PIPE, stderr=PIPE)
    out, said = await process.communicate()
    assert process.returncode == 0, said
    found = json.loads(out)
    assert isinstance(found, dict)
    return found, said.decode()


async def check_what_is_told(cluster: LocalCluster) -> None:
    """Controllers log it, every look at the cluster warns of it, until somebody acknowledges it."""
    logged = cluster._controllers[0].log.read_text()
    assert "ERROR THE STORE HAS LOST DATA" in logged
    assert "WARNING the store has lost data: " in logged
    warning = "warning: the store has lost data, see `nearcast store`"
    for look in (("brokers",), ("topic", "show"), ("plan", "show")):
        assert warning in (await command(cluster, *look))[1]
    told, _ = await command(cluster, "store")
    assert "rebuilt from brokers b1, b2" in told["loss"]["text"]
    acknowledged, _ = await command(cluster, "store", "acknowledge")
    assert acknowledged["loss"]["acknowledged"] is True
    assert (await command(cluster, "brokers"))[1] == ""


@pytest.mark.parametrize("controllers_too", [False, True], ids=["the store alone", "the store and all controllers"])
def test_a_store_that_comes_back_empty_costs_no_message_and_no_place(controllers_too: bool) -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster:
            async with Console(cluster.store_url) as console:
                await console.move("scores", Mode.ALL_SUBSCRIBERS, ("b1", "b2"))
                before = (await console.state("scores")).topics["scores"].placement
            async with nearcast.connect(cluster.urls["b1"]) as client:
                await through_the_loss(cluster, client, controllers_too)
            async with Console(cluster.store_url) as console:
                after = (await console.state("scores")).topics["scores"].placement
            assert after == before
            await check_what_is_told(cluster)

    asyncio.run(scenario())


async def through_the_loss(cluster: LocalCluster, client: nearcast.Client, controllers_too: bool) -> None:
    async with client.subscribe("scores") as subscription:
        published = 0

        async def publish() -> None:
            nonlocal published
            while True:
                await client.publish("scores", b"%d" % published)
                published += 1
                await asyncio.sleep(0.01)  # paces it

        task = asyncio.create_task(publish())
        await until(lambda: published > 30, "publishing")
        if controllers_too:
            await cluster.kill_controller(0)
        await cluster.lose_store()
        if controllers_too:
            await cluster.restart_controller(0)
        await until(lambda: recovered(cluster), "a recovery")
        seen = published
        await until(lambda: published > seen + 20, "publishing")
        task.cancel()
        got: list[int] = []
        async with asyncio.timeout(5.0):
            async for event in subscription:
                assert not isinstance(event, Interrupted), event
                assert isinstance(event, Message)
                got.append(int(event.payload))
                if len(got) >= published:
                    break
        assert got == list(range(len(got)))


def test_clients_of_a_cluster_that_starts_over_are_told_and_go_on_in_the_new_one() -> None:
    async def scenario() -> None:
        first = await LocalCluster.start(brokers=2)
        ports = [int(url.rpartition(":")[2]) for url in (first.store_url, *first.urls.values())]
        try:
            async with Console(first.store_url) as console:
                for broker in ("b1", "b2", "b1", "b2"):
                    await console.move("scores", Mode.SINGLE, (broker,))
            async with nearcast.connect(first.urls["b1"]) as client, client.subscribe("scores") as subscription:
                await client.publish("scores", b"before")
                await first.stop()
                async with await started_at(ports) as second, nearcast.connect(second.urls["b2"]) as other:
                    await until_heard(subscription, other)
                    await client.publish("scores", b"after")
        finally:
            await first.stop()

    asyncio.run(scenario())


async def started_at(ports: list[int]) -> LocalCluster:
    """A cluster of two at these ports, with nothing of the one before."""
    store = await LocalServer.start(name="store", port=ports[0])
    cluster = LocalCluster(store, Path(tempfile.mkdtemp(prefix="nearcast-cluster-")))
    await cluster._start_controllers(1, ())
    for name, port in zip(("b1", "b2"), ports[1:], strict=True):
        await cluster.start_broker(name, port=port)
    await cluster.until_members()
    return cluster


async def until_heard(subscription: nearcast.Subscription, other: nearcast.Client) -> None:
    """Publish with a client that knows nothing of the old cluster, until it is heard."""

    async def publish() -> None:
        while True:
            await other.publish("scores", b"again")
            await asyncio.sleep(0.1)  # paces it

    task = asyncio.create_task(publish())
    reasons = []
    async with asyncio.timeout(RECOVERED_S):
        async for event in subscription:
            if isinstance(event, Interrupted):
                reasons.append(event.reason)
            elif isinstance(event, Message) and event.payload == b"again":
                break
    task.cancel()
    assert "the cluster was restarted from scratch" in reasons
