"""Topics that are used once leave nothing behind: on brokers, in the store, in the controller, in clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

import nearcast
from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.core.model.settings import Timing
from nearcast.errors import ClusterError
from nearcast.runtime.client import Client
from nearcast.runtime.console import Console
from nearcast.runtime.controller import Controller
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

TIMING = Timing(idle_s=1.3)  # the controller's; everybody else takes it over
TEST_S = 60.0
AT_ONCE = 50


class World:
    """Two brokers and a controller in this process, on real servers."""

    def __init__(self, store: LocalServer, servers: dict[str, LocalServer], controller: Controller) -> None:
        self.store = store
        self.servers = servers
        self.controller = controller

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers.values()]

    async def leftovers(self, *clients: Client) -> dict[str, int]:
        """How much each part keeps of topics."""
        found: dict[str, int] = {}
        for name, server in self.servers.items():
            found[f"records on {name}"] = len(await asked(server, "HKEYS", "nc:r"))
            found[f"first uses on {name}"] = len(await asked(server, "HKEYS", "nc:first"))
            found[f"channels on {name}"] = len(await asked(server, "PUBSUB", "CHANNELS", "*reply*"))
        keys = await asked(self.store, "HKEYS", "nc:store")
        found["entries in the store"] = sum(key.startswith(b"topic/") for key in keys)
        leader = self.controller._machine.leading
        assert leader is not None
        found["topics of the controller"] = len(leader.journal.topics) + len(leader.requests._looked_up)
        for number, client in enumerate(clients):
            machine = client._machine
            links = machine.links.all_up()
            found[f"flows of client {number}"] = (
                len(machine.topic_publishers) + len(machine.topic_subscribers) + len(client._publishers)
            )
            found[f"notes on links of client {number}"] = sum(
                len(link.users) + len(link.topics) + sum(b"reply" in channel for channel in link.control)
                for link in links
            )
            found[f"questions of client {number}"] = len(machine.finder._asked_s) + len(machine._attention)
        return found

    async def until_nothing_is_left(self, *clients: Client) -> None:
        found: dict[str, int] = {}

        async def nothing() -> bool:
            found.update(await self.leftovers(*clients))
            return not any(found.values())

        try:
            await until(nothing)
        except AssertionError:
            pytest.fail(f"left behind: { {name: count for name, count in found.items() if count} }")


async def asked(server: LocalServer, *parts: str) -> list[bytes]:
    requester = Requester(server.url)
    try:
        answer = await requester.ask(*parts)
    finally:
        await requester.close()
    assert isinstance(answer, list)
    return answer


@contextlib.asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    async with contextlib.AsyncExitStack() as stack:
        servers = {}
        for name in ("store", "b1", "b2"):
            servers[name] = await LocalServer.start(name=name)
            stack.push_async_callback(servers[name].stop)
        store = servers.pop("store")
        controller = Controller(store.url, timing=TIMING)
        agents = [Agent(Identity(name, server.url), server.url, store.url) for name, server in servers.items()]
        for part in (controller, *agents):
            await part.start()
            stack.push_async_callback(part.stop)
        await until(lambda: formed(store, len(servers)), "all are members", TEST_S)
        yield World(store, servers, controller)


async def formed(store: LocalServer, brokers: int) -> bool:
    """Whether this many brokers are members; the store has nothing to show before a controller has led once."""
    with contextlib.suppress(ClusterError):
        async with Console(store.url) as console:
            views = (await console.state()).brokers
            return sum(view.state == "member" for view in views.values()) == brokers
    return False


async def ask_and_answer(asker: Client, answerer: Client, topics: list[str]) -> None:
    """One request and its reply for each topic, some at a time."""
    for start in range(0, len(topics), AT_ONCE):
        await asyncio.gather(*(one_reply(asker, answerer, topic) for topic in topics[start : start + AT_ONCE]))


async def one_reply(asker: Client, answerer: Client, topic: str) -> None:
    subscription = await asker.subscribe(topic)
    await answerer.publish(topic, topic.encode())
    event = await subscription.get()
    assert isinstance(event, nearcast.Message)
    assert event.payload == topic.encode()
    subscription.close()


def test_topics_used_once_leave_nothing_behind() -> None:
    asyncio.run(topics_used_once())


async def topics_used_once() -> None:
    topics = [f"reply:{number}" for number in range(200)]
    async with (
        asyncio.timeout(TEST_S),
        a_world() as world,
        nearcast.connect(*world.urls) as asker,
        nearcast.connect(*world.urls) as answerer,
    ):
        await ask_and_answer(asker, answerer, topics)
        before = await world.leftovers(asker, answerer)
        assert before["first uses on b1"] + before["first uses on b2"] == len(topics)
        await world.until_nothing_is_left(asker, answerer)
        await ask_and_answer(asker, answerer, topics[:5])  # they can be used again


@pytest.mark.slow
@pytest.mark.parametrize("size", [250, 500, 1000])
def test_what_is_left_does_not_grow_with_the_topics_used(size: int) -> None:
    asyncio.run(many_topics_used_once(size))


async def many_topics_used_once(size: int) -> None:
    async with (
        asyncio.timeout(TEST_S),
        a_world() as world,
        nearcast.connect(*world.urls) as asker,
        nearcast.connect(*world.urls) as answerer,
    ):
        await ask_and_answer(asker, answerer, [f"reply:{size}:{number}" for number in range(size)])
        await world.until_nothing_is_left(asker, answerer)


def test_a_subscriber_that_stays_hears_a_topic_that_ended_for_its_publisher() -> None:
    asyncio.run(a_publisher_that_comes_back())


async def ended(client: Client) -> None:
    await until(lambda: not client._machine.topic_publishers, "the topic has ended")


async def a_publisher_that_comes_back() -> None:
    async with (
        asyncio.timeout(TEST_S),
        a_world() as world,
        nearcast.connect(*world.urls) as reader,
        nearcast.connect(*world.urls) as writer,
    ):
        subscription = await reader.subscribe("reply")
        for payload in (b"one", b"two"):
            await writer.publish("reply", payload)
            await ended(writer)
        received = [await subscription.get() for _ in range(2)]
        assert [(event.payload, event.sequence) for event in received if isinstance(event, nearcast.Message)] == [
            (b"one", 1),
            (b"two", 2),
        ]
