"""Emulated sites and capacities: delays between places, and brokers with limited bandwidth.

The delays of `WORLD` are round, illustrative figures: the order of magnitude of public round-trip tables between cloud
regions, halved. They are not measurements.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Self
from urllib.parse import urlsplit

from nearcast.errors import UsageError
from nearcast.runtime.driver import Resolve
from nearcast.testing.network.relay import DelayedRelay, LinkShape

# --- sites


@dataclass(frozen=True, slots=True)
class Site:
    """A place. `local_delay_s`: one way, from a client there to a broker there."""

    name: str
    local_delay_s: float = 0.004


@dataclass(frozen=True, slots=True)
class World:
    """Sites and the one-way delays between them, which are the same in both directions.

    `delays_s` names each pair of sites once. The jitter of a link is `jitter_share` of its delay.
    """

    sites: tuple[Site, ...]
    delays_s: Mapping[tuple[str, str], float]
    jitter_share: float = 0.05

    def __post_init__(self) -> None:
        names = sorted(site.name for site in self.sites)
        given = sorted(tuple(sorted(pair)) for pair in self.delays_s)
        if len(set(names)) < len(names) or given != list(combinations(names, 2)):
            raise UsageError(f"name each site once, and each pair of {names} once in delays_s")

    def delay_s(self, source: str, target: str) -> float:
        """The one-way delay from a client or broker at `source` to a broker at `target`."""
        local = {site.name: site.local_delay_s for site in self.sites}
        if source not in local or target not in local:
            raise UsageError(f"no delay from {source!r} to {target!r}; the sites are: {', '.join(local)}")
        if source == target:
            return local[source]
        pair = (source, target) if (source, target) in self.delays_s else (target, source)
        return self.delays_s[pair]

    def link(self, source: str, target: str) -> LinkShape:
        """The shape of the link between the two, to start a `DelayedRelay` with."""
        delay_s = self.delay_s(source, target)
        return LinkShape(delay_s=delay_s, jitter_s=delay_s * self.jitter_share)


# --- capacities


WORLD = World(
    (Site("paris"), Site("tokyo"), Site("virginia")),
    {("paris", "virginia"): 0.040, ("tokyo", "virginia"): 0.080, ("paris", "tokyo"): 0.120},
)


BURST_BYTES = 1500  # an Ethernet frame: no fan-out passes in one burst


class Capacities:
    """Limits how many bytes per second each broker of a local cluster can send to all its clients together.

    A server on this machine can send gigabytes per second over loopback, and two cores are used up long before that. To
    see what a broker does at its limit, clients reach each broker through one relay whose way back is a token bucket:

        clients ──> relay ── unlimited ──────────────────────> server
                <──       ── token bucket, shared by all ───── <──

    A message for n subscribers is n frames, which leave one after another: as on a real network card, the last one
    waits for all the others. What does not fit waits first in the relay, then in the sockets, then in the server's
    output buffers.

    Make them with `await Capacities.start(...)`, and give `resolve` to `nearcast.connect`.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._relays: dict[str, DelayedRelay] = {}

    @classmethod
    async def start(cls, urls: Iterable[str], bytes_per_s: float, delay_s: float = 0.0) -> Self:
        """`urls`: of the brokers. `bytes_per_s`: what each of them may send. `delay_s`: one-way, in both directions."""
        there = LinkShape(delay_s)
        back = LinkShape(delay_s, bytes_per_s=bytes_per_s, burst_bytes=BURST_BYTES)
        capacities = cls()
        try:
            for url in urls:
                await capacities._open(url, there, back)
        except BaseException:
            await capacities._stack.aclose()
            raise
        return capacities

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def resolve(self, url: str) -> str:
        """The URL of the relay to a broker, by the broker's URL."""
        return f"redis://127.0.0.1:{self._relays[url].port}"

    async def _open(self, url: str, there: LinkShape, back: LinkShape) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        without_jitter = random.Random(0)  # never used, because there is no jitter
        relay = await DelayedRelay.start((address.hostname, address.port), there, back=back, rng=without_jitter)
        self._relays[url] = await self._stack.enter_async_context(relay)


# --- paths


class Paths:
    """All ways from the sites of a world to the brokers of a local cluster, each through a relay with its own delay.

    Make them with `await Paths.start(...)`.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._urls: dict[str, dict[str, str]] = {}  # site -> a broker's URL -> the URL of the relay to it

    @classmethod
    async def start(cls, world: World, brokers: Mapping[str, str], rng: random.Random) -> Self:
        """`brokers`: the site of each broker by its URL."""
        paths = cls()
        try:
            for site in world.sites:
                paths._urls[site.name] = {
                    url: await paths._open(world, site.name, at, url, rng) for url, at in brokers.items()
                }
        except BaseException:
            await paths._stack.aclose()
            raise
        return paths

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def resolve(self, site: str) -> Resolve:
        """For `nearcast.connect(..., resolve=...)` of a client at this site."""
        return self._urls[site].__getitem__

    async def _open(self, world: World, source: str, target: str, url: str, rng: random.Random) -> str:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        relay = await DelayedRelay.start((address.hostname, address.port), world.link(source, target), rng=rng)
        await self._stack.enter_async_context(relay)
        return f"redis://127.0.0.1:{relay.port}"
