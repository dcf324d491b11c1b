"""Redis, as in redis.asyncio.client, for its publish/subscribe half."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Self

from nearcast.asyncio.connection import ConnectionPool, adopted
from nearcast.asyncio.intake import check_connected
from nearcast.asyncio.options import (
    CALL_TIMEOUT_S,
    Decoded,
    Encodable,
    Encoder,
    Options,
    raises_as_redis_py,
    url_keywords,
)
from nearcast.asyncio.pubsub import OnEvent, PubSub
from nearcast.core.model.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.errors import UsageError
from nearcast.runtime.client import BOOTSTRAP_S
from nearcast.runtime.driver import DEFAULT_PORT, Resolve

__all__ = ["PubSub", "Redis", "StrictRedis", "from_url"]


class Redis:
    """A client of the cluster that the given server belongs to; any server is enough. Connects when first used.

    `connection_pool`: use its connections and its keywords, and none of those given here; of a redis-py pool only the
    settings are used. `share_connections`: PubSubs use the connections of the pool instead of their own, and count as
    one subscriber; for programs with hundreds of them. `timing`, `limits` and `resolve` are those of
    `nearcast.connect`. `nearcast.asyncio.options` says how redis-py's other keywords are handled.
    """

    def __init__(
        self,
        *,
        host: str = "localhost",
        port: int = DEFAULT_PORT,
        unix_socket_path: str | None = None,
        username: str | None = None,
        password: str | None = None,
        ssl: bool = False,
        encoding: str = "utf-8",
        encoding_errors: str = "strict",
        decode_responses: bool = False,
        socket_timeout: float | None = CALL_TIMEOUT_S,
        socket_connect_timeout: float | None = BOOTSTRAP_S,
        connection_pool: Any = None,
        share_connections: bool = False,
        timing: Timing = DEFAULT_TIMING,
        limits: Limits = DEFAULT_LIMITS,
        resolve: Resolve | None = None,
        **others: Any,
    ) -> None:
        given = connection_pool
        self.auto_close_connection_pool = not isinstance(given, ConnectionPool)  # a given pool is closed by its owner
        if given is None:
            given = ConnectionPool(
                host=host,
                port=port,
                unix_socket_path=unix_socket_path,
                username=username,
                password=password,
                ssl=ssl,
                encoding=encoding,
                encoding_errors=encoding_errors,
                decode_responses=decode_responses,
                socket_timeout=socket_timeout,
                socket_connect_timeout=socket_connect_timeout,
                timing=timing,
                limits=limits,
                resolve=resolve,
                **others,
            )
        self.connection_pool = given if isinstance(given, ConnectionPool) else adopted(given)
        self._users = 0
        self._share = share_connections

    @classmethod
    def from_url(cls, url: str, **keywords: Any) -> Self:
        """`redis://user:password@host:port`, `rediss://...` for TLS, `unix:///path`; the URL overrides keywords."""
        return cls(**{**keywords, **url_keywords(url)})

    @classmethod
    def from_pool(cls, connection_pool: Any) -> Self:
        """Use this pool, and close it with the Redis object."""
        redis = cls(connection_pool=connection_pool)
        redis.auto_close_connection_pool = True
        return redis

    @property
    def _options(self) -> Options:
        return self.connection_pool.options

    def get_encoder(self) -> Encoder:
        return self._options.encoder

    # --- life

    async def initialize(self) -> Self:
        """Does nothing; for programs that call it. The connection is made when it is first needed."""
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.initialize().__await__()

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._users -= 1
        if not self._users:
            await self.aclose()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections, including those of PubSubs, unless a pool was given. The object can be used again."""
        if self.auto_close_connection_pool if close_connection_pool is None else close_connection_pool:
            await self.connection_pool.aclose()

    close = aclose

    # --- commands

    @raises_as_redis_py
    async def ping(self) -> bool:
        client = await self.connection_pool.client()
        await check_connected(client, self._options.call_timeout_s)
        return True

    @raises_as_redis_py
    async def publish(self, channel: Encodable, message: Encodable) -> int:
        """Returns when the broker that carries the channel has acknowledged it: how many subscribers it reached."""
        options = self._options
        topic, payload = options.encoder.encode(channel), options.encoder.encode(message)
        client = await self.connection_pool.client()
        return await client.publish(topic, payload, timeout_s=options.call_timeout_s)

    def pubsub(
        self, *, ignore_subscribe_messages: bool = False, on_event: OnEvent | None = None, **others: Any
    ) -> PubSub:
        """A new PubSub. `on_event` is called with each Gap and Interrupted, at its place among the messages."""
        for name, value in others.items():
            if name != "shard_hint" or value is not None:
                raise UsageError(f"pubsub() has no {name}=: use ignore_subscribe_messages= and on_event=")
        return PubSub(
            self.connection_pool,
            share_connections=self._share,
            ignore_subscribe_messages=ignore_subscribe_messages,
            on_event=on_event,
        )

    @raises_as_redis_py
    async def pubsub_channels(self, pattern: Encodable = "*") -> list[Decoded]:
        """Channels with at least one subscriber, on any broker."""
        encoder = self._options.encoder
        survey = await self.connection_pool.survey()
        return [encoder.decode(name) for name in await survey.channels(encoder.encode(pattern))]

    @raises_as_redis_py
    async def pubsub_numsub(self, *args: Encodable) -> list[tuple[Decoded, int]]:
        """Subscribers of each channel; `nearcast.asyncio.connection` says how they are counted."""
        encoder = self._options.encoder
        topics = [encoder.encode(channel) for channel in args]
        survey = await self.connection_pool.survey()
        counts = await survey.numsub(topics)
        return [(encoder.decode(topic), count) for topic, count in zip(topics, counts, strict=True)]

    @raises_as_redis_py
    async def pubsub_numpat(self) -> int:
        """Patterns with at least one subscriber."""
        survey = await self.connection_pool.survey()
        return await survey.numpat()

    if not TYPE_CHECKING:  # a type checker must still report names that are not here

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"nearcast.asyncio.Redis has no {name!r}: it only does publish/subscribe; "
                "use redis.asyncio for everything else"
            )


StrictRedis = Redis


def from_url(url: str, **keywords: Any) -> Redis:
    """The same as `Redis.from_url`."""
    return Redis.from_url(url, **keywords)
