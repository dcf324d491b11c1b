"""Runs on real servers: every message is counted, latencies are true, and what limits a run is named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from made import made

from nearcast.core.wire.backend import Credentials
from nearcast.errors import ClusterError
from nearcast.runtime.calibration import LimitedBy
from nearcast.runtime.ends import NAME
from nearcast.runtime.profiling.configuration import Configuration
from nearcast.runtime.profiling.profile import ProfileSettings, profile
from nearcast.runtime.profiling.runs import Run, measure, percentiles
from nearcast.runtime.profiling.sweep import Space
from nearcast.runtime.profiling.traffic import IN_FLIGHT_MAX_BYTES, Traffic
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.network.sites import Capacities
from nearcast.testing.waiting import until

SMALL = Configuration(topics=3, publishers=2, subscribers=2, payload_bytes=20, rate_per_s=500.0)


def with_server(scenario: Callable[[LocalServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await LocalServer.start() as server:
            await scenario(server)

    asyncio.run(run())


async def connections(server: LocalServer) -> int:
    requester = Requester(server.url)
    listing = await requester.ask("CLIENT", "LIST")
    await requester.close()
    assert isinstance(listing, bytes)
    return listing.count(f"name={NAME} ".encode())


# --- figures


def test_percentiles_are_those_of_messages() -> None:
    assert percentiles([(0.3, 1), (0.1, 98), (0.2, 1)], (0.5, 0.98, 0.99, 1.0)) == [0.1, 0.1, 0.2, 0.3]
    assert percentiles([(0.1, 1), (0.9, 99)], (0.5, 0.95)) == [0.9, 0.9]
    rng = Random(0)
    each = sorted(rng.random() for _ in range(1000))
    found = percentiles([(value, 1) for value in each], (0.5, 0.95, 0.99))
    assert found == [each[499], each[949], each[989]]


def test_what_limits_a_run_is_named() -> None:
    assert made(1e3, 1.0).limited_by is None
    assert made(1e3, 1.0, cpu=0.9, measuring=0.9).limited_by is LimitedBy.SERVER
    assert made(1e3, 1.0, measuring=0.9).limited_by is LimitedBy.MEASURING
    behind = made(1e3, 1.0, kept=0.5)
    assert (behind.kept_rate, behind.limited_by) == (False, LimitedBy.PATH)
    assert behind.kept_share == pytest.approx(0.5)


# --- live


@pytest.mark.live
@pytest.mark.xdist_group("profiling")
@pytest.mark.parametrize("payload_bytes", [1, 1000, 300_000])
def test_every_message_is_counted_and_timed(payload_bytes: int) -> None:
    """Also those that come in many pieces, and many in one piece."""
    configuration = Configuration(topics=3, publishers=2, subscribers=2, payload_bytes=payload_bytes)

    async def scenario(server: LocalServer) -> None:
        async with await Traffic.open(server.url, Credentials(), configuration) as traffic:
            await traffic.publish(0.3)
            most = max(IN_FLIGHT_MAX_BYTES, 2 * payload_bytes)
            assert 0 <= traffic.in_flight_bytes <= most

            async def delivered() -> bool:
                return traffic.in_flight_bytes == 0

            await until(delivered, "everything is delivered", 10.0)
            assert traffic.received == 2 * traffic.sent > 0
            timed = sum(messages for _, messages in traffic.latencies)
            assert 0.9 * traffic.received <= timed <= traffic.received
            assert all(0 < latency_s < 20 for latency_s, _ in traffic.latencies)
        assert await connections(server) == 0

    with_server(scenario)


@pytest.mark.live
@pytest.mark.xdist_group("profiling")
def test_a_rate_is_kept_or_said_not_to_be() -> None:
    """A token bucket lets 2 MB/s through."""

    async def scenario(server: LocalServer) -> None:
        async with await Capacities.start([server.url], bytes_per_s=2e6) as capacities:
            url, requester = capacities.resolve(server.url), Requester(server.url)

            async def at(rate_per_s: float) -> Run:
                wide = Configuration(topics=2, publishers=1, subscribers=2, payload_bytes=1000, rate_per_s=rate_per_s)
                return await measure(url, Credentials(), requester, wide, 1.5)

            fits, exceeds = await at(50.0), await at(20_000.0)
            await requester.close()
        assert fits.output_per_s == pytest.approx(200, rel=0.3)
        assert exceeds.kept_rate is False
        assert exceeds.kept_share < 0.5
        assert exceeds.limited_by is not None
        assert exceeds.latency_p95_s > 5 * fits.latency_p95_s
        assert exceeds.latency_p50_s <= exceeds.latency_p95_s <= exceeds.latency_p99_s
        assert 0 < fits.cpu_share < 1.2

    with_server(scenario)


@pytest.mark.live
@pytest.mark.xdist_group("profiling")
def test_a_profile_runs_the_sweep_and_what_was_given() -> None:
    space = Space(topics=(1, 2), publishers=(1,), subscribers=(1, 2), payload_bytes=(20, 200))
    settings = ProfileSettings(seconds=0.5, runs=9, space=space, limit_s=60.0)
    steps: list[tuple[int, int]] = []

    async def scenario(server: LocalServer) -> None:
        found = await profile(
            server.url, Credentials(), settings, [SMALL], lambda done, total, what: steps.append((done, total))
        )
        assert steps == [(done, 10) for done in range(11)]
        assert found.runs[0].configuration.rate_per_s is None
        assert found.runs[-1].configuration == SMALL
        rates = [one.output_per_s for one in found.runs]
        assert max(rates) > 10 * min(rates) > 0
        assert len({one.configuration.topics for one in found.runs}) == 3
        assert found.threshold.messages_high_per_s == max(rates)
        assert found.threshold.at_least
        assert found.correlations["messages/s out"] is not None
        assert found.correlations["publishers per topic"] is not None  # the given one has two
        assert await connections(server) == 0

    with_server(scenario)


@pytest.mark.live
@pytest.mark.xdist_group("profiling")
def test_a_cancelled_profile_and_one_whose_server_dies_leave_nothing() -> None:
    async def scenario(server: LocalServer) -> None:
        async def begun() -> bool:
            return await connections(server) > 0

        async def ended() -> bool:
            return await connections(server) == 0

        settings = ProfileSettings(seconds=30)
        task = asyncio.create_task(profile(server.url, Credentials(), settings))
        await until(begun, "it has connections", 5.0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until(ended, "they are closed", 5.0)
        task = asyncio.create_task(profile(server.url, Credentials(), settings))
        await until(begun, "it has connections", 5.0)
        server.kill()
        async with asyncio.timeout(5):
            with pytest.raises(ClusterError):
                await task

    with_server(scenario)
