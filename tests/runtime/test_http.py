"""Requests whose callers stop waiting cost nothing: the next ones are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random

from nearcast.runtime.http import HttpClient
from nearcast.testing.waiting import until

AT_ONCE = 4
STEP_S = 0.002


class SlowServer:
    """Answers every request after a moment."""

    def __init__(self) -> None:
        self.asked = 0
        self.connections = 0
        self._rng = Random(1)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.asked += 1
                await asyncio.sleep(self._rng.random() * STEP_S)  # the moment
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        self.connections -= 1
        writer.close()


def test_callers_that_stop_waiting_leave_no_connection_behind() -> None:
    async def scenario() -> None:
        slow, rng = SlowServer(), Random(2)
        async with slow.running() as url:
            http = HttpClient(AT_ONCE, timeout=5.0)
            for _ in range(600):
                waiting = [asyncio.create_task(http.request("GET", url)) for _ in range(rng.randrange(1, 3))]
                await asyncio.sleep(rng.random() * STEP_S)  # they stop at any step of their work
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
            answers = await asyncio.gather(*(http.request("GET", url) for _ in range(2 * AT_ONCE)))
            assert {answer.text for answer in answers} == {"ok"}
            assert slow.connections <= AT_ONCE
            await http.close()
            await until(lambda: slow.connections == 0)

    asyncio.run(scenario())


def test_a_caller_that_stops_waiting_for_its_turn_asks_nothing() -> None:
    async def scenario() -> None:
        slow = SlowServer()
        async with slow.running() as url:
            http = HttpClient(1, timeout=5.0)
            first, second = (asyncio.create_task(http.request("GET", url)) for _ in range(2))
            await asyncio.sleep(0)  # both begin
            second.cancel()
            await first
            await http.request("GET", url)
            assert slow.asked == 2
            await http.close()

    asyncio.run(scenario())


def test_closing_ends_what_is_still_asked() -> None:
    async def scenario() -> None:
        slow = SlowServer()
        async with slow.running() as url:
            http = HttpClient(1, timeout=5.0)
            asking = asyncio.create_task(http.request("GET", url))
            await until(lambda: slow.connections == 1)
            await http.close()
            await asyncio.wait([asking], timeout=1.0)
            assert asking.done()

    asyncio.run(scenario())
