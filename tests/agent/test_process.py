"""Watching a server's process: each death is told once, also of a server that came back."""

from __future__ import annotations

import asyncio
import os

import pytest

from nearcast.agent.process import POLL_S, watch_server
from nearcast.errors import UsageError
from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live


async def nothing_told(deaths: asyncio.Queue[float]) -> None:
    await asyncio.sleep(4 * POLL_S)  # if the watcher told a death twice, it would have done so by then
    assert deaths.empty()


@pytest.mark.parametrize("system", ["with pidfd", "without pidfd"])
def test_every_death_is_told_once(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "without pidfd":
        monkeypatch.delattr(os, "pidfd_open", raising=False)

    async def scenario() -> None:
        deaths: asyncio.Queue[float] = asyncio.Queue()
        clock = asyncio.get_running_loop().time
        server = await LocalServer.start()
        port = server.port
        watching = asyncio.create_task(watch_server(server.pid, server.url, lambda: deaths.put_nowait(clock())))
        for _ in range(2):
            await nothing_told(deaths)  # while the watcher finds the pid of a new server, by asking it
            killed_s = clock()
            server.kill()
            assert await asyncio.wait_for(deaths.get(), 5) - killed_s < 1.0
            await server.stop()
            server = await LocalServer.start(port=port)
        await nothing_told(deaths)
        watching.cancel()
        await server.stop()

    asyncio.run(scenario())


def test_a_pid_of_another_process_is_refused() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            with pytest.raises(UsageError, match=f"is not the server at {server.url}, which is process {server.pid}"):
                await watch_server(os.getpid(), server.url, lambda: None)

    asyncio.run(scenario())
