"""Calibration: the figure is true, can be repeated, names its limit, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from nearcast.core.wire.backend import Credentials
from nearcast.errors import ClusterError, ConnectFailed, Unavailable, UsageError
from nearcast.runtime.calibration import HEADROOM, CalibrationSettings, LimitedBy, calibrate
from nearcast.runtime.ends import NAME
from nearcast.runtime.fanout import Fanout
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.network.sites import Capacities
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("calibration")]

SHORT = CalibrationSettings(seconds=1.5)


def with_server(scenario: Callable[[LocalServer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with await LocalServer.start() as server:
            await scenario(server)

    asyncio.run(run())


async def ask(server: LocalServer, *parts: str) -> object:
    requester = Requester(server.url)
    try:
        return await requester.ask(*parts)
    finally:
        await requester.close()


async def measuring_connections(server: LocalServer) -> int:
    listing = await ask(server, "CLIENT", "LIST")
    assert isinstance(listing, bytes)
    return listing.count(f"name={NAME} ".encode())


async def until_connections(server: LocalServer, reached: Callable[[int], bool]) -> None:
    async def there() -> bool:
        return reached(await measuring_connections(server))

    await until(there, "as many connections", 5.0)


def test_a_second_calibration_finds_about_the_same() -> None:
    async def scenario(server: LocalServer) -> None:
        found = []
        while len(found) < 4:  # other programs on this machine may take its cores away during one of them
            found.append(await calibrate(server.url, settings=SHORT))
            rates = [one.capacity_bytes_per_s for one in found]
            if any(max(pair) < 2 * min(pair) for pair in pairwise(rates)):
                break
        else:
            pytest.fail(f"no two in a row within a factor of two: {rates}")
        for one in found:
            assert one.capacity_bytes_per_s > 10e6
            assert 0 < one.deliveries_per_s * SHORT.payload_bytes < one.peak_bytes_per_s
            assert 0 < one.latency_p99_s < 1
            assert 0 < one.cpu_share < 1.2
        assert await measuring_connections(server) == 0

    with_server(scenario)


def test_the_capacity_of_a_narrow_way_is_found() -> None:
    """A token bucket lets 8 MB/s through: the peak is that, and the capacity the paper's margin below it."""
    width = 8e6

    async def scenario(server: LocalServer) -> None:
        async with await Capacities.start([server.url], bytes_per_s=width) as capacities:
            for _ in range(3):  # other programs on this machine may take its cores away during one of them
                found = await calibrate(capacities.resolve(server.url), settings=CalibrationSettings(seconds=3))
                if found.capacity_bytes_per_s > 0.7 * width * HEADROOM:
                    break
        # On a busy machine a window of the measurement may see more than its share of what had waited.
        assert 0.7 * width < found.peak_bytes_per_s < 1.3 * width
        assert 0.7 * width * HEADROOM < found.capacity_bytes_per_s < 1.3 * width * HEADROOM
        assert found.limited_by is not LimitedBy.SERVER
        assert found.peak_cpu_share < 0.5

    with_server(scenario)


def test_no_subscriber_is_ever_further_behind_than_the_window() -> None:
    async def scenario(server: LocalServer) -> None:
        async with await Fanout.open(server.url, Credentials(), subscribers=3, payload_bytes=50) as fanout:
            behind = []
            for window in (2, 16, 64, 16):
                await fanout.keep(window, 0.1)
                for _ in range(20):
                    behind.append((window, fanout.on_its_way_bytes / fanout.push_bytes / 3))
                    await fanout.wait(0.002)
            assert all(0 <= messages <= 64 for _, messages in behind)
            assert all(messages <= 2 for window, messages in behind if window == 2)
            fanout.stop()
            await fanout.wait(0.2)
            assert fanout.on_its_way_bytes == 0
            assert fanout.received == 3 * fanout.sent
            sent = fanout.sent
            await fanout.pace(1000, 64, 0.5)
            assert 100 <= fanout.sent - sent <= 510  # never more than asked for; fewer on a busy machine
            assert all(0 < latency_s < 5 for latency_s in fanout.latencies_s)

    with_server(scenario)


def test_a_cancelled_calibration_closes_its_connections() -> None:
    async def scenario(server: LocalServer) -> None:
        task = asyncio.create_task(calibrate(server.url, settings=CalibrationSettings(seconds=30)))
        await until_connections(server, lambda count: count >= SHORT.subscribers)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await until_connections(server, lambda count: count == 0)

    with_server(scenario)


def test_a_server_that_dies_meanwhile_is_an_error() -> None:
    async def scenario(server: LocalServer) -> None:
        task = asyncio.create_task(calibrate(server.url, settings=CalibrationSettings(seconds=30)))
        await until_connections(server, lambda count: count >= SHORT.subscribers)
        server.kill()
        async with asyncio.timeout(5):
            with pytest.raises(ClusterError):
                await task

    with_server(scenario)


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("&other +subscribe +publish +ping +info +hello", "let this user"),
        ("&* +subscribe +ping +info +hello", "refused to publish"),
        ("&* +subscribe +publish +ping +hello", "let this user run INFO"),
    ],
)
def test_missing_rights_are_named(rights: str, said: str) -> None:
    async def scenario(server: LocalServer) -> None:
        made = await ask(server, "ACL", "SETUSER", "app", "on", ">secret", "resetchannels", "-@all", *rights.split())
        assert made == b"OK"
        with pytest.raises((Unavailable, ConnectFailed), match=said):
            await calibrate(server.url, Credentials("app", "secret"), SHORT)
        assert await measuring_connections(server) == 0

    with_server(scenario)


def test_a_wrong_password_and_a_server_that_is_not_there_are_told() -> None:
    async def scenario(server: LocalServer) -> None:
        with pytest.raises(ClusterError, match="user name and password in the URL"):
            await calibrate(server.url, Credentials("app", "wrong"), SHORT)
        with pytest.raises(ConnectFailed, match="cannot connect"):
            await calibrate("redis://127.0.0.1:1", settings=SHORT)

    with_server(scenario)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"seconds": 0.5}, "0.5 seconds: use 1 to 60"),
        ({"seconds": 61}, "use 1 to 60"),
        ({"payload_bytes": 0}, "0 payload bytes: use 1 to 1048576"),
        ({"subscribers": 2000}, "2000 subscribers: use 1 to 1000"),
    ],
)
def test_settings_have_limits(setting: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CalibrationSettings(**setting)  # type: ignore[arg-type]
