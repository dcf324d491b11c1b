"""Two agent processes that say they are the same broker, or use the same server, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import pytest

import nearcast
from nearcast.core.model.placement import Mode
from nearcast.errors import ClusterError
from nearcast.runtime.console import Console
from nearcast.runtime.controller import Controller
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

TEST_S = 25.0


class World:
    """A store with a controller, and two servers; agents are processes that the tests start."""

    def __init__(self, store: LocalServer, servers: dict[str, LocalServer]) -> None:
        self.store = store
        self.servers = servers

    @contextlib.asynccontextmanager
    async def agent(self, broker: str, server: str) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nearcast", "agent", "--broker", broker),
            *("--server", self.servers[server].url, "--store", self.store.url),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    async def members(self) -> dict[str, str]:
        """Each member, and where it is said to be."""
        async with Console(self.store.url) as console:
            brokers = (await console.state()).brokers
        return {name: view.url for name, view in brokers.items() if view.state == "member"}

    async def formed(self, *brokers: str) -> None:
        async def are_members() -> bool:
            with contextlib.suppress(ClusterError):
                return set(await self.members()) == set(brokers)
            return False

        await until(are_members, f"{brokers} are members", TEST_S)

    async def settled_is_settled(self) -> None:
        """What is shown as moved can be used at once, at either broker."""
        urls = [server.url for server in self.servers.values()]
        async with nearcast.connect(*urls) as client, Console(self.store.url) as console:
            subscription = await client.subscribe("t")
            for broker in ("b1", "b2", "b1"):
                await console.move("t", Mode.SINGLE, (broker,))
                await client.publish("t", broker.encode())
                event = await subscription.get()
                assert isinstance(event, nearcast.Message)
                assert event.payload == broker.encode()


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with (
        await LocalServer.start() as store,
        await LocalServer.start() as b1,
        await LocalServer.start() as b2,
        asyncio.timeout(TEST_S),
    ):
        controller = Controller(store.url)
        await controller.start()
        try:
            yield World(store, {"b1": b1, "b2": b2})
        finally:
            await controller.stop()


async def said(process: asyncio.subprocess.Process, words: str) -> None:
    assert process.stderr is not None
    while words.encode() not in (line := await process.stderr.readline()):
        assert line, f"the process ended without saying {words!r}"


def test_an_agent_with_the_server_of_another_broker_exits_and_nobody_notices() -> None:
    async def scenario() -> None:
        async with world() as there, there.agent("b1", "b1"), there.agent("b2", "b2"):
            await there.formed("b1", "b2")
            async with there.agent("b1", "b2") as wrong:
                _, written = await wrong.communicate()
            assert wrong.returncode == 2
            assert f"error: server {there.servers['b2'].url} belongs to broker b2, whose agent is running" in str(
                written
            )
            assert await there.members() == {name: server.url for name, server in there.servers.items()}
            await there.settled_is_settled()

    asyncio.run(scenario())


def test_a_name_is_not_given_to_a_second_server() -> None:
    async def scenario() -> None:
        async with world() as there, there.agent("b1", "b1"):
            await there.formed("b1")
            async with there.agent("b1", "b2") as wrong:
                _, written = await wrong.communicate()
            assert wrong.returncode == 2
            where = f"with the server at {there.servers['b1'].url}"
            assert f"error: broker b1 has another agent, {where}" in str(written)
            assert await there.members() == {"b1": there.servers["b1"].url}

    asyncio.run(scenario())


def test_a_second_agent_waits_and_takes_over_when_the_first_is_killed() -> None:
    async def scenario() -> None:
        async with world() as there, there.agent("b1", "b1") as first, there.agent("b2", "b2"):
            await there.formed("b1", "b2")
            async with there.agent("b1", "b1") as second:
                await said(second, "has another agent of broker b1: waiting until it is gone")
                await there.settled_is_settled()
                first.kill()
                await said(second, "INFO the problem is resolved")
                await there.settled_is_settled()
                assert set(await there.members()) == {"b1", "b2"}

    asyncio.run(scenario())
