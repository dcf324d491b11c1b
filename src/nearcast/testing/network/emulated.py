"""An emulated network: sites with delays between them, servers at sites, and endpoints that move from site to site.

    network = EmulatedNetwork(world, rng)
    await network.place("redis://127.0.0.1:7001", "paris")  # a server, by its URL
    await network.place("udp://127.0.0.1:9001", "paris")  # where an agent answers probes
    phone = await network.attach("phone", "tokyo", access_delay_s=0.008)
    client = await nearcast.connect("redis://127.0.0.1:7001", resolve=phone.resolve)
    phone.move("paris")

All delays are one way. Between an endpoint and a server they are the endpoint's access delay plus the world's delay
from its site to the server's. `resolve` translates the addresses that a cluster announces into those that lead through
the endpoint's own links. It is the seam for everything that opens connections or sends datagrams: a client in this
process is given the function, a process of its own is given `table()`.

An endpoint is whoever moves together: one client, or all drones of a swarm. It has one relay to each server, with a
pair of queues per connection. What costs CPU is the chunk, which is whatever was written at once, not the message.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Self
from urllib.parse import urlsplit

from nearcast.errors import UsageError
from nearcast.testing.network.datagrams import DatagramCounts, DatagramRelay, DatagramShape
from nearcast.testing.network.relay import DelayedRelay, LinkShape
from nearcast.testing.network.sites import World

_HOST = "127.0.0.1"


class Endpoint:
    """A client, or several that move together, and its links to all servers. Made by `EmulatedNetwork.attach`."""

    def __init__(
        self, network: EmulatedNetwork, name: str, site: str, access_delay_s: float, *, grows: bool = True
    ) -> None:
        self.name = name
        self.grows = grows  # with the network: servers that come are linked too
        self.site = site
        self.access_delay_s = access_delay_s
        self._network = network
        self._streams: dict[str, DelayedRelay] = {}
        self._datagrams: dict[str, DatagramRelay] = {}

    def delay_s(self, address: str) -> float:
        """One way, to the server with this URL."""
        return self.access_delay_s + self._network.world.delay_s(self.site, self._network.site_of(address))

    def resolve(self, address: str) -> str:
        """The address that leads to this one through the endpoint's link."""
        if address in self._streams:
            return f"redis://{_HOST}:{self._streams[address].port}"
        if address in self._datagrams:
            return f"udp://{_HOST}:{self._datagrams[address].port}"
        raise UsageError(f"no server at {address!r} in the emulated network: place it first")

    def table(self) -> dict[str, str]:
        """All translations of `resolve`, for a process of its own."""
        return {address: self.resolve(address) for address in (*self._streams, *self._datagrams)}

    def move(self, site: str | None = None, *, access_delay_s: float | None = None) -> None:
        """Go to another site, or change the access delay. All links change at once; connections stay open."""
        if site is not None:
            self._network.world.delay_s(site, site)  # raises if there is no such site
            self.site = site
        if access_delay_s is not None:
            self.access_delay_s = access_delay_s
        for address, stream in self._streams.items():
            stream.reshape(self._stream_shape(address))
        for address, relay in self._datagrams.items():
            relay.reshape(self._datagram_shape(address))

    @property
    def connections(self) -> int:
        """How many are open through its links."""
        return sum(relay.connections for relay in self._streams.values())

    @property
    def datagrams(self) -> DatagramCounts:
        """What became of all its datagrams."""
        total = DatagramCounts()
        for relay in self._datagrams.values():
            total.delivered += relay.counts.delivered
            total.lost += relay.counts.lost
            total.dropped += relay.counts.dropped
        return total

    # --- for the network

    async def open(self, address: str) -> None:
        """Open the link to one more server."""
        rng = self._network.rng
        if not _is_udp(address):
            self._streams[address] = await DelayedRelay.start(_split(address), self._stream_shape(address), rng=rng)
        else:
            self._datagrams[address] = DatagramRelay.start(_split(address), self._datagram_shape(address), rng=rng)

    async def close(self) -> None:
        for relay in self._datagrams.values():
            relay.close()
        for stream in self._streams.values():
            await stream.close()

    def _stream_shape(self, address: str) -> LinkShape:
        delay_s = self.delay_s(address)
        return LinkShape(delay_s, delay_s * self._network.world.jitter_share)

    def _datagram_shape(self, address: str) -> DatagramShape:
        delay_s = self.delay_s(address)
        return DatagramShape(delay_s, delay_s * self._network.world.jitter_share, self._network.loss_share)


class EmulatedNetwork:
    """Use it with `async with`, which closes all links. `loss_share`: of datagrams, on every link."""

    def __init__(self, world: World, rng: random.Random, *, loss_share: float = 0.0) -> None:
        self.world = world
        self.rng = rng
        self.loss_share = loss_share
        self._servers: dict[str, str] = {}  # URL -> site
        self._endpoints: dict[str, Endpoint] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for endpoint in self._endpoints.values():
            await endpoint.close()

    def knows(self, address: str) -> bool:
        """Whether a server was placed there."""
        return address in self._servers

    def site_of(self, address: str) -> str:
        if address not in self._servers:
            raise UsageError(f"no server at {address!r} in the emulated network: place it first")
        return self._servers[address]

    async def place(self, address: str, site: str) -> None:
        """Put a server at a site, by its URL, redis://... or udp://..., and link all endpoints to it."""
        self.world.delay_s(site, site)  # raises if there is no such site
        if address in self._servers:
            raise UsageError(f"{address!r} is already placed, at {self._servers[address]}")
        _split(address)
        self._servers[address] = site
        for endpoint in self._endpoints.values():
            if endpoint.grows:
                await endpoint.open(address)

    async def attach(
        self, name: str, site: str, *, access_delay_s: float = 0.0, only: Collection[str] | None = None
    ) -> Endpoint:
        """A new endpoint at a site, linked to all servers, also to those that come; or to some of those there are."""
        self.world.delay_s(site, site)  # raises if there is no such site
        if name in self._endpoints:
            raise UsageError(f"the emulated network already has an endpoint {name!r}: choose another name")
        endpoint = self._endpoints[name] = Endpoint(self, name, site, access_delay_s, grows=only is None)
        for address in self._servers if only is None else only:
            await endpoint.open(address)
        return endpoint

    def move(self, name: str, site: str) -> None:
        """Send an endpoint to another site."""
        if name not in self._endpoints:
            raise UsageError(f"no endpoint {name!r}: there are {', '.join(self._endpoints) or 'none'}")
        self._endpoints[name].move(site)


def _is_udp(address: str) -> bool:
    return address.startswith("udp://")


def _split(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    if parts.hostname is None or parts.port is None:
        raise UsageError(f"bad address {address!r}: use a URL such as redis://host:port or udp://host:port")
    return parts.hostname, parts.port
