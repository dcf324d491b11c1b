"""The ends of a measurement: connections that publish, or hear, on private channels of one server.

They take no part in the cluster: no broker counts them as clients, and no policy sees their channels. An end is greeted
and attached as clients are. After that its bytes are only counted, which costs a fraction of reading them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from nearcast.core.wire.backend import Credentials, LinkRefused
from nearcast.core.wire.link import Reply, is_error
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.errors import ClusterError, ConnectFailed, Unavailable
from nearcast.runtime.driver import Connection, open_connection, parse_url, unreachable

NAME = "nc-calibration"  # in the server's list of clients; not named like a client, so no agent cuts it off
ATTACH_S = 5.0


class Measurement(Protocol):
    """What ends belong to."""

    def fail(self, problem: ClusterError) -> None: ...


class End:
    """One connection: greeted and attached through a link; after that its bytes go to `heard`."""

    def __init__(self, measurement: Measurement) -> None:
        self.measurement = measurement
        self.link: ValkeyLink | None = ValkeyLink(NAME)
        self.attached = asyncio.get_running_loop().create_future()
        self.connection: Connection | None = None

    async def open(self, url: str, credentials: Credentials) -> None:
        address, own = parse_url(url)
        link = self.link
        assert link is not None
        link.greet(address.url, own if own.password else credentials, NAME, self._greeted)
        self.prepare(link)
        link.barrier(lambda _: self._attached())
        try:
            self.connection = await open_connection(address, partial(Connection, NAME, self))
            self.connection.write(link.take())
            async with asyncio.timeout(ATTACH_S):
                await self.attached
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(f"{address.url}: {unreachable(address, error)}") from None

    def prepare(self, link: ValkeyLink) -> None:
        """What must happen before bytes are counted."""

    def _greeted(self, problem: ClusterError | None, now_s: float) -> None:
        if problem is not None:
            self.fail(problem)

    def _attached(self) -> None:
        self.link = None
        if not self.attached.done():
            self.attached.set_result(None)

    def fail(self, problem: ClusterError) -> None:
        if self.attached.done():
            self.measurement.fail(problem)
        else:
            self.attached.set_exception(problem)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    # --- what the connection reports

    def opened(self, connection: Connection) -> None:
        pass

    def arrived(self, connection: Connection, data: bytes) -> None:
        if self.link is None:
            self.heard(data)
            return
        try:
            self.link.feed(data, 0.0)
        except LinkRefused as refused:
            self.fail(ConnectFailed(f"{NAME}: {refused}"))

    def ended(self, connection: Connection, reason: str) -> None:
        self.fail(ConnectFailed(f"the server ended a connection of the measurement: {reason}"))

    def heard(self, data: bytes) -> None: ...


class PublisherEnd(End):
    def __init__(self, measurement: Measurement, channel: bytes) -> None:
        super().__init__(measurement)
        self.channel = channel

    def prepare(self, link: ValkeyLink) -> None:
        link.send(self._tried, "PUBLISH", self.channel, b"")

    def _tried(self, reply: Reply, now_s: float) -> None:
        if is_error(reply):
            self.fail(_no_right(str(reply)))

    def heard(self, data: bytes) -> None:
        if b"-" in data:  # replies are numbers
            self.fail(_no_right(data[:80].decode(errors="replace")))


def _no_right(reply: str) -> Unavailable:
    return Unavailable(f"the server refused to publish ({reply}): let this user publish on nc:x:*")
