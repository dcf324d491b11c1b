"""Bad input at a live cluster: what is refused and how it is said, and that nothing breaks or is lost by it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import nearcast
from nearcast import Gap, Limits, Message, Timing
from nearcast.agent.process import Agent
from nearcast.core.agent.machine import Identity
from nearcast.core.model.names import CONTROL, COUNTERS, MEMBERS, inbox_channel
from nearcast.core.wire.frames import DATA, HEADER, MARK, SKIP
from nearcast.errors import (
    AuthenticationFailed,
    Closed,
    ConnectFailed,
    InvalidTopic,
    NotACluster,
    PayloadTooLarge,
    PublishBufferFull,
    SlowSubscriber,
    UsageError,
)
from nearcast.runtime.controller import Controller
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

TEST_S = 20.0
SHORT_S = 0.4  # enough for a server on this machine to refuse us


@dataclass
class World:
    """A cluster of one broker, and two servers that are no cluster."""

    runner: asyncio.Runner
    agent: Agent
    broker: LocalServer
    plain: LocalServer
    locked: LocalServer  # asks for the password `secret`

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.runner.run(asyncio.wait_for(scenario(), TEST_S))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        world, stop = runner.run(_start(runner))
        yield world
        runner.run(stop())


async def _start(runner: asyncio.Runner) -> tuple[World, Callable[[], Coroutine[Any, Any, None]]]:
    broker, store, plain, locked = await asyncio.gather(
        LocalServer.start(name="b1"),
        LocalServer.start(name="store"),
        LocalServer.start(name="plain"),
        LocalServer.start(name="locked", extra=("--requirepass", "secret")),
    )
    agent = Agent(Identity("b1", broker.url), broker.url, store.url)
    parts = (agent, Controller(store.url))
    for part in parts:
        await part.start()
    async with asyncio.timeout(TEST_S), nearcast.connect(broker.url, bootstrap_s=TEST_S) as client:
        await client.publish("first", b"")

    async def stop() -> None:
        for part in parts:
            await part.stop()
        await asyncio.gather(*(server.stop() for server in (broker, store, plain, locked)))

    return World(runner, agent, broker, plain, locked), stop


@pytest.fixture
def topic() -> str:
    """A name no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


async def tell(world: World, channel: str | bytes, *payloads: bytes) -> None:
    """Publish as a foreign program would."""
    foreigner = Requester(world.broker.url)
    for payload in payloads:
        await foreigner.ask("PUBLISH", channel, payload)
    await foreigner.close()


async def payloads(subscription: nearcast.Subscription, count: int) -> list[Any]:
    """The next events: payloads of messages, the others as they are."""
    async with asyncio.timeout(5):
        events = [await subscription.get() for _ in range(count)]
    return [event.payload if isinstance(event, Message) else event for event in events]


# --- connecting


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "http://localhost",
        "redis://",
        "redis://:6379",
        "redis:///0",
        "redis://host:port",
        "redis://host:99999",
        "redis://[::1",
        "unix://",
        None,
        b"redis://localhost",
        6379,
    ],
)
def test_a_url_that_cannot_be_one_is_refused_with_the_right_form(url: Any) -> None:
    with pytest.raises(UsageError, match=r"bad server URL .*: use redis://host:port") as raised:
        nearcast.connect(url)
    assert repr(url) in str(raised.value)


def test_no_url_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="give the URL of at least one server"):
        nearcast.connect()


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis://no-such-host.invalid", "redis://a..b", "unix:///no/such"]
)
def test_nothing_listening_is_said_with_the_address(world: World, url: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectFailed, match=r"cannot connect .*: does it run") as raised:
            await nearcast.connect(url, bootstrap_s=SHORT_S)
        assert url in str(raised.value)

    world.run(scenario)


def test_one_good_server_among_bad_ones_is_enough(world: World) -> None:
    async def scenario() -> None:
        async with nearcast.connect("redis://127.0.0.1:1", world.plain.url, world.broker.url) as client:
            assert list(client.brokers) == ["b1"]

    world.run(scenario)


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:secret@", "user@"])
def test_a_wrong_password_is_said_at_once(world: World, credentials: str) -> None:
    async def scenario() -> None:
        url = world.locked.url.replace("redis://", f"redis://{credentials}")
        with pytest.raises(AuthenticationFailed, match="give the user name and password in the URL") as raised:
            async with asyncio.timeout(2):
                await nearcast.connect(url)
        assert f"127.0.0.1:{world.locked.port}" in str(raised.value)
        assert "wrong@" not in str(raised.value)

    world.run(scenario)


