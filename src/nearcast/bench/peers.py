"""The ways to publish that are compared, and the burst that measures one of them."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Any, Protocol, Self, cast

import hiredis

from nearcast.core.model.message import Message
from nearcast.errors import ClusterError, PublishBufferFull, Unavailable, UsageError
from nearcast.runtime.client import Client
from nearcast.runtime.subscription import Subscription

# --- the burst


PAYLOAD = b"x" * 200
TASKS = 64  # concurrent publishers that await each message
WINDOW = 4000  # messages in flight at most: nearcast's limit per topic, used for all sides
LOST_S = 10.0  # a message not received after this long is lost
LOOK_S = 0.0005  # how often we check whether everything has arrived; 0.1 % of a burst of half a second


class Receiver(Protocol):
    received: int  # messages its subscriber has got so far


class Peer(Receiver, Protocol):
    """A library, connected to the server as publisher and as subscriber of one topic, in this process."""

    async def publish(self) -> object: ...


@dataclass(frozen=True)
class Limit:
    """When a burst ends: at whichever limit is reached first."""

    seconds: float = 0.5
    messages: float = math.inf


class Burst:
    """One measurement, from the first message sent to the last one received: what was sent, and what may still be."""

    def __init__(self, receiver: Receiver, limit: Limit) -> None:
        self.sent = 0
        self._receiver = receiver
        self._received_before = receiver.received
        self._messages = limit.messages
        self._begun_s = perf_counter()
        self._until_s = self._begun_s + limit.seconds

    def take(self, wanted: int) -> int:
        """How many of the wanted messages to send now; 0 when the burst is over."""
        if perf_counter() >= self._until_s:
            return 0
        taken = int(min(wanted, self._messages - self.sent))
        self.sent += taken
        return taken

    @property
    def in_flight(self) -> int:
        return self.sent - (self._receiver.received - self._received_before)

    async def room(self) -> None:
        """Let the subscriber catch up, if the library itself does not do this."""
        while True:
            if self.in_flight <= WINDOW:
                return
            await asyncio.sleep(0)

    async def finish(self) -> float:
        """Wait for the last message; returns messages per second."""
        lost_at_s = perf_counter() + LOST_S
        while True:
            if self.in_flight <= 0:
                return self.sent / (perf_counter() - self._begun_s)
            if perf_counter() > lost_at_s:
                raise Unavailable(f"{self.in_flight} of {self.sent} messages did not arrive: run the benchmark again")
            await asyncio.sleep(LOOK_S)


Send = Callable[[Burst], Awaitable[None]]


async def rate_of(receiver: Receiver, send: Send, limit: Limit) -> float:
    """Messages per second of one burst."""
    gc.collect()  # no side pays for the garbage of the one before
    burst = Burst(receiver, limit)
    await send(burst)
    return await burst.finish()


def by_tasks(peer: Peer) -> Send:
    """Many tasks, each awaiting its message before it sends the next."""

    async def worker(burst: Burst) -> None:
        while burst.take(1):
            await peer.publish()

    async def send(burst: Burst) -> None:
        await asyncio.gather(*(worker(burst) for _ in range(TASKS)))

    return send


# --- the peers


OWN_TOPIC = "bench-nearcast"
CHUNK = 64  # messages between two looks at the clock


class OwnPeer:
    """nearcast itself: one client that publishes to some topics, and subscribes to them."""

    def __init__(self, client: Client, subscriptions: Sequence[Subscription], topics: Sequence[str]) -> None:
        self.received = 0
        self.on_arrival: Callable[[], None] | None = None
        self._client = client
        self._topics = topics
        self._listening = [asyncio.create_task(self._listen(subscription)) for subscription in subscriptions]

    @classmethod
    async def open(cls, url: str, *topics: str) -> Self:
        client, topics = await Client(url), topics or (OWN_TOPIC,)
        return cls(client, [await client.subscribe(topic) for topic in topics], topics)

    async def close(self) -> None:
        await self._client.close()
        await asyncio.gather(*self._listening)

    async def publish(self) -> object:
        return await self._client.publish(self._topics[0], PAYLOAD)

    async def send_nowait(self, burst: Burst) -> None:
        """To the first topic."""
        publish, topic = self._client.publish_nowait, self._topics[0]
        while count := burst.take(CHUNK):
            while count:
                try:
                    publish(topic, PAYLOAD)
                    count -= 1
                except PublishBufferFull:
                    await self._client.drain()
        await self._client.flush()

    async def send_in_turn(self, burst: Burst) -> None:
        """To all topics. The window is that of each topic: together they would fill the server's output buffer."""
        publish, topics = self._client.publish_nowait, cycle(self._topics)
        while count := burst.take(CHUNK):
            for topic in islice(topics, count):
                publish(topic, PAYLOAD)
            if burst.in_flight > WINDOW:
                await burst.room()
        await self._client.flush()

    async def _listen(self, subscription: Subscription) -> None:
        async for event in subscription:
            if type(event) is not Message:
                raise ClusterError(f"the benchmark lost messages: {event}")
            self.received += 1
            if self.on_arrival is not None:
                self.on_arrival()


