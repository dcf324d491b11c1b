"""Paths from sites to brokers: each with its own delay."""

from __future__ import annotations

import asyncio
import random
import time

from nearcast.runtime.driver import parse_url
from nearcast.testing.network.sites import Paths, Site, World

WORLD = World((Site("near", 0.0), Site("far", 0.05)), {("near", "far"): 0.1}, jitter_share=0.0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    writer.close()


async def round_trip_s(url: str) -> float:
    address, _ = parse_url(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    begun_s = time.monotonic()
    writer.write(b"there and back\n")
    assert await reader.readline() == b"there and back\n"
    writer.close()
    return time.monotonic() - begun_s


def test_each_site_reaches_each_broker_with_the_delay_between_them() -> None:
    async def scenario() -> dict[tuple[str, str], float]:
        async with (
            await asyncio.start_server(echo, "127.0.0.1", 0) as one,
            await asyncio.start_server(echo, "127.0.0.1", 0) as two,
        ):
            urls = {f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}": server for server in (one, two)}
            brokers = dict(zip(urls, ("near", "far"), strict=True))
            async with await Paths.start(WORLD, brokers, random.Random(0)) as paths:
                return {
                    (site, at): await round_trip_s(paths.resolve(site)(url))
                    for site in ("near", "far")
                    for url, at in brokers.items()
                }

    found_s = asyncio.run(scenario())
    assert found_s["near", "near"] < 0.1 <= found_s["far", "far"] < 0.2
    assert 0.2 <= found_s["near", "far"] < 0.3
    assert 0.2 <= found_s["far", "near"] < 0.3