@pytest.mark.parametrize("server", ["plain", "locked"])
def test_a_server_without_an_agent_is_no_cluster(world: World, server: str) -> None:
    async def scenario() -> None:
        port, password = (world.plain.port, "") if server == "plain" else (world.locked.port, ":secret@")
        with pytest.raises(NotACluster, match="start `nearcast agent` for it"):
            await nearcast.connect(f"redis://{password}127.0.0.1:{port}", bootstrap_s=SHORT_S)

    world.run(scenario)


def test_a_client_that_could_not_connect_is_closed(world: World) -> None:
    async def scenario() -> None:
        client = nearcast.connect(world.plain.url, bootstrap_s=SHORT_S)
        with pytest.raises(NotACluster):
            await client
        for attempt in (client, client.publish("t", b"")):
            with pytest.raises(Closed, match="connect a new one"):
                await attempt

    world.run(scenario)


# --- before and after


def test_a_client_that_is_not_connected_says_so(world: World) -> None:
    async def scenario() -> None:
        client = nearcast.connect(world.broker.url)
        with pytest.raises(Closed, match="not connected: use `async with"):
            await client.publish("t", b"x")
        with pytest.raises(Closed, match="not connected"):
            client.publish_nowait("t", b"x")
        with pytest.raises(Closed, match="not connected"):
            await client.subscribe("t")

    world.run(scenario)


def test_a_closed_client_says_so(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            await client.publish(topic, b"x")
            subscription = await client.subscribe(topic)
        with pytest.raises(Closed, match="closed: connect a new one"):
            await client.publish(topic, b"x")
        with pytest.raises(Closed, match="closed: connect a new one"):
            client.publish_nowait(topic, b"x")
        with pytest.raises(Closed, match="closed: connect a new one"):
            await client.subscribe(topic)
        with pytest.raises(Closed, match="subscription was closed"):
            await subscription.get()
        await client.close()

    world.run(scenario)


def test_a_client_used_in_another_loop_says_so(world: World, topic: str) -> None:
    """Instead of waiting there for what happens here."""

    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            await client.publish(topic, b"x")
            for call in (client.subscribe(topic).get, client.flush, client.sync):
                with pytest.raises(UsageError, match="another event loop: connect one in the loop that uses it"):
                    await asyncio.to_thread(lambda call: asyncio.run(call()), call)
            async with client.subscribe(topic) as subscription:
                await client.publish(topic, b"y")
                assert await payloads(subscription, 1) == [b"y"]

    world.run(scenario)


# --- topics and payloads


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "must not be empty"),
        ("x" * 513, "513 bytes: use at most 512"),
        ("nc:c:t", "'nc:' is reserved, choose another name"),
        (b"\xff", "not UTF-8: encode it"),
        (5, "must be str or bytes, not int"),
    ],
)
def test_a_bad_topic_is_refused_everywhere(world: World, bad: Any, says: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            with pytest.raises(InvalidTopic, match=says):
                await client.publish(bad, b"x")
            with pytest.raises(InvalidTopic, match=says):
                client.publish_nowait(bad, b"x")
            with pytest.raises(InvalidTopic, match=says):
                client.subscribe("good", bad)
            with pytest.raises(InvalidTopic, match=says):
                client.psubscribe(bad)

    world.run(scenario)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        ((), {}, "at least one topic"),
        (("t",), {"overflow": "keep"}, "unknown overflow policy 'keep': use one of drop_oldest, disconnect, block"),
        (("t",), {"mailbox": 0}, "at least one message"),
    ],
)
def test_a_bad_subscription_is_refused(
    world: World, arguments: tuple[str, ...], options: dict[str, Any], says: str
) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            with pytest.raises(UsageError, match=says):
                client.subscribe(*arguments, **options)

    world.run(scenario)


@pytest.mark.parametrize("bad", [None, 5, 1.5, ["x"], {"a": 1}])
def test_a_payload_of_another_type_is_refused(world: World, topic: str, bad: Any) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            says = f"must be bytes or str, not {type(bad).__name__}"
            with pytest.raises(UsageError, match=says):
                await client.publish(topic, bad)
            with pytest.raises(UsageError, match=says):
                client.publish_nowait(topic, bad)

    world.run(scenario)


def test_every_payload_that_can_be_bytes_is_taken(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic)
            for payload in (b"", b"\0\r\n", "é", bytearray(b"array"), memoryview(b"view")):
                assert await client.publish(topic, payload) == 1
            assert await payloads(subscription, 5) == [b"", b"\0\r\n", "é".encode(), b"array", b"view"]

    world.run(scenario)


