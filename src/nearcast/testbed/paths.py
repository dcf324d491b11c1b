"""Paths: every way from a site of an emulated world to a broker of a local cluster, each with its own delay."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Self
from urllib.parse import urlsplit

from nearcast.runtime.driver import Resolve
from nearcast.testbed.links import DelayedRelay
from nearcast.testbed.sites import World


class Paths:
    """One relay per site and broker. Make them with `await Paths.start(...)`."""

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
