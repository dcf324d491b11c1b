"""Plain topics through gateways, on a real cluster: one subscription per topic and gateway, moves without a gap."""

from __future__ import annotations

import asyncio

import pytest
from gateway_world import take

import nearcast
from nearcast.core.wire.gateway import TopicGap, TopicMessage, unpacked
from nearcast.errors import Refused
from nearcast.gateway import topics
from nearcast.gateway.server import GatewayServer, listen
from nearcast.gateway.service import Gateway
from nearcast.gateway.settings import GatewaySettings
from nearcast.subscriber.client import Subscriber
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

MESSAGES = 300
ALL_TOPICS = GatewaySettings(allow=("publish:*", "subscribe:*"))


def payload(event: object) -> bytes:
    assert isinstance(event, TopicMessage), event
    return unpacked(event.payload, event.encoding)


async def start_gateway(
    cluster: LocalCluster, broker: str, settings: GatewaySettings = ALL_TOPICS
) -> tuple[Gateway, GatewayServer]:
    listening, url = listen("127.0.0.1:0")
    gateway = Gateway(broker, url, cluster.urls[broker], cluster.store_url, settings=settings)
    server = GatewayServer(gateway, listening)
    await server.start()
    return gateway, server


def test_browsers_and_programs_meet_on_topics() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=2) as cluster:
            gateways = [await start_gateway(cluster, broker) for broker in ("b1", "b2")]
            (first, _), (second, _) = gateways
            try:
                async with (
                    Subscriber.connect(first.url, "ann") as ann,
                    Subscriber.connect(first.url, "bob", long_poll=True) as bob,
                    Subscriber.connect(second.url, "eve") as eve,
                    nearcast.connect(cluster.urls["b2"]) as client,
                ):
                    for subscriber in (ann, bob, eve):
                        await subscriber.subscribe_topic("news")
                    assert len(first.topics._topics) == 1
                    subscription = await client.subscribe("news")
                    await ann.publish("news", "héllo")
                    await client.publish("news", b"\xff\x00")
                    message = await subscription.get()
                    assert isinstance(message, nearcast.Message)
                    assert (message.payload, message.user) == ("héllo".encode(), "ann")
                    for subscriber in (ann, bob, eve):
                        events = await take(subscriber, 2)
                        assert {payload(event): event.user for event in events if isinstance(event, TopicMessage)} == {
                            "héllo".encode(): "ann",
                            b"\xff\x00": "",
                        }
                    for topic in ("nc:c:news", "", "x" * 600):
                        with pytest.raises(Refused, match="topic"):
                            await ann.subscribe_topic(topic)
                        with pytest.raises(Refused, match="topic"):
                            await ann.publish(topic, "x")
                    await ann.unsubscribe_topic("news")
                    await bob.close()
                    await until(lambda: not first.topics._topics)
                    await _move_while_publishing(eve, client, first, second)
            finally:
                for _, server in gateways:
                    await server.stop()

    asyncio.run(scenario())


async def _move_while_publishing(eve: Subscriber, client: nearcast.Client, first: Gateway, second: Gateway) -> None:
    async def publish() -> None:
        for number in range(MESSAGES):
            await client.publish("news", b"%d" % number)
            await asyncio.sleep(0.002)  # paces it, so that the moves are made meanwhile

    publishing = asyncio.create_task(publish())
    for move in range(4):
        here, there = (second, first) if move % 2 == 0 else (first, second)
        await until(lambda here=here: "eve" in here.online())  # type: ignore[misc]
        here.order_move("eve", there.broker, there.url)
        await until(lambda move=move: eve.moves == move + 1)  # type: ignore[misc]
    events = await take(eve, MESSAGES)
    await publishing
    assert not any(isinstance(event, TopicGap) for event in events)
    assert [payload(event) for event in events] == [b"%d" % number for number in range(MESSAGES)]


def test_a_lost_connection_is_told_as_a_gap_of_its_topics() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1) as cluster:
            gateway, server = await start_gateway(cluster, "b1")
            async with Subscriber.connect(gateway.url, "ann") as ann:
                await ann.subscribe_topic("news")
                await server.stop()
                listening, _ = listen(gateway.url.removeprefix("http://"))
                again = Gateway("b1", gateway.url, cluster.urls["b1"], cluster.store_url, settings=ALL_TOPICS)
                server = GatewayServer(again, listening)
                await server.start()
                (gap,) = await take(ann, 1)
                assert isinstance(gap, TopicGap)
                assert (gap.topic, gap.count) == ("news", None)
                await ann.publish("news", "back")
                assert payload((await take(ann, 1))[0]) == b"back"
            await server.stop()

    asyncio.run(scenario())


def test_users_have_the_topics_they_were_given_and_a_limit_of_new_ones() -> None:
    allow = ("publish:news", "publish:chat.{user}.*", "subscribe:chat.*")
    settings = GatewaySettings(allow=allow, new_topics_per_minute=3)

    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1) as cluster:
            gateway, server = await start_gateway(cluster, "b1", settings)
            async with Subscriber.connect(gateway.url, "ann") as ann, Subscriber.connect(gateway.url, "bob") as bob:
                await ann.publish("chat.ann.1", "mine")
                await bob.subscribe_topic("chat.ann.1")
                for refused in ("chat.bob.1", "other", "new"):
                    with pytest.raises(Refused, match="no right to publish to topic"):
                        await ann.publish(refused, "not mine")
                with pytest.raises(Refused, match="no right to subscribe to topic 'news'"):
                    await ann.subscribe_topic("news")
                for number in (2, 3):
                    await ann.publish(f"chat.ann.{number}", "new")
                with pytest.raises(Refused, match="3 new topics in a minute"):
                    await ann.publish("chat.ann.4", "too many")
                await ann.publish("chat.ann.1", "known")
                await bob.publish("chat.bob.1", "of another")
            await server.stop()

    asyncio.run(scenario())


def test_a_message_that_cannot_be_handed_out_is_a_gap_and_those_behind_it_come(monkeypatch: pytest.MonkeyPatch) -> None:
    original, raised = topics._frame, []

    def surprise(event: nearcast.Event) -> bytes | None:
        if not raised:
            raised.append(event)
            raise LookupError("a surprise")
        return original(event)

    async def scenario() -> None:
        async with await LocalCluster.start(brokers=1) as cluster:
            gateway, server = await start_gateway(cluster, "b1")
            try:
                async with (
                    Subscriber.connect(gateway.url, "ann") as ann,
                    nearcast.connect(cluster.urls["b1"]) as client,
                ):
                    await ann.subscribe_topic("news")
                    monkeypatch.setattr(topics, "_frame", surprise)
                    for text in (b"one", b"two"):
                        await client.publish("news", text)
                    gap, message = await take(ann, 2)
                    assert isinstance(gap, TopicGap)
                    assert payload(message) == b"two"
                    assert "a surprise" in gateway.health["problem"]
            finally:
                await server.stop()

    asyncio.run(scenario())
