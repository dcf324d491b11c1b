"""Emulated links: delays, order, rates and cuts are what they say, and memory stays bounded."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from nearcast.testing.network.relay import (
    CHUNK_COST_BYTES,
    DIRECT,
    WRITE_BYTES,
    DelayedRelay,
    LinkShape,
    reset_connection,
)
from nearcast.testing.waiting import until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Scenario = Callable[[], Coroutine[None, None, None]]
MIB = 1024 * 1024
LIMIT_BYTES = 8 * MIB


def run(scenario: Scenario, within_s: float = 20.0) -> None:
    asyncio.run(asyncio.wait_for(scenario(), within_s))


async def connect(port: int) -> Streams:
    return await asyncio.open_connection("127.0.0.1", port)


async def close(*streams: Streams) -> None:
    for _, writer in streams:
        writer.transport.abort()
    await asyncio.sleep(0)  # transports close in the next turn of the loop


@asynccontextmanager
async def far_side() -> AsyncIterator[tuple[int, asyncio.Queue[Streams]]]:
    """A server that hands out its connections: its port, and the queue of them."""
    arrived: asyncio.Queue[Streams] = asyncio.Queue()
    server = await asyncio.start_server(lambda *streams: arrived.put_nowait(streams), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], arrived
    finally:
        server.close()


@asynccontextmanager
async def link(
    shape: LinkShape = DIRECT, *, seed: int = 1, limit_bytes: int = LIMIT_BYTES
) -> AsyncIterator[tuple[DelayedRelay, Streams, Streams]]:
    """A relay, and one connection through it: the client's streams and the target's."""
    async with far_side() as (port, arrived):
        relay = await DelayedRelay.start(("127.0.0.1", port), shape, rng=random.Random(seed), limit_bytes=limit_bytes)
        async with relay:
            near = await connect(relay.port)
            far = await arrived.get()
            try:
                yield relay, near, far
            finally:
                await close(near, far)


def test_bytes_take_the_delay_in_each_direction() -> None:
    delay_s = 0.05

    async def scenario() -> None:
        async with link(LinkShape(delay_s)) as (_, near, far):
            took_s = []
            for (_, writer), (reader, _) in [(near, far), (far, near)] * 4:
                began_s = time.monotonic()
                writer.write(b"ping")
                assert await reader.readexactly(4) == b"ping"
                took_s.append(time.monotonic() - began_s)
            assert min(took_s) >= delay_s - 0.001
            assert sorted(took_s)[len(took_s) // 2] < delay_s + 0.015

    run(scenario)


def test_a_direct_link_adds_next_to_nothing() -> None:
    async def scenario() -> None:
        async with link() as (_, (_, writer), (reader, _)):
            took_s = []
            for _ in range(50):
                began_s = time.monotonic()
                writer.write(b"ping")
                await reader.readexactly(4)
                took_s.append(time.monotonic() - began_s)
            assert sorted(took_s)[25] < 0.005

    run(scenario)


def test_jitter_never_changes_the_order() -> None:
    async def scenario() -> None:
        async with link(LinkShape(0.005, jitter_s=0.03)) as (relay, (_, writer), (reader, _)):
            sent = b""
            for number in range(200):
                line = b"%d\n" % number
                writer.write(line)
                sent += line
                await asyncio.sleep(0.0005)  # paces the lines
            assert await reader.readexactly(len(sent)) == sent
            assert relay.in_flight_bytes == 0
            assert relay.delivered_bytes == len(sent)

    run(scenario)


def test_a_narrow_link_keeps_its_rate_and_flows_evenly() -> None:
    rate, total = 4_000_000, 1_200_000

    async def scenario() -> None:
        async with link(LinkShape(bytes_per_s=rate)) as (_, (_, writer), (reader, _)):
            began_s = time.monotonic()
            writer.write(bytes(total))
            got, times_s = 0, [began_s]
            while got < total:
                got += len(await reader.read(65536))
                times_s.append(time.monotonic())
            expected_s = (total - DIRECT.burst_bytes) / rate
            assert 0.95 * expected_s < times_s[-1] - began_s < 1.2 * expected_s
            assert max(after - before for before, after in pairwise(times_s)) < 0.1

    run(scenario)


def test_connections_share_the_rate_of_their_link() -> None:
    rate, each = 2_000_000, 300_000

    async def scenario() -> None:
        async with far_side() as (port, arrived):
            shape = LinkShape(bytes_per_s=rate)
            async with await DelayedRelay.start(("127.0.0.1", port), shape, rng=random.Random(1)) as relay:
                near = [await connect(relay.port) for _ in range(3)]
                far = [await arrived.get() for _ in near]
                began_s = time.monotonic()
                for _, writer in near:
                    writer.write(bytes(each))
                await asyncio.gather(*(reader.readexactly(each) for reader, _ in far))
                expected_s = (3 * each - shape.burst_bytes) / rate
                assert 0.95 * expected_s < time.monotonic() - began_s < 1.3 * expected_s
                await close(*near, *far)

    run(scenario)


def test_a_partition_holds_bytes_back_and_healing_releases_them_in_order() -> None:
    async def scenario() -> None:
        async with link(LinkShape(0.002)) as (relay, near, far):
            near[1].write(b"before ")
            assert await far[0].readexactly(7) == b"before "
            near[1].write(b"on the way ")
            relay.partition()
            near[1].write(b"during ")
            far[1].write(b"back")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(far[0].read(1), 0.1)
            assert relay.connections == 1
            relay.heal()
            assert await far[0].readexactly(18) == b"on the way during "
            assert await near[0].readexactly(4) == b"back"

    run(scenario)


def test_a_connection_made_in_a_partition_gets_through_after_it() -> None:
    async def scenario() -> None:
        async with link() as (relay, _, _), far_side() as (port, arrived):
            relay.target = ("127.0.0.1", port)
            relay.partition()
            near = await connect(relay.port)
            near[1].write(b"hello")
            await asyncio.sleep(0.05)  # nothing gets through
            assert arrived.empty()
            relay.heal()
            far = await arrived.get()
            assert await far[0].readexactly(5) == b"hello"
            await close(near, far)

    run(scenario)


def test_dropped_connections_are_reset_and_new_ones_work() -> None:
    async def scenario() -> None:
        async with link() as (relay, near, far), far_side() as (port, arrived):
            relay.drop_connections()
            for reader, _ in (near, far):
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            assert relay.connections == 0
            relay.target = ("127.0.0.1", port)
            new_near, new_far = await connect(relay.port), await arrived.get()
            new_near[1].write(b"again")
            assert await new_far[0].readexactly(5) == b"again"
            await close(new_near, new_far)

    run(scenario)


def test_a_drop_in_a_partition_ends_also_what_was_still_connecting() -> None:
    async def scenario() -> None:
        async with link() as (relay, near, _):
            relay.partition()
            waiting = await connect(relay.port)
            await until(lambda: relay.connections == 2)
            relay.drop_connections()
            for reader, _ in (near, waiting):
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            await until(lambda: relay.connections == 0)
            await close(waiting)

    run(scenario)


def test_a_finished_direction_leaves_the_other_open() -> None:
    async def scenario() -> None:
        async with link(LinkShape(0.01)) as (relay, near, far):
            near[1].write(b"question")
            near[1].write_eof()
            assert await far[0].read() == b"question"
            far[1].write(b"answer")
            far[1].write_eof()
            assert await near[0].read() == b"answer"
            await until(lambda: relay.connections == 0)

    run(scenario)


def test_a_broken_connection_breaks_the_other_side_after_the_delay() -> None:
    async def scenario() -> None:
        async with link(LinkShape(0.05)) as (relay, near, far):
            near[1].write(b"last words")
            assert await far[0].readexactly(10) == b"last words"
            began_s = time.monotonic()
            reset_connection(near[1].transport)
            with pytest.raises(ConnectionResetError):
                await far[0].read(1)
            assert 0.049 <= time.monotonic() - began_s < 0.1
            await until(lambda: relay.connections == 0)

    run(scenario)


def test_a_target_that_refuses_resets_the_client() -> None:
    async def scenario() -> None:
        async with far_side() as (port, _):
            pass
        async with await DelayedRelay.start(("127.0.0.1", port), rng=random.Random(1)) as relay:
            near = await connect(relay.port)
            with pytest.raises(ConnectionResetError):
                await near[0].read(1)
            await close(near)

    run(scenario)


@pytest.mark.parametrize("cause", ["partition", "slow reader", "long delay"])
def test_a_sender_must_wait_when_too_much_is_in_flight(cause: str) -> None:
    limit_bytes = MIB

    async def scenario() -> None:
        shape = LinkShape(delay_s=0.5) if cause == "long delay" else DIRECT
        async with link(shape, limit_bytes=limit_bytes) as (relay, (_, writer), (reader, _)):
            if cause == "partition":
                relay.partition()
            total = 32 * MIB  # more than what the kernel's socket buffers take
            writer.write(bytes(total))
            for _ in range(20):
                await asyncio.sleep(0.01)  # looked at for a while: never too much
                assert relay.in_flight_bytes <= limit_bytes + WRITE_BYTES + CHUNK_COST_BYTES
            assert writer.transport.get_write_buffer_size() > 0
            assert relay.delivered_bytes < total
            if cause == "slow reader":
                assert relay.in_flight_bytes > limit_bytes // 2
            relay.heal()
            if cause != "long delay":  # at 1 MiB per 0.5 s it would take long
                assert len(await reader.readexactly(total)) == total

    run(scenario)


def test_small_chunks_count_with_what_they_cost() -> None:
    async def scenario() -> None:
        async with link(LinkShape(0.1)) as (relay, (_, writer), _):
            writer.write(b"x")
            await until(lambda: relay.in_flight_bytes == 1 + CHUNK_COST_BYTES)

    run(scenario)


def test_a_direct_link_passes_100_mb_per_second() -> None:
    total = 256 * MIB

    async def scenario() -> None:
        async with link() as (relay, (_, writer), (reader, _)):

            async def send() -> None:
                block = bytes(MIB)
                for _ in range(total // MIB):
                    writer.write(block)
                    await writer.drain()
                writer.write_eof()

            began_s = time.monotonic()
            sending, got = asyncio.create_task(send()), 0
            while data := await reader.read(MIB):
                got += len(data)
            await sending
            assert got == relay.delivered_bytes == total
            assert total / (time.monotonic() - began_s) > 100e6

    run(scenario)
