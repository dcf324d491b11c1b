"""Subscriptions at a live cluster: who waits, who reads, who gives up, and topics that the user may not use."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import nearcast
from nearcast import Interrupted, Limits, Message
from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.errors import AccessDenied, Closed, LimitReached, SlowSubscriber
from nearcast.runtime.controller import Controller
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

TEST_S = 20.0
# The rules of a client in docs/security.md, for topics that begin with `t`.
RULES = (
    "on >x resetchannels resetkeys -@all &t* &nc:c:t* &nc:y:t* &nc:i:* &nc:m &nc:p &nc:s &nc:b &nc:w "
    "~nc:first %R~nc:r %R~nc:m %R~nc:agent %R~nc:ready "
    "+subscribe +unsubscribe +psubscribe +punsubscribe +publish +ping +get +hget +hmget +hsetnx +eval +info"
)


@dataclass
class World:
    """A cluster of one broker, with a user `app` of limited rights."""

    runner: asyncio.Runner
    broker: LocalServer

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runner.run(asyncio.wait_for(scenario(), TEST_S))

    @property
    def limited_url(self) -> str:
        return f"redis://app:x@127.0.0.1:{self.broker.port}"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        world, stop = runner.run(_start(runner))
        yield world
        runner.run(stop())


async def _start(runner: asyncio.Runner) -> tuple[World, Callable[[], Coroutine[Any, Any, None]]]:
    broker, store = await asyncio.gather(LocalServer.start(name="b1"), LocalServer.start(name="store"))
    parts = (Agent(Identity("b1", broker.url), broker.url, store.url), Controller(store.url))
    for part in parts:
        await part.start()
    await ask(broker, "ACL", "SETUSER", "app", *RULES.split())
    async with asyncio.timeout(TEST_S), nearcast.connect(broker.url, bootstrap_s=TEST_S) as client:
        await client.publish("first", b"")

    async def stop() -> None:
        for part in parts:
            await part.stop()
        await asyncio.gather(broker.stop(), store.stop())

    return World(runner, broker), stop


async def ask(server: LocalServer, *parts: str) -> object:
    requester = Requester(server.url)
    try:
        return await requester.ask(*parts)
    finally:
        await requester.close()


@pytest.fixture
def topic() -> str:
    """A name no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


async def subscribers(world: World, topic: str) -> int:
    answer = await ask(world.broker, "PUBSUB", "NUMSUB", topic)
    assert isinstance(answer, list)
    return int(answer[1])


# --- readers