def test_a_payload_over_the_limit_is_refused_and_one_at_the_limit_is_taken(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, limits=Limits(payload_bytes=1000)) as client:
            subscription = await client.subscribe(topic)
            with pytest.raises(PayloadTooLarge, match=r"1001 bytes: the limit is 1000; send it in parts, or raise"):
                await client.publish(topic, b"x" * 1001)
            await client.publish(topic, b"x" * 1000)
            assert await payloads(subscription, 1) == [b"x" * 1000]

    world.run(scenario)


def test_a_topic_named_twice_is_one_topic(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic, topic, topic.encode())
            for payload in (b"1", b"2"):
                await client.publish(topic, payload)
            assert await payloads(subscription, 2) == [b"1", b"2"]

    world.run(scenario)


# --- limits of publishing


def test_at_the_limit_publish_nowait_refuses_and_nothing_is_lost(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, limits=Limits(window=8)) as client:
            subscription = await client.subscribe(topic)
            refused: list[str] = []
            for number in range(100):
                try:
                    client.publish_nowait(topic, b"%d" % number)
                except PublishBufferFull as full:
                    refused.append(str(full))
                    await client.drain()
                    client.publish_nowait(topic, b"%d" % number)
            await client.flush()
            assert set(refused) == {"8 messages wait for acknowledgement: await publish() or drain()"}
            assert len(refused) >= 10
            assert await payloads(subscription, 100) == [b"%d" % number for number in range(100)]

    world.run(scenario)


def test_at_the_limit_publish_waits(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url, limits=Limits(window=2)) as client:
            subscription = await client.subscribe(topic)
            await asyncio.gather(*(client.publish(topic, b"%d" % number) for number in range(50)))
            assert sorted(map(int, await payloads(subscription, 50))) == list(range(50))

    world.run(scenario)


def test_a_cancelled_publish_leaves_no_hole_and_a_usable_connection(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, nearcast.connect(world.broker.url) as other:
            subscription = await other.subscribe(topic)
            for turn in range(30):
                publishing = asyncio.create_task(client.publish(topic, b"cancelled"))
                for _ in range(turn % 6):
                    await asyncio.sleep(0)  # cancelled at different steps of its work
                publishing.cancel()
                with suppress(asyncio.CancelledError):
                    await publishing
                await client.publish(topic, b"%d" % turn)
            taken = [event for event in subscription.take() if isinstance(event, Message)]
            while not taken or taken[-1].payload != b"29":
                event = await subscription.get()
                assert isinstance(event, Message)
                taken.append(event)
            assert [m.payload for m in taken if m.payload != b"cancelled"] == [b"%d" % turn for turn in range(30)]
            reception = other._machine.topic_subscribers[topic.encode()].reception
            assert reception is not None
            assert reception.lines.last == {client.client_id: client._machine.topic_publishers[topic.encode()].sequence}
            assert not reception.unsettled

    world.run(scenario)


# --- what others send


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"hello",
        b'{"json": true}',
        b"\xfbNC\x01",
        HEADER.pack(DATA, 1, 2, 3, 4)[:-1],
        b"\xfbNC\x09" + b"x" * 40,
        HEADER.pack(MARK, 1, 2, 3, 4),
    ],
    ids=["empty", "text", "json", "our magic, short", "our header, cut", "our magic, unknown kind", "a mark"],
)
def test_a_foreign_message_is_dropped_and_counted_or_delivered_as_it_is(
    world: World, topic: str, payload: bytes
) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client, nearcast.connect(world.broker.url) as other:
            strict = await client.subscribe(topic)
            open_minded = await other.subscribe(topic, accept_foreign=True)
            await client.publish(topic, b"before")
            await tell(world, topic, payload)
            await client.publish(topic, b"after")
            assert await payloads(strict, 2) == [b"before", b"after"]
            reception = client._machine.topic_subscribers[topic.encode()].reception
            assert reception is not None
            assert reception.lines.counters.foreign == 1
            assert await payloads(open_minded, 3) == [b"before", payload, b"after"]

    world.run(scenario)


def test_a_foreign_message_has_no_publisher(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic, accept_foreign=True)
            await tell(world, topic, b"hello")
            event = await subscription.get()
            assert isinstance(event, Message)
            assert (event.topic, event.publisher, event.sequence) == (topic, None, None)
            assert event.latency_s == 0.0

    world.run(scenario)


@pytest.mark.parametrize("word", [DATA, SKIP])
def test_a_forged_frame_is_a_publisher_of_its_own(world: World, topic: str, word: int) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic)
            await client.publish(topic, b"before")
            for epoch in (0, 2**32 - 1):
                await tell(world, topic, HEADER.pack(word, epoch, 2**64 - 1, 2**64 - 1, 2**64 - 1) + b"forged")
            await client.publish(topic, b"after")
            taken = [payload for payload in await payloads(subscription, 2) if payload != b"forged"]
            assert taken == [b"before", b"after"]

    world.run(scenario)


