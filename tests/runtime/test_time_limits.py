"""Calls at a cluster that does not answer: they end in time, say what they waited for, and leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import nearcast
from nearcast import Limits, Message, State, StateChange
from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.errors import ClusterError, TimedOut, UsageError
from nearcast.runtime.controller import Controller
from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live

TEST_S = 20.0
SHORT_S = 0.3


@dataclass
class World:
    """A cluster of one broker."""

    runner: asyncio.Runner
    broker: LocalServer

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runner.run(asyncio.wait_for(scenario(), TEST_S))

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The server answers nothing, for less time than its agent would take for its death."""
        os.kill(self.broker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.broker.pid, signal.SIGCONT)


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
    async with asyncio.timeout(TEST_S), nearcast.connect(broker.url, bootstrap_s=TEST_S) as client:
        await client.publish("first", b"")

    async def stop() -> None:
        for part in parts:
            await part.stop()
        await asyncio.gather(broker.stop(), store.stop())

    return World(runner, broker), stop


@pytest.fixture
def topic() -> str:
    """A name no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


# --- publishing


def test_a_publish_that_was_sent_and_not_answered_may_still_arrive(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, client.subscribe(topic) as subscription:
            await client.publish(topic, b"first")
            with world.standing_still():
                with pytest.raises(
                    TimedOut, match=r"within 0.3 s: .*: b1 has not acknowledged it; it may have"
                ) as raised:
                    await client.publish(topic, b"late", timeout_s=SHORT_S)
                assert raised.value.sent is True
                assert isinstance(raised.value, TimeoutError)
            await client.publish(topic, b"next")
            async with asyncio.timeout(5):
                events = [await subscription.get() for _ in range(3)]
            assert [event.payload for event in events if isinstance(event, Message)] == [b"first", b"late", b"next"]
            assert not client._deadlines

    world.run(scenario)


def test_a_publish_that_could_not_be_sent_never_arrives(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            with world.standing_still():
                with pytest.raises(TimedOut, match="b1 has not answered; the message was not sent") as raised:
                    await client.publish(topic, b"withdrawn", timeout_s=SHORT_S)
                assert raised.value.sent is False
            async with client.subscribe(topic) as subscription:
                await client.publish(topic, b"next")
                event = await asyncio.wait_for(subscription.get(), 5)
            assert isinstance(event, Message)
            assert event.payload == b"next"

    world.run(scenario)


def test_a_publish_waits_for_room_no_longer_than_its_limit(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, limits=Limits(window=1)) as client:
            await client.publish(topic, b"first")
            with world.standing_still():
                client.publish_nowait(topic, b"1")
                with pytest.raises(TimedOut, match="the message was not sent") as raised:
                    await client.publish(topic, b"2", timeout_s=SHORT_S)
                assert raised.value.sent is False
            await client.flush()
            assert not client._deadlines

    world.run(scenario)


def test_many_publishes_end_together_and_leave_no_waiter(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, timeout_s=SHORT_S) as client:
            await client.publish(topic, b"first", timeout_s=None)
            with world.standing_still():
                calls = [client.publish(topic, b"%d" % number) for number in range(3000)]
                results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in results} == {TimedOut}
            assert not client._deadlines
            await client.flush(timeout_s=10)
            assert await client.publish(topic, b"after", timeout_s=None) == 0

    world.run(scenario)


def test_without_a_limit_a_publish_waits_as_long_as_it_takes(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, timeout_s=SHORT_S) as client:
            await client.publish(topic, b"first", timeout_s=None)
            with world.standing_still():
                waiting = asyncio.ensure_future(client.publish(topic, b"1", timeout_s=None))
                await asyncio.sleep(2 * SHORT_S)  # longer than the client's limit
                assert not waiting.done()
            assert await asyncio.wait_for(waiting, 5) == 0

    world.run(scenario)


def test_flush_and_drain_have_limits_and_give_nothing_up(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, limits=Limits(window=2)) as client:
            await client.publish(topic, b"first")
            with world.standing_still():
                client.publish_nowait(topic, b"1")
                client.publish_nowait(topic, b"2")
                with pytest.raises(TimedOut, match=r"not all acknowledged within 0.3 s: .*b1 has not acknowledged it"):
                    await client.flush(timeout_s=SHORT_S)
                with pytest.raises(TimedOut, match=r"no room to publish within 0.3 s: .*b1 has not acknowledged it"):
                    await client.drain(timeout_s=SHORT_S)
                with pytest.raises(TimedOut, match=r"no answer within 0.3 s: b1"):
                    await client.sync(timeout_s=SHORT_S)
            await client.flush()
            await client.drain()

    world.run(scenario)


@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_a_limit_that_cannot_be_kept_is_refused(world: World, topic: str, limit: float) -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match="use seconds greater than 0, or None"):
            nearcast.connect(world.broker.url, timeout_s=limit)
        async with nearcast.connect(world.broker.url) as client:
            with pytest.raises(UsageError):
                await client.publish(topic, b"", timeout_s=limit)
            with pytest.raises(UsageError):
                await client.subscribe(topic, timeout_s=limit)
            with pytest.raises(UsageError):
                await client.flush(timeout_s=limit)
            assert not client.consumers
            assert not client._machine.topic_subscribers

    world.run(scenario)


# --- subscribing


@pytest.mark.parametrize("pattern", [False, True])
def test_a_subscribe_that_timed_out_leaves_nothing_and_can_be_tried_again(
    world: World, topic: str, pattern: bool
) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = (client.psubscribe if pattern else client.subscribe)(topic, timeout_s=SHORT_S)
            with world.standing_still():
                with pytest.raises(TimedOut, match=r"not attached within 0.3 s: 't\w+': .*b1"):
                    await subscription
                assert not client.consumers
                assert not client._machine.topic_subscribers
                assert not client._machine.patterns
            subscription = await (client.psubscribe if pattern else client.subscribe)(topic)
            await client.publish(topic, b"1")
            event = await asyncio.wait_for(subscription.get(), 5)
            assert isinstance(event, Message)

    world.run(scenario)


def test_a_reader_is_not_limited(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, client.subscribe(topic, timeout_s=1.0) as subscription:
            reading = asyncio.ensure_future(subscription.get())
            await asyncio.sleep(1.2)  # longer than the subscription's limit
            await client.publish(topic, b"1")
            assert isinstance(await asyncio.wait_for(reading, 5), Message)

    world.run(scenario)


# --- telling


def test_a_cluster_that_dies_is_told_and_logged(caplog: pytest.LogCaptureFixture, topic: str) -> None:
    async def scenario() -> None:
        broker, store = await asyncio.gather(LocalServer.start(name="b1"), LocalServer.start(name="store"))
        parts = (Agent(Identity("b1", broker.url), broker.url, store.url), Controller(store.url))
        for part in parts:
            await part.start()
        changes: list[StateChange] = []
        async with nearcast.connect(broker.url, bootstrap_s=TEST_S, on_state=changes.append) as client:
            await client.publish(topic, b"1")
            assert client.state == StateChange(State.CONNECTED)
            broker.kill()
            with pytest.raises(TimedOut, match=r"b1 is not connected .*does it run") as raised:
                await client.publish(topic, b"2", timeout_s=1.0)
            assert isinstance(raised.value, ClusterError)
            assert client.state.state is State.DISCONNECTED
        states = [change.state for change in changes]
        assert states[0] is State.CONNECTED
        assert states[-2:] == [State.DISCONNECTED, State.CLOSED]
        for part in parts:
            await part.stop()
        await asyncio.gather(broker.wait(), store.stop())

    with caplog.at_level(logging.DEBUG, logger="nearcast"):
        asyncio.run(asyncio.wait_for(scenario(), TEST_S))
    lines = [record.getMessage() for record in caplog.records if record.name == "nearcast.client"]
    assert any("connected to b1 (redis://" in line for line in lines)
    assert any("connection to b1 lost (topics on it: 1): " in line for line in lines)
    assert any("no connection to b1, attempt 2: " in line and "retrying in " in line for line in lines)
    told = [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and "is disconnected" in record.msg % record.args
    ]
    assert len(told) == 1


def test_a_callback_that_fails_is_logged_and_harms_nobody(
    world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def on_state(change: StateChange) -> None:
        raise RuntimeError("the program's own")

    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, on_state=on_state) as client:
            await client.publish(topic, b"1")

    world.run(scenario)
    assert "on_state failed at StateChange" in caplog.text
