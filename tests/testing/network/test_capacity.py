"""Emulated capacity: all connections of a broker share it, each broker has its own, and only what is sent is narrow."""

from __future__ import annotations

import asyncio
import time
from urllib.parse import urlsplit

from nearcast.testing.network.sites import Capacities

RATE = 400_000.0
SIZE = 100_000


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads 100 kB, or sends them, as it is asked."""
    if await reader.readexactly(1) == b"r":
        await reader.readexactly(SIZE)
        writer.write(b".")
    else:
        writer.write(b"x" * SIZE)
    await writer.drain()
    writer.close()


async def transfer_s(url: str, question: bytes, answer_bytes: int) -> float:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    begun_s = time.monotonic()
    writer.write(question)
    await reader.readexactly(answer_bytes)
    took_s = time.monotonic() - begun_s
    writer.transport.abort()
    return took_s


def test_connections_of_one_broker_share_what_it_can_send() -> None:
    async def scenario() -> tuple[float, float, float, float]:
        async with (
            await asyncio.start_server(serve, "127.0.0.1", 0) as one,
            await asyncio.start_server(serve, "127.0.0.1", 0) as two,
        ):
            urls = [f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in (one, two)]
            async with await Capacities.start(urls, RATE) as capacities:
                ways = [capacities.resolve(url) for url in urls]
                alone_s = await transfer_s(ways[0], b"s", SIZE)
                shared_s = max(await asyncio.gather(*(transfer_s(ways[0], b"s", SIZE) for _ in range(3))))
                apart_s = max(await asyncio.gather(*(transfer_s(way, b"s", SIZE) for way in ways)))
                sent_s = await transfer_s(ways[0], b"r" + b"x" * SIZE, 1)
                return alone_s, shared_s, apart_s, sent_s

    alone_s, shared_s, apart_s, sent_s = asyncio.run(scenario())
    assert 0.23 < alone_s < 0.35  # 100 kB at 400 kB/s
    assert 0.70 < shared_s < 1.0
    assert 0.23 < apart_s < 0.40
    assert sent_s < 0.1