GARBAGE = [b"", b"R", b"S", b"R{}", b"S[]", b'S[1, {"2": -3}]', b"\xff" * 64, b"\0\1t", b"x" * 70_000]
NOT_UTF8 = [b'P{"brokers":["\xff"]}', b'{"client":1,"seconds":0,"topics":{},"uses":{"\xff":3}}']


def test_garbage_on_our_own_channels_disturbs_nobody(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic)
            pattern = await client.psubscribe(topic[:-1] + "*")
            await client.publish(topic, b"before")
            opened = client._machine.links.opened
            server = world.agent.machine.server
            link = server.link
            name = topic.encode()
            for channel in (
                CONTROL + name,
                inbox_channel(client.client_id),
                MEMBERS,
                COUNTERS,
                b"nc:y:" + name + b":1",
            ):
                await tell(world, channel, *GARBAGE, *NOT_UTF8)
            await client.publish(topic, b"after")
            assert await payloads(subscription, 2) == [b"before", b"after"]
            assert await payloads(pattern, 2) == [b"before", b"after"]
            assert client._machine.links.opened == opened
            assert server.link is link, "the agent has kept its connection"

    world.run(scenario)


# --- slow subscribers


def test_drop_oldest_tells_what_it_dropped(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic, mailbox=10)
            for number in range(1, 101):
                client.publish_nowait(topic, b"%d" % number)
            await client.flush()
            await client.sync()
            gap, *messages = subscription.take()
            assert isinstance(gap, Gap)
            assert (gap.topic, gap.publisher, gap.first) == (topic, client.client_id, 1)
            assert gap.count == subscription.dropped
            assert [m.payload for m in messages if isinstance(m, Message)] == [
                b"%d" % number for number in range(gap.last + 1, 101)
            ]
            assert 1 <= len(messages) <= 10
            await client.publish(topic, b"101")
            assert await payloads(subscription, 1) == [b"101"]

    world.run(scenario)


def test_disconnect_ends_the_subscription_with_a_remedy(world: World, topic: str) -> None:
    async def scenario() -> None:
        async with nearcast.connect(world.broker.url) as client:
            subscription = await client.subscribe(topic, mailbox=10, overflow="disconnect")
            patient = await client.subscribe(topic)
            for number in range(50):
                client.publish_nowait(topic, b"%d" % number)
            await client.flush()
            await client.sync()
            assert subscription.take()
            with pytest.raises(SlowSubscriber, match=r"read faster, raise the mailbox limit, or choose overflow="):
                await subscription.get()
            assert await payloads(patient, 50) == [b"%d" % number for number in range(50)]

    world.run(scenario)


def test_block_stops_the_socket_and_loses_nothing_while_the_program_is_in_time(world: World, topic: str) -> None:
    async def scenario() -> None:
        timing, limit, count = Timing(block_s=4.0), 4000, 20_000  # one read of the socket brings less than the limit
        async with (
            nearcast.connect(world.broker.url, timing=timing) as client,
            nearcast.connect(world.broker.url) as publisher,
        ):
            subscription = await client.subscribe(topic, mailbox=limit, overflow="block")
            for number in range(count):
                publisher.publish_nowait(topic, b"%100d" % number)
                if number % 1000 == 999:
                    await publisher.flush()
            await until(lambda: len(subscription._mailbox) >= limit, "the mailbox is full")
            await asyncio.sleep(0.1)  # no more comes
            assert limit <= len(subscription._mailbox) <= 2 * limit  # the rest waits in the socket
            taken: list[Any] = []

            def all_taken() -> bool:
                taken.extend(subscription.take())
                return len(taken) >= count

            await until(all_taken, "all have come", 10.0)
            assert subscription.dropped == 0
            assert [int(message.payload) for message in taken] == list(range(count))

    world.run(scenario)


def test_block_lets_the_others_through_after_its_time(world: World, topic: str) -> None:
    async def scenario() -> None:
        timing = Timing(block_s=0.2)
        async with nearcast.connect(world.broker.url, timing=timing) as client:
            blocking = await client.subscribe(topic, mailbox=5, overflow="block")
            other = await client.subscribe(topic + "/other")
            async with nearcast.connect(world.broker.url) as publisher:
                for number in range(5):
                    await publisher.publish(topic, b"%d" % number)
                began_s = asyncio.get_running_loop().time()
                await publisher.publish(topic + "/other", b"hello")
                assert await payloads(other, 1) == [b"hello"]
                waited_s = asyncio.get_running_loop().time() - began_s
            assert waited_s < 1.0
            assert await payloads(blocking, 5) == [b"%d" % number for number in range(5)]

    world.run(scenario)
