"""A drop-in for the publish/subscribe half of `redis.asyncio`: change the import and the address.

from nearcast.asyncio import Redis       # was: from redis.asyncio import Redis

async with Redis(host="any.server.of.the.cluster") as redis, redis.pubsub() as pubsub:
    await pubsub.subscribe("news")
    await redis.publish("news", "hello")
    async for message in pubsub.listen():
        ...
"""

from nearcast.asyncio.client import Redis, StrictRedis, from_url
from nearcast.asyncio.connection import (
    BlockingConnectionPool,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from nearcast.asyncio.options import (
    AuthenticationError,
    ConnectionError,
    DataError,
    PubSubError,
    RedisError,
    ResponseError,
    TimeoutError,
)
from nearcast.asyncio.pubsub import PubSub, Subscription

__all__ = [
    "AuthenticationError",
    "BlockingConnectionPool",
    "Connection",
    "ConnectionError",
    "ConnectionPool",
    "DataError",
    "PubSub",
    "PubSubError",
    "Redis",
    "RedisError",
    "ResponseError",
    "SSLConnection",
    "StrictRedis",
    "Subscription",
    "TimeoutError",
    "UnixDomainSocketConnection",
    "from_url",
]
