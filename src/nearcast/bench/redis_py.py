"""redis-py's asyncio client with hiredis, used as its documentation shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from nearcast.bench.burst import PAYLOAD, Burst
from nearcast.errors import UsageError

TOPIC = "bench-redis-py"
PIPELINE = 100


class RedisPyPeer:
    def __init__(self, client: Any, pubsub: Any) -> None:
        self.received = 0
        self.on_arrival: Callable[[], None] | None = None
        self._client = client
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
        await pubsub.subscribe(TOPIC)
        return cls(client, pubsub)

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._pubsub.aclose()
        await self._client.aclose()

    async def publish(self) -> object:
        return await self._client.publish(TOPIC, PAYLOAD)

    async def send_by_pipeline(self, burst: Burst) -> None:
        pipeline = self._client.pipeline(transaction=False)
        while count := burst.take(PIPELINE):
            for _ in range(count):
                pipeline.publish(TOPIC, PAYLOAD)
            await pipeline.execute()
            await burst.room()

    async def _listen(self) -> None:
        async for _ in self._pubsub.listen():
            self.received += 1
            if self.on_arrival is not None:
                self.on_arrival()
