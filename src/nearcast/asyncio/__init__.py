"""A drop-in for the publish/subscribe half of `redis.asyncio`: change the import and the address.

from nearcast.asyncio import Redis       # was: from redis.asyncio import Redis

async with Redis(host="any.server.of.the.cluster") as redis, redis.pubsub() as pubsub:
    await pubsub.subscribe("news")
    await redis.publish("news", "hello")
    async for message in pubsub.listen():
        ...
"""

from nearcast.asyncio.exceptions import (
    AuthenticationError,
    ConnectionError,
    DataError,
    PubSubError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from nearcast.asyncio.handlers import Subscription
from nearcast.asyncio.pubsub import PubSub
from nearcast.asyncio.redis import Redis, from_url

StrictRedis = Redis

__all__ = [
    "AuthenticationError",
    "ConnectionError",
    "DataError",
    "PubSub",
    "PubSubError",
    "Redis",
    "RedisError",
    "ResponseError",
    "StrictRedis",
    "Subscription",
    "TimeoutError",
    "from_url",
]
