"""Connection pools as programs of redis-py know them: what Redis objects share.

In redis-py a pool lends connections. Here it keeps what it was told, one client of the cluster for all Redis objects
that were given it, and the PubSubs in use, each with a client of its own. `Redis` without a pool makes one for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from nearcast.asyncio.encoder import Encoder
from nearcast.asyncio.options import IGNORED, KEPT, REFUSED, Options, options_of, url_keywords
from nearcast.asyncio.survey import Survey
from nearcast.errors import UsageError
from nearcast.runtime.client import Client

if TYPE_CHECKING:
    from nearcast.asyncio.pubsub import PubSub


class Connection:
    """A name to give as `connection_class`: over TCP. Connections themselves are made by the library."""


class SSLConnection(Connection):
    """The same: over TLS."""


class UnixDomainSocketConnection(Connection):
    """The same: over a Unix socket, named by `path=`."""


class ConnectionPool:
    """Keywords as of `Redis`; `connection_class` may be one of this module or redis-py's."""

    def __init__(
        self, connection_class: type = Connection, max_connections: int | None = None, **keywords: Any
    ) -> None:
        self.connection_class = connection_class
        self.connection_kwargs = keywords
        self.max_connections = max_connections
        self.options: Options = options_of(_with_class(connection_class, keywords))
        self.pubsubs: set[PubSub] = set()
        self._client: Client | None = None
        self._survey: Survey | None = None
        self._opening = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str, **keywords: Any) -> Self:
        """`redis://user:password@host:port`, `rediss://...` for TLS, `unix:///path`; what the URL says wins."""
        return cls(**{**keywords, **url_keywords(url)})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, those of PubSubs too. The pool can be used again."""
        for pubsub in list(self.pubsubs):
            await pubsub.aclose()
        async with self._opening:
            client, survey, self._client, self._survey = self._client, self._survey, None, None
            if survey is not None:
                await survey.close()
            if client is not None:
                await client.close()

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """As redis-py names it. One client serves all Redis objects, so there are no connections out of use."""
        await self.aclose()

    def get_encoder(self) -> Encoder:
        return self.options.encoder

    async def client(self) -> Client:
        """The client of the cluster that Redis objects share; connects when first used."""
        if self._client is None:
            async with self._opening:
                if self._client is None:
                    self._client = await self.options.client()
        return self._client

    async def survey(self) -> Survey:
        client = await self.client()
        if self._survey is None:
            self._survey = Survey(client, self.options)
        return self._survey

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"nearcast.asyncio.ConnectionPool has no {name!r}: it lends no connections; "
                "give it to Redis(connection_pool=...)"
            )


class BlockingConnectionPool(ConnectionPool):
    """The same: nobody ever waits for a connection. `timeout` is accepted."""

    def __init__(
        self,
        max_connections: int | None = None,
        timeout: float | None = None,
        connection_class: type = Connection,
        **keywords: Any,
    ) -> None:
        super().__init__(connection_class, max_connections, **keywords)
        self.timeout = timeout


def _with_class(connection_class: type, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of a pool as those of Redis, with what its class of connections says, be it ours or redis-py's."""
    told = dict(keywords)
    names = {base.__name__ for base in connection_class.__mro__}
    if "UnixDomainSocketConnection" in names:
        told["unix_socket_path"] = told.pop("path", None) or told.get("unix_socket_path")
    elif "SSLConnection" in names:
        told["ssl"] = True
    return told


def adopted(pool: Any) -> ConnectionPool:
    """A pool of redis-py's as one of ours: the same server and options, connections of its own."""
    told = getattr(pool, "connection_kwargs", None)
    if not isinstance(told, dict):
        raise UsageError(f"connection_pool must be a ConnectionPool, not {type(pool).__name__}: give one, or a URL")
    known = {
        name: value
        for name, value in told.items()
        if name in KEPT | IGNORED or name in REFUSED or name.startswith("ssl_") or name == "path"
    }
    return ConnectionPool(getattr(pool, "connection_class", Connection), **known)
