"""The emulated network: delays per endpoint, for TCP and UDP, that change while connections stay open."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from urllib.parse import urlsplit

import pytest

from nearcast.errors import UsageError
from nearcast.runtime.driver import parse_url
from nearcast.testing.network.emulated import EmulatedNetwork
from nearcast.testing.network.sites import Site, World

WORLD = World((Site("near", 0.0), Site("far", 0.0)), {("near", "far"): 0.03}, jitter_share=0.0)


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.transport.sendto(data, addr)


class Ears(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.heard.put_nowait(data)


async def echo_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
    writer.close()


@asynccontextmanager
async def stage() -> AsyncIterator[tuple[EmulatedNetwork, str, str]]:
    """A network with an echo for TCP and one for UDP, both at the site `near`."""
    udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    async with await asyncio.start_server(echo_lines, "127.0.0.1", 0) as tcp:
        url = f"redis://127.0.0.1:{tcp.sockets[0].getsockname()[1]}"
        address = f"udp://127.0.0.1:{udp.get_extra_info('sockname')[1]}"
        async with EmulatedNetwork(WORLD, random.Random(1)) as network:
            await network.place(url, "near")
            await network.place(address, "near")
            yield network, url, address
    udp.close()


async def stream_round_trip_s(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> float:
    reader, writer = streams
    begun_s = time.monotonic()
    writer.write(b"there and back\n")
    assert await reader.readline() == b"there and back\n"
    return time.monotonic() - begun_s


async def datagram_round_trip_s(address: str) -> float:
    there = urlsplit(address)
    assert there.hostname is not None
    assert there.port is not None
    where = (there.hostname, there.port)
    transport, ears = await asyncio.get_running_loop().create_datagram_endpoint(Ears, remote_addr=where)
    begun_s = time.monotonic()
    transport.sendto(b"probe")
    assert await ears.heard.get() == b"probe"
    transport.close()
    return time.monotonic() - begun_s


def test_an_endpoint_that_moves_keeps_its_connections_and_gets_other_delays() -> None:
    async def scenario() -> None:
        async with stage() as (network, url, address):
            phone = await network.attach("phone", "near", access_delay_s=0.01)
            there, _ = parse_url(phone.resolve(url))
            streams = await asyncio.open_connection(there.host, there.port)
            seen = []
            for site, expected_s in (("near", 0.02), ("far", 0.08), ("near", 0.02)):
                phone.move(site)
                assert phone.delay_s(url) == phone.delay_s(address) == pytest.approx(expected_s / 2)
                stream_s = [await stream_round_trip_s(streams) for _ in range(7)]
                datagram_s = [await datagram_round_trip_s(phone.resolve(address)) for _ in range(7)]
                seen += [median(stream_s) - expected_s, median(datagram_s) - expected_s]
            assert phone.connections == 1
            assert phone.datagrams.delivered == 42
            # Two ways of about 1 ms each, and the tests beside this one.
            assert all(-0.002 <= over_s < 0.01 for over_s in seen), seen
            streams[1].close()

    asyncio.run(scenario())


def test_a_stream_stays_in_order_while_its_endpoint_moves() -> None:
    async def scenario() -> None:
        async with stage() as (network, url, _):
            phone = await network.attach("phone", "far")
            there, _ = parse_url(phone.resolve(url))
            reader, writer = await asyncio.open_connection(there.host, there.port)
            sent = b""
            for number in range(200):
                line = b"%d\n" % number
                writer.write(line)
                sent += line
                network.move("phone", "near" if number % 20 < 10 else "far")
                await asyncio.sleep(0.001)  # paces the lines
            assert await reader.readexactly(len(sent)) == sent
            writer.close()

    asyncio.run(scenario())


def test_endpoints_have_links_of_their_own_to_servers_placed_before_and_after() -> None:
    async def scenario() -> None:
        async with stage() as (network, url, address):
            first = await network.attach("first", "near")
            await network.place("redis://127.0.0.1:1", "far")
            second = await network.attach("second", "far", access_delay_s=0.002)
            tables = [first.table(), second.table()]
            assert [set(table) for table in tables] == [{url, address, "redis://127.0.0.1:1"}] * 2
            assert len({there for table in tables for there in table.values()}) == 6
            assert first.delay_s("redis://127.0.0.1:1") == 0.03
            second.move(access_delay_s=0.5)
            assert second.delay_s("redis://127.0.0.1:1") == 0.5

    asyncio.run(scenario())


def test_mistakes_say_what_to_do() -> None:
    async def scenario() -> None:
        async with stage() as (network, url, _):
            phone = await network.attach("phone", "near")
            with pytest.raises(UsageError, match="place it first"):
                phone.resolve("redis://127.0.0.1:2")
            with pytest.raises(UsageError, match="already placed"):
                await network.place(url, "far")
            with pytest.raises(UsageError, match="host:port"):
                await network.place("nowhere", "far")
            with pytest.raises(UsageError, match="the sites are: near, far"):
                phone.move("moon")
            with pytest.raises(UsageError, match="another name"):
                await network.attach("phone", "far")
            with pytest.raises(UsageError, match="there are phone"):
                network.move("tablet", "far")
            assert phone.site == "near"

    asyncio.run(scenario())