def test_every_reader_of_one_subscription_gets_events(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, client.subscribe(topic) as subscription:
            readers = [asyncio.create_task(subscription.get()) for _ in range(3)]
            await asyncio.sleep(0)  # they wait
            for payload in (b"1", b"2", b"3"):
                await client.publish(topic, payload)
            events = await asyncio.wait_for(asyncio.gather(*readers), 5)
            assert sorted(event.payload for event in events if isinstance(event, Message)) == [b"1", b"2", b"3"]

    world.run(scenario)


def test_a_reader_that_leaves_hands_what_it_took_to_the_others(world: World, topic: str) -> None:
    """One event of a run goes to the first reader; the rest must not wait for the next message."""

    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, client.subscribe(topic) as subscription:
            taken: list[object] = []

            async def read_all() -> None:
                async for event in subscription:
                    taken.append(event)

            first = asyncio.create_task(subscription.get())
            reader = asyncio.create_task(read_all())
            await asyncio.sleep(0)  # they wait
            for number in range(10):
                client.publish_nowait(topic, b"%d" % number)
            await client.flush()
            await asyncio.wait_for(first, 5)
            await until(lambda: len(taken) == 9, "the other reader has the rest", 5.0)
            reader.cancel()

    world.run(scenario)


def test_a_cancelled_reader_takes_nothing_away(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, client.subscribe(topic) as subscription:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(subscription.get(), 0.05)
            await client.publish(topic, b"1")
            event = await asyncio.wait_for(subscription.get(), 5)
            assert isinstance(event, Message)

    world.run(scenario)


# --- giving up


@pytest.mark.parametrize("pattern", [False, True])
def test_a_subscribe_that_is_cancelled_leaves_nothing_behind(world: World, topic: str, pattern: bool) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscribe = client.psubscribe if pattern else client.subscribe
            attaching = asyncio.ensure_future(_awaited(subscribe(topic)))
            await asyncio.sleep(0)  # it begins
            attaching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attaching
            assert not client.consumers
            assert not client._machine.topic_subscribers
            assert not client._machine.patterns
            await client.sync()
            assert await subscribers(world, topic) == 0
            again = await subscribe(topic)
            await client.publish(topic, b"1")
            assert (await asyncio.wait_for(again.get(), 5)).payload == b"1"  # type: ignore[union-attr]

    world.run(scenario)


def test_a_subscribe_that_is_cancelled_can_be_awaited_again(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = client.subscribe(topic)
            attaching = asyncio.ensure_future(_awaited(subscription))
            await asyncio.sleep(0)  # it begins
            attaching.cancel()
            await asyncio.wait([attaching])
            await subscription
            await client.publish(topic, b"1")
            assert (await asyncio.wait_for(subscription.get(), 5)).payload == b"1"  # type: ignore[union-attr]

    world.run(scenario)


def test_one_of_two_who_await_a_subscription_may_leave(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = client.subscribe(topic)
            both = [asyncio.ensure_future(_awaited(subscription)) for _ in range(2)]
            await asyncio.sleep(0)  # both begin
            both[0].cancel()
            assert await asyncio.wait_for(both[1], 5) is subscription
            assert await subscribers(world, topic) == 1

    world.run(scenario)


def test_a_subscription_over_the_limit_of_topics_leaves_nothing_behind(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, limits=Limits(topics=2)) as client:
            with pytest.raises(LimitReached):
                await client.subscribe(*(f"{topic}-{number}" for number in range(3)))
            assert not client.consumers
            assert not client._machine.topic_subscribers

    world.run(scenario)


def test_a_closed_subscription_is_not_attached_again(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = client.subscribe(topic)
            subscription.close()
            with pytest.raises(Closed):
                await subscription

    world.run(scenario)


def test_one_that_was_too_slow_is_let_go_when_it_is_closed(world: World, topic: str) -> None:
    """Its policy has ended the mailbox before: that is no reason to stay on the server."""

    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            async with client.subscribe(topic, mailbox=10, overflow="disconnect"):
                await _overflow(client, topic)
                assert await subscribers(world, topic) == 1
            await client.sync()
            assert await subscribers(world, topic) == 0
            assert len(client.consumers) == 0

    world.run(scenario)


def test_a_reader_that_never_waits_is_told_that_it_is_too_slow(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic, mailbox=10, overflow="disconnect")
            await _overflow(client, topic)
            assert len(subscription.take()) > 10
            with pytest.raises(SlowSubscriber):
                subscription.take()

    world.run(scenario)


async def _overflow(client: nearcast.Client, topic: str) -> None:
    for number in range(50):
        client.publish_nowait(topic, b"%d" % number)
    await client.flush()
    await client.sync()


def test_a_close_that_is_cancelled_leaves_no_connection_open(world: World, topic: str) -> None:
    async def scenario() -> None:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)  # no TLS: opening hangs there
        port = silent.sockets[0].getsockname()[1]
        client = await nearcast.connect(world.broker.url, f"rediss://127.0.0.1:{port}")
        await client.subscribe(topic)
        before = await open_connections(world)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)  # it begins
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await client.close()
        assert await open_connections(world) == before - 1
        silent.close()

    world.run(scenario)


def test_one_that_the_program_drops_is_let_go(world: World, topic: str) -> None:
    """As in a program that reads one answer on a topic of its own and leaves the loop."""

    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            answering = asyncio.create_task(_answer(client, topic))
            async for event in client.subscribe(topic):
                assert isinstance(event, Message)
                break
            answering.cancel()
            await until(lambda: not client.consumers, "the loop that was left is ended by the event loop", 5.0)
            await client.sync()
            assert await subscribers(world, topic) == 0

    world.run(scenario)


def test_a_task_that_waits_for_events_keeps_its_subscription(world: World, topic: str) -> None:
    async def scenario() -> None:
        got = asyncio.Event()

        async def read() -> None:
            async for _ in client.subscribe(topic):
                gc.collect()
                got.set()

        async with nearcast.connect(world.broker.url) as client:
            asyncio.create_task(read())  # noqa: RUF006 - as programs do
            answering = asyncio.create_task(_answer(client, topic))
            for _ in range(3):
                got.clear()
                gc.collect()
                await got.wait()
            answering.cancel()

    world.run(scenario)


async def _answer(client: nearcast.Client, topic: str) -> None:
    while True:
        await client.publish(topic, b"1")
        await asyncio.sleep(0.01)  # paces it


async def _awaited(subscription: nearcast.Subscription) -> nearcast.Subscription:
    return await subscription


# --- topics the user may not use


def test_a_forbidden_topic_fails_and_the_others_notice_nothing(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.limited_url) as client, client.subscribe(topic) as subscription:
            before = await connections(world)
            with pytest.raises(AccessDenied, match=r"NOPERM.*docs/security\.md"):
                await client.subscribe("secret")
            with pytest.raises(AccessDenied, match="NOPERM"):
                await client.subscribe(topic, "secret")
            with pytest.raises(AccessDenied, match=r"the pattern 's\*': NOPERM"):
                await client.psubscribe("s*")
            with pytest.raises(AccessDenied, match="NOPERM"):
                await client.publish("secret", b"1")
            client.publish_nowait("secret", b"2")
            client.publish_nowait(topic, b"3")
            with pytest.raises(AccessDenied, match="1 message on 'secret' refused: b1 refused"):
                await client.flush()
            await client.flush()
            await client.publish(topic, b"4")
            events = [await asyncio.wait_for(subscription.get(), 5) for _ in range(2)]
            assert [event.payload for event in events if isinstance(event, Message)] == [b"3", b"4"]
            assert await connections(world) - before <= 1  # the one that asks

    world.run(scenario)


@pytest.mark.parametrize("channel", ["{topic}", "nc:c:{topic}"])
def test_rights_that_are_withdrawn_and_given_back(world: World, topic: str, channel: str) -> None:
    """The server cuts off who holds a channel it may not hold any more."""

    async def scenario() -> None:
        others = [rule for rule in ("&{topic}", "&nc:c:{topic}") if rule != f"&{channel}"]
        rules = [rule.format(topic=topic) for rule in others]
        async with (
            nearcast.connect(world.limited_url) as client,
            nearcast.connect(world.broker.url) as publisher,
            client.subscribe(topic) as subscription,
        ):
            await publisher.publish(topic, b"1")
            channels = [rule for rule in RULES.split() if rule.startswith("&") and rule not in ("&t*", "&nc:c:t*")]
            await ask(world.broker, "ACL", "SETUSER", "app", "resetchannels", *channels, *rules)
            await publisher.publish(topic, b"2")
            reasons: list[str] = []
            messages: list[bytes] = []
            while not any("NOPERM" in reason for reason in reasons):
                _sort(await asyncio.wait_for(subscription.get(), 5), messages, reasons)
            with pytest.raises(AccessDenied):
                await client.publish(topic, b"no")
            await ask(world.broker, "ACL", "SETUSER", "app", *RULES.split())
            while "" not in reasons:
                _sort(await asyncio.wait_for(subscription.get(), 5), messages, reasons)
            await client.publish(topic, b"3")
            while len(messages) < 3:
                _sort(await asyncio.wait_for(subscription.get(), 5), messages, reasons)
            assert sorted(messages) == [b"1", b"2", b"3"]

    world.run(scenario)


def _sort(event: object, messages: list[bytes], reasons: list[str]) -> None:
    """Payloads here, reasons of interruptions there; the end of one is an empty reason."""
    if isinstance(event, Message):
        messages.append(event.payload)
    elif isinstance(event, Interrupted):
        reasons.append(event.reason if event.until_s is None else "")


async def connections(world: World) -> int:
    """How many the server has had so far."""
    return await _info(world, "stats", b"total_connections_received:")


async def open_connections(world: World) -> int:
    return await _info(world, "clients", b"connected_clients:")


async def _info(world: World, section: str, field: bytes) -> int:
    info = await ask(world.broker, "INFO", section)
    assert isinstance(info, bytes)
    return int(info.split(field)[1].split()[0])
