"""What a registered user may do to logs, by mistake or not: others lose nothing, and every error says what to do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

import nearcast
from nearcast.core.model.logs import Log, cursors_of
from nearcast.errors import Unavailable, UsageError
from nearcast.runtime.console import Console
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("hostile logs")]  # one world for all

TEST_S = 30.0
LOG = Log("orders", 0, ("order.*",), 3600.0, 1 << 28)


class World:
    """A broker that keeps a log with ten messages. Tests run in its loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self.cluster: LocalCluster
        self.console: Console
        self.log: Log

    async def begin(self) -> None:
        self.cluster = await LocalCluster.start(brokers=1)
        self.console = await self.cluster.console()
        self.log = await self.console.create_log(LOG)
        async with self.client() as client:
            for number in range(10):
                await client.publish(f"order.{number}", b"x")

    def client(self) -> nearcast.Client:
        return nearcast.connect(self.cluster.urls["b1"])

    async def life(self) -> str:
        return next(iter((await self.console.logs()).parts))

    async def ask(self, *command: str | bytes | int) -> Any:
        requester = Requester(self.cluster.urls["b1"])
        try:
            return await requester.ask(*command)
        finally:
            await requester.close()

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runner.run(asyncio.wait_for(scenario(), TEST_S))
        assert not self.cluster.ended


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        world = World(runner)
        runner.run(world.begin())
        yield world
        runner.run(world.cluster.stop())


@pytest.mark.parametrize("when", [math.nan, math.inf, -math.inf, 1e300, 1.8e12])
def test_a_time_that_is_none_is_refused(world: World, when: float) -> None:
    async def scenario() -> None:
        async with world.client() as client:
            with pytest.raises(UsageError, match=r"cannot read from .*: use .*, a datetime or Unix seconds"):
                client.read("orders", from_=when)

    world.run(scenario)


def test_a_time_before_all_others_is_the_beginning(world: World) -> None:
    async def scenario() -> None:
        async with world.client() as client, client.read("orders", from_=-5.0) as reader:
            assert isinstance(await reader.get(), nearcast.Message)

    world.run(scenario)


UNREADABLE = [b"garbage", b"\xff\xfe", b"1 x 2 garbage", b"1 - 2 0 0 0 1-1 0", b"9" * 5000 + b" - 1 0 0 0 0-0 0 0"]


@pytest.mark.parametrize("cursor", UNREADABLE, ids=lambda cursor: repr(cursor[:20]))
def test_a_cursor_that_cannot_be_read_is_named_and_costs_the_server_nothing(world: World, cursor: bytes) -> None:
    async def scenario() -> None:
        key = cursors_of(world.log, await world.life())
        await world.ask("HSET", key, "g:billing", cursor)
        async with world.client() as client:
            before = await calls(world)
            with pytest.raises(Unavailable, match=r"the group 'billing' .* HDEL nc:j:orders@\d+:b1@\d+ g:billing"):
                await client.read("orders", group="billing", timeout_s=5.0)
            assert await calls(world) - before < 20
            await world.ask("HDEL", key, "g:billing")
            async with client.read("orders", group="billing") as reader:
                assert isinstance(await reader.get(), nearcast.Message)
            await world.ask("HDEL", key, "g:billing")

    world.run(scenario)


async def calls(world: World) -> int:
    """How often scripts have run on the server."""
    for line in (await world.ask("INFO", "commandstats")).splitlines():
        if line.startswith(b"cmdstat_eval:calls="):
            return int(line.removeprefix(b"cmdstat_eval:calls=").partition(b",")[0])
    return 0
