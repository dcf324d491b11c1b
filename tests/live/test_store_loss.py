"""A store that comes back with nothing: topics stay where they are, messages flow on, and everybody is told."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

import pytest

import nearcast
from nearcast.core.message import Interrupted, Message
from nearcast.core.placement import Mode
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.testbed.cluster import LocalCluster

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("heavy")]

RECOVERED_S = 15.0


async def until(condition: Callable[[], Awaitable[bool]], what: str, within_s: float = RECOVERED_S) -> None:
    try:
        async with asyncio.timeout(within_s):
            while not await condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"{what} did not happen within {within_s:g} s")


async def recovered(cluster: LocalCluster) -> bool:
    """Whether the loss was found, and everything found again."""
    try:
        async with Console(cluster.store_url) as console:
            state = await console.state(timeout_s=1.0)
    except ClusterError:
        return False
    return state.loss is not None and state.loss.verified


async def store_command(cluster: LocalCluster, *arguments: str) -> dict[str, object]:
    command = (sys.executable, "-P", "-m", "nearcast", "store", *arguments, "--output", "json")
    url = ("--url", cluster.urls["b1"])
    process = await asyncio.create_subprocess_exec(*command, *url, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


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
            told = await store_command(cluster)
            assert "put together from brokers b1, b2" in str(told["loss"])
            assert (await store_command(cluster, "acknowledge"))["loss"]["acknowledged"] is True  # type: ignore[index]

    asyncio.run(scenario())


async def through_the_loss(cluster: LocalCluster, client: nearcast.Client, controllers_too: bool) -> None:
    async with client.subscribe("scores") as subscription:
        published = 0

        async def publish() -> None:
            nonlocal published
            while True:
                await client.publish("scores", b"%d" % published)
                published += 1
                await asyncio.sleep(0.01)

        task = asyncio.create_task(publish())
        await asyncio.sleep(0.5)
        if controllers_too:
            await cluster.kill_controller(0)
        await cluster.lose_store()
        if controllers_too:
            await cluster.restart_controller(0)
        await until(lambda: recovered(cluster), "a recovery")
        seen = published
        await until(lambda: asyncio.sleep(0, published > seen + 20), "publishing")
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
