"""nearcast itself: one client that publishes and subscribes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from nearcast.bench.burst import PAYLOAD, Burst
from nearcast.core.message import Message
from nearcast.errors import ClusterError, PublishBufferFull
from nearcast.runtime.client import Client
from nearcast.runtime.subscription import Subscription

TOPIC = "bench-nearcast"
CHUNK = 64  # messages between two looks at the clock


class OwnPeer:
    def __init__(self, client: Client, subscription: Subscription) -> None:
        self.received = 0
        self.on_arrival: Callable[[], None] | None = None
        self._client = client
        self._subscription = subscription
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, url: str) -> Self:
        client = await Client(url)
        return cls(client, await client.subscribe(TOPIC))

    async def close(self) -> None:
        await self._client.close()
        await self._listening

    async def publish(self) -> object:
        return await self._client.publish(TOPIC, PAYLOAD)

    async def send_nowait(self, burst: Burst) -> None:
        publish = self._client.publish_nowait
        while count := burst.take(CHUNK):
            while count:
                try:
                    publish(TOPIC, PAYLOAD)
                    count -= 1
                except PublishBufferFull:
                    await self._client.drain()
        await self._client.flush()

    async def _listen(self) -> None:
        async for event in self._subscription:
            if type(event) is not Message:
                raise ClusterError(f"the benchmark lost messages: {event}")
            self.received += 1
            if self.on_arrival is not None:
                self.on_arrival()
