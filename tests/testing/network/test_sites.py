"""Emulated sites: every pair has a delay, and a server behind a link is really that far away."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from nearcast.errors import UsageError
from nearcast.runtime.servers import LocalServer
from nearcast.testing.network.relay import DelayedRelay
from nearcast.testing.network.sites import WORLD, Site, World


def test_the_world_has_a_delay_for_every_pair() -> None:
    names = [site.name for site in WORLD.sites]
    for source in names:
        for target in names:
            assert WORLD.delay_s(source, target) == WORLD.delay_s(target, source) > 0
            assert WORLD.link(source, target).delay_s == WORLD.delay_s(source, target)
            if source != target:
                assert WORLD.delay_s(source, target) >= 10 * WORLD.delay_s(source, source)
    with pytest.raises(UsageError, match=r"'mars'.*paris, tokyo, virginia"):
        WORLD.delay_s("mars", "paris")
    with pytest.raises(UsageError, match="each pair"):
        World((Site("a"), Site("b"), Site("c")), {("a", "b"): 0.01})


@pytest.mark.live
def test_a_server_behind_a_link_is_as_far_away_as_its_site() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            shape, address = WORLD.link("paris", "virginia"), ("127.0.0.1", server.port)
            async with await DelayedRelay.start(address, shape, rng=random.Random(1)) as relay:
                reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
                began_s = time.monotonic()
                writer.write(b"PING\r\n")
                assert await reader.readline() == b"+PONG\r\n"
                assert 0.079 < time.monotonic() - began_s < 0.079 + 2 * shape.jitter_s + 0.03
                writer.close()

    asyncio.run(scenario())
