"""Emulated links for UDP: boundaries, delays, losses and limits."""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from nearcast.errors import UsageError
from nearcast.testing.network import datagrams
from nearcast.testing.network.datagrams import DatagramRelay, DatagramShape
from nearcast.testing.waiting import until


class Ear(asyncio.DatagramProtocol):
    """Keeps what it hears, with the time, and sends it back if it is an echo."""

    def __init__(self, *, echo: bool = False) -> None:
        self.heard: list[tuple[float, bytes, tuple[str, int]]] = []
        self._echo = echo

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.heard.append((time.monotonic(), data, addr))
        if self._echo:
            self.transport.sendto(data, addr)

    @property
    def port(self) -> int:
        return int(self.transport.get_extra_info("sockname")[1])


async def ear(*, echo: bool = False) -> Ear:
    _, made = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Ear(echo=echo), local_addr=("127.0.0.1", 0)
    )
    return made


@asynccontextmanager
async def link(
    shape: DatagramShape, *, seed: int = 1, queued_most: int = datagrams.QUEUED_MOST
) -> AsyncIterator[tuple[DatagramRelay, Ear, Ear]]:
    """A relay, a client's socket and an echo behind the relay."""
    near, far = await ear(), await ear(echo=True)
    relay = DatagramRelay.start(("127.0.0.1", far.port), shape, rng=random.Random(seed), queued_most=queued_most)
    try:
        yield relay, near, far
    finally:
        relay.close()
        near.transport.close()
        far.transport.close()


def test_a_datagram_arrives_whole_after_the_delay_and_so_does_the_answer() -> None:
    async def scenario() -> None:
        async with link(DatagramShape(0.03)) as (relay, near, far):
            sent = [b"a", b"bb", b"c" * 9000]
            begun_s = time.monotonic()
            for data in sent:
                near.transport.sendto(data, ("127.0.0.1", relay.port))
            await until(lambda: len(near.heard) == 3)
            assert [data for _, data, _ in far.heard] == sent
            assert [data for _, data, _ in near.heard] == sent
            assert far.heard[0][0] - begun_s >= 0.029
            assert 0.058 <= near.heard[0][0] - begun_s < 0.2
            assert {sender[1] for _, _, sender in near.heard} == {relay.port}
            assert relay.counts.delivered == 6

    asyncio.run(scenario())


def test_clients_are_told_apart() -> None:
    async def scenario() -> None:
        async with link(DatagramShape()) as (relay, near, far):
            other = await ear()
            near.transport.sendto(b"near", ("127.0.0.1", relay.port))
            other.transport.sendto(b"other", ("127.0.0.1", relay.port))
            await until(lambda: near.heard and other.heard)
            assert [near.heard[0][1], other.heard[0][1]] == [b"near", b"other"]
            assert len({sender for _, _, sender in far.heard}) == 2
            other.transport.close()

    asyncio.run(scenario())


def test_a_shorter_link_is_shorter_at_once() -> None:
    async def scenario() -> None:
        async with link(DatagramShape(0.2)) as (relay, near, far):
            near.transport.sendto(b"slow", ("127.0.0.1", relay.port))
            await until(lambda: relay.queued == 1)
            relay.reshape(DatagramShape(0.01))
            near.transport.sendto(b"fast", ("127.0.0.1", relay.port))
            await until(lambda: len(far.heard) == 2)
            assert [data for _, data, _ in far.heard] == [b"fast", b"slow"]

    asyncio.run(scenario())


def test_the_share_that_is_lost_is_that_of_the_seed() -> None:
    async def lost(seed: int) -> int:
        async with link(DatagramShape(loss_share=0.3), seed=seed) as (relay, near, far):
            for number in range(300):
                near.transport.sendto(b"%d" % number, ("127.0.0.1", relay.port))
                await asyncio.sleep(0)  # lets the relay read
            # What reaches the echo comes back, or is lost on its way back.
            await until(lambda: relay.counts.delivered + relay.counts.lost == 300 + len(far.heard))
            return relay.counts.lost

    first = asyncio.run(lost(1))
    assert 110 < first < 200
    assert asyncio.run(lost(2)) != first


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    async def scenario() -> None:
        async with link(DatagramShape(0.2), queued_most=5) as (relay, near, far):
            for number in range(8):
                near.transport.sendto(b"%d" % number, ("127.0.0.1", relay.port))
            await until(lambda: relay.counts.dropped == 3)
            assert relay.queued == 5
            await until(lambda: len(far.heard) == 5)
            assert [data for _, data, _ in far.heard] == [b"0", b"1", b"2", b"3", b"4"]

    asyncio.run(scenario())


def test_only_so_many_clients_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagrams, "SOURCES_MOST", 2)

    async def scenario() -> None:
        async with link(DatagramShape()) as (relay, near, far):
            others = [await ear() for _ in range(3)]
            for number, other in enumerate(others, start=1):
                other.transport.sendto(b"hello", ("127.0.0.1", relay.port))
                await until(lambda number=number: len(far.heard) == number)  # type: ignore[misc]
            assert len(relay._sources) == 2
            near.transport.sendto(b"late", ("127.0.0.1", relay.port))
            await until(lambda: near.heard)
            for other in others:
                other.transport.close()

    asyncio.run(scenario())


def test_a_target_that_does_not_listen_breaks_nothing() -> None:
    async def scenario() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            closed.bind(("127.0.0.1", 0))
            target = closed.getsockname()
        relay = DatagramRelay.start(target, rng=random.Random(1))
        near = await ear()
        for _ in range(3):
            near.transport.sendto(b"anyone?", ("127.0.0.1", relay.port))
        await until(lambda: relay.counts.delivered + relay.counts.dropped >= 3)
        assert near.heard == []
        relay.close()
        near.transport.close()

    asyncio.run(scenario())


def test_shapes_that_cannot_be_are_refused() -> None:
    for wrong in ({"delay_s": -1.0}, {"jitter_s": -0.1}, {"loss_share": 1.5}):
        with pytest.raises(UsageError, match="0 or more"):
            DatagramShape(**wrong)
