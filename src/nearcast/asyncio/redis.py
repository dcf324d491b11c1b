"""Redis, as in redis.asyncio, for its publish/subscribe half."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NoReturn, Self

from nearcast.asyncio.encoder import Decoded, Encodable, Encoder
from nearcast.asyncio.exceptions import within
from nearcast.asyncio.feed import check_connected
from nearcast.asyncio.options import CALL_TIMEOUT_S, Options, check_others, url_keywords
from nearcast.asyncio.pubsub import OnEvent, PubSub
from nearcast.asyncio.survey import Survey
from nearcast.core.greeting import Credentials
from nearcast.core.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.errors import UsageError
from nearcast.runtime.client import BOOTSTRAP_S, Client
from nearcast.runtime.connection import DEFAULT_PORT, Address
from nearcast.runtime.driver import Resolve


class Redis:
    """A client of the cluster to which the named server belongs; any one will do. Connects when first used.

    `share_connections`: its PubSubs use its connections instead of their own, and count as one subscriber; for programs
    with hundreds of them. `timing`, `limits` and `resolve` are those of `nearcast.connect`. What becomes of redis-py's
    other keywords is said in `nearcast.asyncio.options`.
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
        share_connections: bool = False,
        timing: Timing = DEFAULT_TIMING,
        limits: Limits = DEFAULT_LIMITS,
        resolve: Resolve | None = None,
        **others: Any,
    ) -> None:
        check_others(others)
        self._options = Options(
            url=Address(host, int(port), tls=ssl, path=unix_socket_path or "").url,
            credentials=Credentials(username or "", password or ""),
            encoder=Encoder(encoding, encoding_errors, decode_responses),
            call_timeout_s=socket_timeout,
            connect_timeout_s=socket_connect_timeout or BOOTSTRAP_S,
            timing=timing,
            limits=limits,
            resolve=resolve,
        )
        self._client: Client | None = None
        self._survey: Survey | None = None
        self._pubsubs: set[PubSub] = set()
        self._opening = asyncio.Lock()
        self._users = 0
        self._share = share_connections

    @classmethod
    def from_url(cls, url: str, **keywords: Any) -> Self:
        """`redis://user:password@host:port`, `rediss://...` for TLS, `unix:///path`; what the URL says wins."""
        return cls(**{**keywords, **url_keywords(url)})

    # --- life

    async def initialize(self) -> Self:
        """For programs that call it; the connection is made when first needed."""
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
        """Close all connections, those of its PubSubs too. The object can be used again."""
        for pubsub in list(self._pubsubs):
            await pubsub.aclose()
        async with self._opening:
            client, survey, self._client, self._survey = self._client, self._survey, None, None
            if survey is not None:
                await survey.close()
            if client is not None:
                await client.close()

    close = aclose

    async def _connected(self) -> Client:
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self._options.client()
        return self._client

    # --- commands

    async def ping(self) -> bool:
        client = await self._connected()
        async with within(self._options.call_timeout_s, "ping"):
            await check_connected(client)
        return True

    async def publish(self, channel: Encodable, message: Encodable) -> int:
        """Returns how many subscribers it reached, when it is acknowledged by the broker that carries the channel."""
        encode = self._options.encoder.encode
        topic, payload = encode(channel), encode(message)
        client = await self._connected()
        async with within(self._options.call_timeout_s, "publish"):
            return await client.publish(topic, payload)

    def pubsub(
        self, *, ignore_subscribe_messages: bool = False, on_event: OnEvent | None = None, **others: Any
    ) -> PubSub:
        """A new PubSub. `on_event` is called with each Gap and Interrupted, at its place among the messages."""
        for name, value in others.items():
            if name != "shard_hint" or value is not None:
                raise UsageError(f"pubsub() has no {name}=: use ignore_subscribe_messages= and on_event=")
        return PubSub(
            self._options,
            self._pubsubs,
            shared=self._connected if self._share else None,
            ignore_subscribe_messages=ignore_subscribe_messages,
            on_event=on_event,
        )

    async def pubsub_channels(self, pattern: Encodable = "*") -> list[Decoded]:
        """Channels with at least one subscriber, on any broker."""
        survey = await self._asked()
        return [
            self._options.encoder.decode(name) for name in await survey.channels(self._options.encoder.encode(pattern))
        ]

    async def pubsub_numsub(self, *args: Encodable) -> list[tuple[Decoded, int]]:
        """Subscribers of each channel; `nearcast.asyncio.survey` says how they are counted."""
        encoder = self._options.encoder
        topics = [encoder.encode(channel) for channel in args]
        survey = await self._asked()
        counts = await survey.numsub(topics)
        return [(encoder.decode(topic), count) for topic, count in zip(topics, counts, strict=True)]

    async def pubsub_numpat(self) -> int:
        """Patterns with at least one subscriber."""
        survey = await self._asked()
        return await survey.numpat()

    async def _asked(self) -> Survey:
        client = await self._connected()
        if self._survey is None:
            self._survey = Survey(client, self._options)
        return self._survey

    if not TYPE_CHECKING:  # a type checker must go on finding names that are not here

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"nearcast.asyncio.Redis has no {name!r}: it does publish and subscribe; "
                "use redis.asyncio beside it for everything else"
            )


def from_url(url: str, **keywords: Any) -> Redis:
    """The same as `Redis.from_url`."""
    return Redis.from_url(url, **keywords)
