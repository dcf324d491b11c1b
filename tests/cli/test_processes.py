"""`nearcast agent` and `nearcast controller` on servers with a password, and servers that are no cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.core.wire.views import BrokerView
from nearcast.errors import ClusterError, Misplaced
from nearcast.runtime.console import Console
from nearcast.runtime.controller import check_store
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

PASSWORD = ("--requirepass", "secret")


def with_password(url: str, password: str = "secret") -> str:
    return url.replace("//", f"//:{password}@")


@contextlib.asynccontextmanager
async def nearcast(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "nearcast", *arguments, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def url_of_member(url: str) -> str:
    """Where broker b1 is said to be, once it is a member."""
    views: list[BrokerView] = []

    async def member() -> bool:
        with contextlib.suppress(ClusterError):  # nobody leads yet
            async with Console(url) as console:
                brokers = (await console.state(timeout_s=0.5)).brokers
            views[:] = [view for name, view in brokers.items() if name == "b1" and view.state == "member"]
        return bool(views)

    await until(member, "b1 is a member", 15.0)
    return views[0].url


def test_a_cluster_with_passwords_tells_them_to_nobody() -> None:
    async def scenario() -> None:
        async with (
            await LocalServer.start(extra=PASSWORD) as store,
            await LocalServer.start(extra=PASSWORD) as server,
            nearcast("controller", "--store", with_password(store.url)) as controller,
            nearcast(
                *("agent", "--broker", "b1", "--server", with_password(server.url)),
                *("--store", with_password(store.url), "--server-pid", str(server.pid)),
            ) as agent,
        ):
            # Clients and consoles are told the plain URL; the console uses the broker's password for the store too.
            assert await url_of_member(with_password(store.url)) == server.url
            assert await url_of_member(with_password(server.url)) == server.url
            for process in (controller, agent):
                process.terminate()
                _, written = await asyncio.wait_for(process.communicate(), 5)
                assert process.returncode == 0
                assert b"secret" not in written
                assert b"Traceback" not in written

    asyncio.run(scenario())


def test_an_agent_says_what_keeps_it_from_working() -> None:
    async def scenario() -> None:
        async with await LocalServer.start(extra=PASSWORD) as server:
            wrong = with_password(server.url, "wrong")
            async with nearcast("agent", "--broker", "b1", "--server", wrong, "--store", wrong) as agent:
                assert agent.stderr is not None
                async with asyncio.timeout(10):
                    while b"WRONGPASS" not in await agent.stderr.readline():
                        pass

    asyncio.run(scenario())


def test_an_agent_whose_gateway_waits_for_the_store_says_what_is_wrong_and_can_be_stopped() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            agent = ("agent", "--broker", "b1", "--server", server.url, "--store", "redis://127.0.0.1:1")
            gateway = ("--gateway", "127.0.0.1:0")
            async with nearcast(*agent, *gateway, "--server-pid", str(os.getpid())) as process:
                _, written = await asyncio.wait_for(process.communicate(), 10)
                assert process.returncode == 2
                assert b"is not the server at" in written
            async with nearcast(*agent, *gateway) as process:
                assert process.stderr is not None
                async with asyncio.timeout(10):
                    while b"WARNING bus redis://127.0.0.1:1: cannot connect" not in await process.stderr.readline():
                        pass
                process.terminate()
                assert await asyncio.wait_for(process.wait(), 10) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "password", "said"),
    [
        ((), "", "belongs to no cluster: give a server that has an agent, or the store's URL"),
        (PASSWORD, "", "give the user name and password in the URL"),
        (PASSWORD, "wrong", "give the user name and password in the URL"),
        (PASSWORD, "secret", "belongs to no cluster"),
    ],
)
def test_a_server_that_does_not_help_exits_with_1(options: tuple[str, ...], password: str, said: str) -> None:
    async def scenario() -> None:
        async with await LocalServer.start(extra=options) as server:
            url = with_password(server.url, password) if password else server.url
            result = await asyncio.to_thread(CliRunner().invoke, app, ["topic", "show", "--url", url])
            assert (result.exit_code, result.stdout) == (1, "")
            assert said in result.stderr
            assert len(result.stderr.splitlines()) == 1
            assert not password or password not in result.stderr

    asyncio.run(scenario())


async def until_there(requester: Requester, key: str) -> None:
    await until(lambda: requester.ask("EXISTS", key), key, 15.0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_controller_that_is_told_to_stop_gives_its_lead_away(number: signal.Signals) -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as store, nearcast("controller", "--store", store.url) as controller:
            requester = Requester(store.url)
            await until_there(requester, "nc:store:leader")
            controller.send_signal(number)
            await asyncio.wait_for(controller.communicate(), 5)
            assert controller.returncode == 0
            assert await requester.ask("EXISTS", "nc:store:leader") == 0
            assert await requester.ask("GET", "nc:store:term") == b"1", "terms are never given out twice"
            await requester.close()

    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def a_cluster() -> AsyncIterator[tuple[LocalServer, LocalServer]]:
    """Its store and the server of its only broker, which is a member."""
    async with (
        await LocalServer.start() as store,
        await LocalServer.start() as server,
        nearcast("controller", "--store", store.url),
        nearcast("agent", "--broker", "b1", "--server", server.url, "--store", store.url),
    ):
        await url_of_member(store.url)
        yield store, server


def test_a_controller_is_not_led_to_a_brokers_server() -> None:
    async def scenario() -> None:
        async with a_cluster() as (store, server):
            async with nearcast("controller", "--store", server.url) as lost:
                _, written = await asyncio.wait_for(lost.communicate(), 15)
            said = written.decode().splitlines()
            assert lost.returncode == 2
            assert said == [
                f"error: --store {server.url} is the server of broker b1, not a store: the store of its cluster is"
                f" {store.url}. To make this server the store, stop its agent and empty it first (FLUSHALL)"
            ]

    asyncio.run(scenario())


def test_a_broker_that_nobody_has_admitted_is_no_store_either() -> None:
    async def scenario() -> None:
        async with (
            await LocalServer.start() as server,
            nearcast("agent", "--broker", "b1", "--server", server.url, "--store", "redis://127.0.0.1:1"),
        ):
            requester = Requester(server.url)
            await until_there(requester, "nc:agent")
            await requester.close()
            with pytest.raises(Misplaced, match="the server of broker b1, not a store: give the URL of the store"):
                await check_store(server.url)

    asyncio.run(scenario())


def test_a_server_that_has_been_both_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            requester = Requester(server.url)
            await check_store(server.url)
            assert caplog.text == ""
            await requester.ask("SET", "nc:ready", "b1")
            await requester.ask("SET", "nc:store:term", 3)
            await check_store(server.url)
            await requester.close()

    asyncio.run(scenario())
    assert "is the server of a broker, and also a store: give the URL of the store" in caplog.text


def test_a_controller_waits_for_its_store() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as before:
            port = before.port
        async with nearcast("controller", "--store", f"redis://127.0.0.1:{port}") as controller:
            assert controller.stderr is not None
            assert b"the store does not answer" in await asyncio.wait_for(controller.stderr.readline(), 15)
            async with await LocalServer.start(port=port) as store:
                requester = Requester(store.url)
                await until_there(requester, "nc:store:leader")
                await requester.close()

    asyncio.run(scenario())
