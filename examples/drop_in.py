"""A program written for redis.asyncio: only one import and the address have changed."""

from __future__ import annotations

import asyncio
from typing import Any

from nearcast.asyncio import Redis
from nearcast.testing import LocalCluster

SAID = (("news", "hello"), ("sport", "2:1"), ("weather.paris", "rain"), ("news", "goodbye"))


async def reader(redis: Redis, ready: asyncio.Event) -> None:
    async with redis.pubsub(ignore_subscribe_messages=True) as pubsub:
        await pubsub.subscribe("news", "sport")
        await pubsub.psubscribe("weather.*")
        ready.set()
        missing = len(SAID)
        async for message in pubsub.listen():
            show(message)
            missing -= 1
            if not missing:
                break
        print(f"gaps: {pubsub.gaps}, interruptions: {pubsub.interruptions}")  # redis.asyncio has no such counters


def show(message: dict[str, Any]) -> None:
    print(f"{message['type']:8} {message['pattern'] or '-':10} {message['channel']:14} {message['data']}")


async def main() -> None:
    async with (
        await LocalCluster.start(brokers=2) as cluster,
        Redis.from_url(cluster.urls["b1"], decode_responses=True) as redis,
    ):
        ready = asyncio.Event()
        reading = asyncio.create_task(reader(redis, ready))
        await ready.wait()
        for channel, text in SAID:
            receivers = await redis.publish(channel, text)
            assert receivers == 1
        await reading


asyncio.run(main())
