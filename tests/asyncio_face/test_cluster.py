"""What redis-py has no counterpart for: several brokers, moves, lost messages, foreign programs."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis.asyncio

import nearcast.asyncio as face
from nearcast import Gap, Interrupted, Limits, Mode
from nearcast.asyncio import pubsub as pubsub_module
from nearcast.errors import InvalidTopic
from nearcast.runtime.console import Console
from nearcast.runtime.servers import LocalServer

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("asyncio_face_cluster")]

WAIT_S = 5.0


@pytest.fixture
def client(world):
    client = face.from_url(world.url)
    yield client
    world.runner.run(client.aclose())


async def take(pubsub, count):
    return [await pubsub.get_message(timeout=WAIT_S) for _ in range(count)]


async def place(world, topics, mode, *brokers):
    async with Console(world.url) as console:
        await console.move_all(dict.fromkeys(topics, (mode, brokers)))


# --- several brokers


async def test_a_pattern_hears_all_brokers(client, world, channel):
    for broker in world.brokers:
        await place(world, [channel + broker], Mode.SINGLE, broker)
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.psubscribe(channel + "*")
        await take(pubsub, 1)
        for broker in world.brokers:
            assert await client.publish(channel + broker, broker) == 1
        assert {item["data"].decode() for item in await take(pubsub, 3)} == set(world.brokers)


async def test_topics_of_one_broker_keep_their_common_order(client, world, channel):
    topics = [f"{channel}{number}" for number in range(5)]
    await place(world, topics, Mode.SINGLE, "b2")
    async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe(*topics)
        await take(pubsub, 5)
        for number in range(50):
            await client.publish(topics[number * 7 % 5], number)
        assert [int(item["data"]) for item in await take(pubsub, 50)] == list(range(50))


@pytest.mark.parametrize(
    ("mode", "brokers"),
    [(Mode.SINGLE, ("b3",)), (Mode.ALL_SUBSCRIBERS, ("b1", "b3")), (Mode.ALL_PUBLISHERS, ("b1", "b2", "b3"))],
)
async def test_subscribers_are_counted_once_in_every_mode(client, world, channel, mode, brokers):
    await place(world, [channel], mode, *brokers)
    pubsubs = [client.pubsub() for _ in range(4)]
    for pubsub in pubsubs:
        await pubsub.subscribe(channel)
    assert await client.pubsub_numsub(channel) == [(channel.encode(), 4)]
    assert await client.publish(channel, "x") == 4
    assert await client.pubsub_channels(channel) == [channel.encode()]
    for pubsub in pubsubs:
        await take(pubsub, 1)
        assert (await take(pubsub, 1))[0]["data"] == b"x"


async def test_moves_are_not_noticed(client, world, channel):
    async with client.pubsub(ignore_subscribe_messages=True) as exact, client.pubsub() as matching:
        await exact.subscribe(channel)
        await matching.psubscribe(channel + "*")
        await take(exact, 1)
        await take(matching, 1)

        async def publish():
            for number in range(300):
                await client.publish(channel, number)
                await asyncio.sleep(0.001)  # paces it, so that the moves are made meanwhile

        publishing = asyncio.create_task(publish())
        await place(world, [channel], Mode.SINGLE, "b2")
        await place(world, [channel], Mode.ALL_PUBLISHERS, "b1", "b3")
        await place(world, [channel], Mode.ALL_SUBSCRIBERS, "b2", "b3")
        for pubsub in (exact, matching):
            assert [int(item["data"]) for item in await take(pubsub, 300)] == list(range(300))
            assert (pubsub.gaps, pubsub.interruptions) == (0, 0)
        await publishing


async def test_our_own_channels_are_hidden(client, channel):
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(channel)
        assert not [name for name in await client.pubsub_channels() if name.startswith(b"nc:")]
        assert await client.pubsub_numsub("nc:m") == [(b"nc:m", 0)]
        with pytest.raises(InvalidTopic, match="reserved"):
            await pubsub.subscribe("nc:m")
        with pytest.raises(face.DataError):
            await client.publish("nc:m", "x")


# --- foreign programs


async def test_messages_of_a_plain_redis_client_are_handed_over(client, world, channel):
    await place(world, [channel], Mode.SINGLE, "b2")
    async with client.pubsub() as pubsub, redis.asyncio.from_url(world.brokers["b2"].url) as foreign:
        await pubsub.subscribe(channel)
        await pubsub.psubscribe(channel + "*")
        await take(pubsub, 2)
        assert await foreign.publish(channel, "from afar") == 2
        assert [(item["type"], item["data"]) for item in await take(pubsub, 2)] == [
            ("message", b"from afar"),
            ("pmessage", b"from afar"),
        ]


# --- lost messages


async def test_gaps_are_counted_and_told(world, channel):
    events = []

    async def on_event(event):
        events.append(event)

    topics = [channel + "a", channel + "b"]
    await place(world, topics, Mode.SINGLE, "b1")
    async with face.from_url(world.url, limits=Limits(mailbox=16)) as client:
        pubsub = client.pubsub(on_event=on_event, ignore_subscribe_messages=True)
        await pubsub.subscribe(*topics)
        await take(pubsub, 2)
        for number in range(100):
            await client.publish(topics[number % 3 == 0], number)
        await pubsub.connection.sync()  # all that was published has come
        heard = []
        while item := await pubsub.get_message(timeout=0.05):
            heard.append(int(item["data"]))
        lost = range(100 - len(heard))
        assert heard == list(range(len(lost), 100))
        assert pubsub.gaps == 2
        assert all(isinstance(event, Gap) for event in events)
        assert {event.topic: event.count for event in events} == {
            topics[0]: sum(number % 3 != 0 for number in lost),
            topics[1]: sum(number % 3 == 0 for number in lost),
        }


async def test_an_interruption_is_counted_and_healed(client, world, channel):
    events = []
    await place(world, [channel], Mode.SINGLE, "b2")
    pubsub = client.pubsub(on_event=events.append, ignore_subscribe_messages=True)
    await pubsub.subscribe(channel)
    await take(pubsub, 1)
    await client.publish(channel, "before")
    async with redis.asyncio.from_url(world.brokers["b2"].url, decode_responses=True) as server:
        name = f"nearcast-{pubsub.connection.client_id:016x}"
        (connection,) = [each["id"] for each in await server.client_list() if each["name"] == name]
        await server.client_kill_filter(_id=connection)
    await client.publish(channel, "meanwhile")
    assert [item["data"] for item in await take(pubsub, 2)] == [b"before", b"meanwhile"]
    async with asyncio.timeout(WAIT_S):
        while len(events) < 2:
            assert await pubsub.get_message(timeout=0.05) is None
    assert (pubsub.gaps, pubsub.interruptions) == (0, 1)
    assert [(type(event), event.until_s is None) for event in events] == [(Interrupted, True), (Interrupted, False)]


# --- connections


async def test_pubsubs_that_share_their_connections(world, channel):
    async with face.from_url(world.url, share_connections=True) as client:
        one, two = client.pubsub(), client.pubsub()
        await one.subscribe(channel)
        await two.subscribe(channel, channel + "2")
        await two.psubscribe(channel + "*")
        await take(one, 1)
        await take(two, 3)
        assert await client.publish(channel, "x") == 2  # one client, and its pattern
        assert [item["data"] for item in [*await take(one, 1), *await take(two, 2)]] == [b"x"] * 3
        await two.aclose()
        assert await client.publish(channel, "y") == 1
        assert [item["data"] for item in await take(one, 1)] == [b"y"]
        assert one.connection is not None
        await one.aclose()
        assert await client.ping()


async def test_closing_while_another_task_subscribes(world, channel):
    async with face.from_url(world.url, share_connections=True) as client:
        pubsub = client.pubsub()
        await pubsub.connect()
        subscribing = asyncio.create_task(pubsub.subscribe(channel))
        await asyncio.sleep(0)  # it begins
        await pubsub.aclose()
        with pytest.raises(face.RedisError, match="closed"):
            await asyncio.wait_for(subscribing, 1)
        assert not pubsub.subscribed


async def test_closing_the_client_closes_its_pubsubs(client, channel):
    pubsub = client.pubsub()
    await pubsub.subscribe(channel)
    await client.aclose()
    assert not pubsub.subscribed
    assert await client.pubsub_numsub(channel) == [(channel.encode(), 0)]


async def test_many_pubsubs_are_warned_of(client, channel, monkeypatch, caplog):
    monkeypatch.setattr(pubsub_module, "MANY", 2)
    with caplog.at_level(logging.WARNING, "nearcast.asyncio"):
        for _ in range(3):
            await client.pubsub().connect()
    assert [record.getMessage().startswith("2 PubSubs") for record in caplog.records] == [True]


async def test_a_pong_is_text_if_answers_are(world):
    async with face.from_url(world.url, decode_responses=True) as client:
        pubsub = client.pubsub()
        await pubsub.ping()
        await pubsub.ping("hello")
        assert [(item["type"], item["data"]) for item in await take(pubsub, 2)] == [("pong", ""), ("pong", "hello")]


async def test_a_server_without_an_agent(world):
    client = face.from_url(world.plain.url, socket_connect_timeout=0.2)
    with pytest.raises(face.ConnectionError, match="start `nearcast agent`"):
        await client.publish("c", "x")


async def test_a_wrong_password(world):
    async with await LocalServer.start(name="locked", extra=["--requirepass", "right"]) as server:
        client = face.Redis(host="127.0.0.1", port=server.port, password="wrong")
        with pytest.raises(face.AuthenticationError, match="WRONGPASS"):
            await client.ping()


async def test_a_call_takes_no_longer_than_socket_timeout(world, channel):
    async with face.from_url(world.url, socket_timeout=0.001) as client:
        await client.pubsub().connect()
        with pytest.raises(face.TimeoutError, match=r"not attached within 0.001 s: .* more topics wait"):
            await client.pubsub().subscribe(*(f"{channel}{number}" for number in range(200)))
