"""A plain server for redis-py and a cluster for nearcast, so that the same test runs against both.

An async test is run in the loop of the `world` fixture, where the agents and the controller of the cluster live.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import redis.asyncio

import nearcast.asyncio
from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.core.model.journal import BrokerState
from nearcast.errors import NotACluster
from nearcast.runtime.console import Console
from nearcast.runtime.controller import Controller
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

TEST_S = 20.0


@dataclass
class World:
    runner: asyncio.Runner
    plain: LocalServer
    store: LocalServer
    brokers: dict[str, LocalServer]

    @property
    def url(self) -> str:
        """Of a server of the cluster: any will do."""
        return self.brokers["b1"].url


@dataclass
class Face:
    """One of the two libraries, with the address of what it talks to."""

    module: ModuleType
    url: str

    def open(self, **keywords: Any) -> Any:
        return self.module.from_url(self.url, **keywords)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}
    world = pyfuncitem.funcargs["world"]
    world.runner.run(asyncio.wait_for(pyfuncitem.function(**given), TEST_S))
    return True


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        world, stop = runner.run(_start(runner))
        yield world
        runner.run(stop())


async def _start(runner: asyncio.Runner) -> tuple[World, Callable[[], Any]]:
    plain, store, *servers = await asyncio.gather(*(LocalServer.start(name=f"s{number}") for number in range(5)))
    brokers = {f"b{number}": server for number, server in enumerate(servers, 1)}
    agents = [Agent(Identity(name, server.url), server.url, store.url) for name, server in brokers.items()]
    controller = Controller(store.url)

    async def stop() -> None:
        for part in (*agents, controller):
            await part.stop()
        await asyncio.gather(*(server.stop() for server in (plain, store, *servers)))

    for part in (*agents, controller):
        await part.start()
    await until(lambda: _all_members(store.url, len(brokers)), "all brokers are members")
    return World(runner, plain, store, brokers), stop


async def _all_members(store_url: str, count: int) -> bool:
    try:
        async with Console(store_url) as console:
            brokers = (await console.state()).brokers.values()
    except NotACluster:
        return False  # the controller has not begun
    return len(brokers) == count and all(broker.state == BrokerState.MEMBER and broker.alive for broker in brokers)


@pytest.fixture(params=["redis-py", "nearcast"])
def face(request: pytest.FixtureRequest, world: World) -> Face:
    return Face(redis.asyncio, world.plain.url) if request.param == "redis-py" else Face(nearcast.asyncio, world.url)


@pytest.fixture(params=[False, True], ids=["bytes", "str"])
def decode(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def said(decode: bool) -> Callable[[str], bytes | str]:
    """A text as messages carry it."""
    return (lambda text: text) if decode else str.encode


@pytest.fixture
def client(face: Face, world: World, decode: bool) -> Iterator[Any]:
    client = face.open(decode_responses=decode)
    yield client
    world.runner.run(client.aclose())


@pytest.fixture
def pubsub(client: Any, world: World) -> Iterator[Any]:
    pubsub = client.pubsub()
    yield pubsub
    world.runner.run(pubsub.aclose())


@pytest.fixture
def channel() -> str:
    """A name no other test uses."""
    return f"c{uuid.uuid4().hex[:12]}"