RAW_TOPIC = b"bench-raw"
BATCH = 500
COMMAND = b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(RAW_TOPIC), RAW_TOPIC, len(PAYLOAD), PAYLOAD)


class RawPeer(asyncio.Protocol):
    """The limit: a bare RESP loop that writes prebuilt commands, parses with hiredis and counts."""

    def __init__(self) -> None:
        self.received = 0
        self._reader = hiredis.Reader()
        self._room = asyncio.Event()
        self._attached = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        _, peer = await asyncio.get_running_loop().create_connection(cls, host, port)
        await peer._attached
        return peer

    async def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(b"HELLO 3\r\nSUBSCRIBE %b\r\n" % RAW_TOPIC)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        next_reply = reader.gets
        while (reply := next_reply()) is not False:
            if type(reply) is hiredis.PushNotification:
                if reply[0] == b"message":
                    self.received += 1
                elif not self._attached.done():
                    self._attached.set_result(None)
        self._room.set()

    async def send(self, burst: Burst) -> None:
        batch = memoryview(COMMAND * BATCH)
        while count := burst.take(BATCH):
            self._transport.write(batch[: count * len(COMMAND)])
            while burst.in_flight > WINDOW:
                self._room.clear()
                await self._room.wait()


REDIS_PY_TOPIC = "bench-redis-py"
PIPELINE = 100


class RedisPyPeer:
    """redis-py's asyncio client with hiredis, used as its documentation shows."""

    def __init__(self, client: Any, pubsub: Any) -> None:
        self.received = 0
        self.on_arrival: Callable[[], None] | None = None
        self.client = client
        self._pubsub = pubsub
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, url: str) -> Self:
        try:
            from redis.asyncio import Redis
        except ImportError:
            raise UsageError("the benchmark compares with redis-py: pip install redis") from None
        client = Redis.from_url(url)
        pubsub = client.pubsub(ignore_subscribe_messages=True)
        await pubsub.subscribe(REDIS_PY_TOPIC)
        return cls(client, pubsub)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._pubsub.aclose()
        await self.client.aclose()

    async def publish(self) -> object:
        return await self.client.publish(REDIS_PY_TOPIC, PAYLOAD)

    async def send_by_pipeline(self, burst: Burst) -> None:
        pipeline = self.client.pipeline(transaction=False)
        while count := burst.take(PIPELINE):
            for _ in range(count):
                pipeline.publish(REDIS_PY_TOPIC, PAYLOAD)
            await pipeline.execute()
            await burst.room()

    async def _listen(self) -> None:
        async for _ in self._pubsub.listen():
            self.received += 1
            if self.on_arrival is not None:
                self.on_arrival()


GLIDE_TOPIC = "bench-glide"


class GlidePeer:
    """valkey-glide, if it is installed: its own thread writes and reads, and Python gets a callback per message."""

    def __init__(self) -> None:
        self.received = 0
        self._publisher: Any = None
        self._subscriber: Any = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self | None:
        """None if the library is not installed."""
        try:
            from glide import GlideClient, GlideClientConfiguration, NodeAddress
        except ImportError:
            return None
        peer = cls()
        exact = GlideClientConfiguration.PubSubChannelModes.Exact
        subscription = GlideClientConfiguration.PubSubSubscriptions({exact: {GLIDE_TOPIC}}, peer._heard, None)
        servers = [NodeAddress(host, port)]
        peer._publisher = await GlideClient.create(GlideClientConfiguration(servers))
        peer._subscriber = await GlideClient.create(
            GlideClientConfiguration(servers, pubsub_subscriptions=subscription)
        )
        return peer

    async def close(self) -> None:
        await self._publisher.close()
        await self._subscriber.close()

    async def publish(self) -> object:
        return await self._publisher.publish(PAYLOAD, GLIDE_TOPIC)

    def _heard(self, message: object, context: object) -> None:
        self.received += 1
