"""Connection pools as redis-py programs know them, and the survey that counts subscribers on all brokers.

In redis-py a pool lends connections. Here it keeps its settings, one client of the cluster for all Redis objects that
share it, and the PubSubs in use, each with its own client. `Redis` without a pool makes one for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from nearcast.asyncio.options import IGNORED, KEPT, REFUSED, Encoder, Options, options_of, url_keywords
from nearcast.core.model.names import FIRST_USES, RECORDS, RESERVED
from nearcast.core.model.placement import Mode, Record
from nearcast.core.wire.frames import read_record
from nearcast.core.wire.link import Reply, is_error
from nearcast.errors import ClusterError, ProtocolError, UsageError
from nearcast.runtime.client import Client
from nearcast.runtime.requester import Requester

if TYPE_CHECKING:
    from nearcast.asyncio.pubsub import PubSub


# --- the survey


class Survey:
    """Asks every broker who is subscribed, and combines the answers to what a single server would say.

    What is exact and what is not:

        channels   topics with a subscriber somewhere. One that was just left or moved may be listed for another half
                   second.
        numsub     depends on the topic's record. `single`: what its broker says. `all_subscribers`: every subscriber is
                   on every broker of the topic, so the largest number. `all_publishers`: every subscriber is on one
                   broker, so the sum. Subscribers of plain Redis clients are counted where they hear the topic, with
                   `all_subscribers` only if they are on the broker with the most.
        numpat     every pattern subscriber is on every broker, so the largest number.

    A broker that does not answer counts as empty; if none answers, the last error is raised.
    """

    def __init__(self, client: Client, options: Options) -> None:
        self._client = client
        self._options = options
        self._requesters: dict[str, Requester] = {}  # by URL

    async def close(self) -> None:
        requesters, self._requesters = self._requesters, {}
        for requester in requesters.values():
            await requester.close()

    async def channels(self, pattern: bytes) -> list[bytes]:
        found: set[bytes] = set()
        for names in (await self._ask_all("PUBSUB", "CHANNELS", pattern)).values():
            assert isinstance(names, list)
            found.update(names)
        return sorted(name for name in found if not name.startswith(RESERVED))

    async def numsub(self, topics: list[bytes]) -> list[int]:
        if not topics:
            return []
        counted, used, recorded = await asyncio.gather(
            self._ask_all("PUBSUB", "NUMSUB", *topics),
            self._ask_all("HMGET", FIRST_USES, *topics),
            self._ask_all("HMGET", RECORDS, *topics),  # asked after first uses, because records replace them
        )
        return [
            0
            if topic.startswith(RESERVED)
            else _subscribers(_at(counted, 2 * index + 1), _at(used, index), _at(recorded, index))
            for index, topic in enumerate(topics)
        ]

    async def numpat(self) -> int:
        counts = [count for count in (await self._ask_all("PUBSUB", "NUMPAT")).values() if isinstance(count, int)]
        return max(counts)

    async def _ask_all(self, *parts: bytes | str) -> dict[str, Reply]:
        """The answers of the brokers that answer, by broker."""
        brokers = self._client.brokers
        replies = await asyncio.gather(
            *(self._ask(info.url, *parts) for info in brokers.values()), return_exceptions=True
        )
        answers: dict[str, Reply] = {}
        problem: BaseException | None = None
        for broker, reply in zip(brokers, replies, strict=True):
            if isinstance(reply, ClusterError):
                problem = reply
            elif isinstance(reply, BaseException):
                raise reply
            else:
                answers[broker] = reply
        if not answers:
            raise problem or ClusterError("the cluster has no broker: start `nearcast agent` beside a server")
        return answers

    async def _ask(self, url: str, *parts: bytes | str) -> Reply:
        requester = self._requesters.get(url)
        if requester is None:
            resolve = self._options.resolve
            requester = Requester(self._options.with_credentials(resolve(url) if resolve else url))
            self._requesters[url] = requester
        reply = await requester.ask(*parts)
        if is_error(reply):
            raise ProtocolError(f"{url}: {reply}: let this user run {parts[0]!s} and read the keys nc:r and nc:first")
        return reply


def _at(answers: Mapping[str, Reply], index: int) -> dict[str, Reply]:
    """One column of the brokers' answers."""
    return {broker: answer[index] for broker, answer in answers.items() if isinstance(answer, list)}


def _subscribers(counts: Mapping[str, Reply], first_uses: Mapping[str, Reply], records: Mapping[str, Reply]) -> int:
    numbers = {broker: count for broker, count in counts.items() if isinstance(count, int)}
    read = [read_record(record) for record in records.values() if isinstance(record, bytes)]
    known = [record for record in read if isinstance(record, Record)]
    if not known:
        used = [broker for broker, first in first_uses.items() if first is not None]  # mostly one: the directory
        return sum(numbers.get(broker, 0) for broker in used or numbers)  # if none, only plain Redis clients use it
    placement = max(known, key=lambda record: record.version).placement
    there = [numbers.get(broker, 0) for broker in placement.brokers]
    return sum(there) if placement.mode is Mode.ALL_PUBLISHERS else max(there)


# --- pools


class Connection:
    """A value for `connection_class`: over TCP. The library makes the connections itself."""


class SSLConnection(Connection):
    """The same, over TLS."""


class UnixDomainSocketConnection(Connection):
    """The same, over the Unix socket named by `path=`."""


class ConnectionPool:
    """A pool. It takes the keywords of `Redis`; `connection_class` may be one of this module or redis-py's."""

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
        """`redis://user:password@host:port`, `rediss://...` for TLS, `unix:///path`; the URL overrides keywords."""
        return cls(**{**keywords, **url_keywords(url)})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections, including those of PubSubs. The pool can be used again."""
        for pubsub in list(self.pubsubs):
            await pubsub.aclose()
        async with self._opening:
            client, survey, self._client, self._survey = self._client, self._survey, None, None
            if survey is not None:
                await survey.close()
            if client is not None:
                await client.close()

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Named as in redis-py. One client serves all Redis objects, so there are no unused connections."""
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
    """The same, because no caller ever waits for a connection. `timeout` is accepted."""

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
    """The keywords of a pool as those of Redis, including what its connection class, ours or redis-py's, implies."""
    found = dict(keywords)
    names = {base.__name__ for base in connection_class.__mro__}
    if "UnixDomainSocketConnection" in names:
        found["unix_socket_path"] = found.pop("path", None) or found.get("unix_socket_path")
    elif "SSLConnection" in names:
        found["ssl"] = True
    return found


def adopted(pool: Any) -> ConnectionPool:
    """A redis-py pool as one of ours: the same server and options, with its own connections."""
    given = getattr(pool, "connection_kwargs", None)
    if not isinstance(given, dict):
        raise UsageError(f"connection_pool must be a ConnectionPool, not {type(pool).__name__}: give one, or a URL")
    known = {
        name: value
        for name, value in given.items()
        if name in KEPT | IGNORED or name in REFUSED or name.startswith("ssl_") or name == "path"
    }
    return ConnectionPool(getattr(pool, "connection_class", Connection), **known)
