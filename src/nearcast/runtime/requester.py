"""A requester asks one server and awaits the answer. It is for everything that is not on the message path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from nearcast.core.wire.backend import Credentials, LinkRefused, hello, refusal, unanswered
from nearcast.core.wire.link import Link, Reply, is_error
from nearcast.errors import ConnectFailed
from nearcast.runtime.driver import Address, Connection, open_connection, parse_url, unreachable

ANSWER_S = 5.0


class Requester:
    """Asks one server. It opens its connection when first needed, and again after it was lost."""

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        """`credentials` are used for a URL that carries none."""
        self._address: Address
        self._credentials: Credentials
        self._address, self._credentials = parse_url(url)
        if credentials is not None and not self._credentials.password:
            self._credentials = credentials
        self._link: Link | None = None
        self._connection: Connection | None = None
        self._greeted = False
        self._waiting: set[asyncio.Future[Reply]] = set()
        self._opening = asyncio.Lock()
        self._listeners: dict[bytes, Callable[[bytes], None]] = {}

    async def ask(self, *parts: bytes | str | int) -> Reply:
        """The server's answer. A server's error is returned; a lost connection raises ConnectFailed."""
        link = await self._open()
        return await self._send(link, *parts)

    async def listen(self, channel: bytes, listener: Callable[[bytes], None]) -> None:
        """Call the listener with each message of a channel, on this connection and on those opened after it."""
        link = await self._open()
        self._listeners[channel] = listener
        self._hear(link, channel)
        await self._send(link, "PING")

    def _hear(self, link: Link, channel: bytes) -> None:
        listener = self._listeners[channel]
        link.control[channel] = lambda payload, _: listener(payload)
        link.subscribe(channel)

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._drop("closed")

    async def _open(self) -> Link:
        async with self._opening:
            if self._link is None:
                await self._connect()
        assert self._link is not None
        return self._link

    async def _connect(self) -> None:
        try:
            self._connection = await open_connection(self._address, partial(Connection, "requester", self))
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(f"{self._address.url}: {unreachable(self._address, error)}") from None
        self._link = link = Link("requester")
        self._greeted = False
        try:
            reply = await self._send(link, *hello(self._credentials, "nc-console"))
        except asyncio.CancelledError:
            await self.close()  # otherwise the next caller would assume that we listen on it
            raise
        self._greeted = True
        if is_error(reply):
            await self.close()
            raise refusal(self._address.url, str(reply))
        for channel in self._listeners:
            self._hear(link, channel)

    async def _send(self, link: Link, *parts: bytes | str | int) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        link.send(lambda reply, _: None if future.done() else future.set_result(reply), *parts)
        assert self._connection is not None
        self._connection.write(link.take())
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError:
            await self.close()
            raise ConnectFailed(f"{self._address.url}: no answer within {ANSWER_S:.0f} s") from None
        finally:
            self._waiting.discard(future)

    def _drop(self, reason: str) -> None:
        self._link = self._connection = None
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectFailed(f"{self._address.url}: {reason}"))

    # --- what the connection reports

    def opened(self, connection: Connection) -> None:
        pass

    def arrived(self, connection: Connection, data: bytes) -> None:
        if self._link is None or self._connection is not connection:
            return
        try:
            self._link.feed(data, asyncio.get_running_loop().time())
        except LinkRefused as error:
            connection.close()
            self._drop(str(error))

    def ended(self, connection: Connection, reason: str) -> None:
        if self._connection is connection:
            self._drop(reason if self._greeted else unanswered(reason))
