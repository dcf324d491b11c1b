"""Emulated capacity: every broker of a local cluster can send only so many bytes a second, to all its clients together.

A server on this machine sends gigabytes a second over loopback, and two cores are used up long before. To see what a
broker at its limit does, clients reach each broker through one relay whose way back is a token bucket:

    clients ──> relay ── as wide as it gets ─────────────> server
            <──       ── token bucket, shared by all ───── <──

A message for n subscribers is n frames, which leave one after the other: as on a real network card, the last one
waits for all the others. What does not fit waits: first in the relay, then in the sockets, then in the server's
output buffers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Self
from urllib.parse import urlsplit

from nearcast.testbed.links import DelayedRelay, LinkShape

BURST_BYTES = 1500  # an Ethernet frame: no fan-out passes at once


class Capacities:
    """One relay per broker. Make them with `await Capacities.start(...)`, and give `resolve` to `nearcast.connect`."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._relays: dict[str, DelayedRelay] = {}

    @classmethod
    async def start(cls, urls: Iterable[str], bytes_per_s: float, delay_s: float = 0.0) -> Self:
        """`urls`: of the brokers. `bytes_per_s`: what each of them may send. `delay_s`: one way, both ways."""
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
        """The way to a broker, by its URL."""
        return f"redis://127.0.0.1:{self._relays[url].port}"

    async def _open(self, url: str, there: LinkShape, back: LinkShape) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        assert address.port is not None
        without_jitter = random.Random(0)  # no dice are rolled
        relay = await DelayedRelay.start((address.hostname, address.port), there, back=back, rng=without_jitter)
        self._relays[url] = await self._stack.enter_async_context(relay)
