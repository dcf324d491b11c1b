"""The driver: what a machine did not expect costs the connection it came from, and nothing else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nearcast.core.wire.effects import Connect, Effect
from nearcast.runtime.driver import Driver
from nearcast.runtime.workers import Troubles

TEST_S = 10.0


class Surprise(Exception):
    """Of no kind that anybody expects: only who takes every Exception takes this one."""


class Touchy:
    """A machine with two connections to one server, which fails at what comes on the first."""

    def __init__(self, url: str) -> None:
        self.effects: list[Effect] = [Connect("touchy", url), Connect("other", url)]
        self.wall_offset_s = 0.0
        self.open: set[str] = set()
        self.reasons: list[str] = []
        self.heard = asyncio.Event()
        self.ticks = 0

    def connected(self, name: str, now_s: float) -> None:
        self.open.add(name)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        if name == "touchy":
            raise Surprise("what is this?")
        if self.reasons:  # answered after the first was lost
            self.heard.set()

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self.open.discard(name)
        self.reasons.append(f"{name}: {reason}")

    def tick(self, now_s: float) -> None:
        self.ticks += 1

    def outgoing(self) -> list[tuple[str, bytes]]:
        return [(name, b"?") for name in sorted(self.open)] if self.ticks else []


def test_an_error_at_what_came_costs_that_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        machine = Touchy(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        troubles = Troubles(logging.getLogger("test.driver"))
        driver = Driver(machine, lambda: None, tick_s=0.01, troubles=troubles)
        driver.start()
        try:
            async with asyncio.timeout(TEST_S):
                await machine.heard.wait()
        finally:
            await driver.stop()
            server.close()
        assert machine.open == {"other"}
        assert machine.reasons == ["touchy: an unexpected error: Surprise('what is this?')"]
        assert troubles.of("reading from a server").startswith("failed 1 times, last: Surprise")

    asyncio.run(scenario())
    assert "reading from a server failed, and continues" in caplog.text
