"""The agent process: one agent machine beside one server."""

from __future__ import annotations

import asyncio
import random

from nearcast.core.agent import Agent as Machine
from nearcast.core.agent import Identity
from nearcast.core.settings import DEFAULT_TIMING, Timing
from nearcast.errors import Misplaced
from nearcast.runtime.connection import parse_url
from nearcast.runtime.driver import Driver


class Agent:
    """Runs until stopped. `server_url` is where the agent itself reaches the server; clients use `identity.url`."""

    def __init__(self, identity: Identity, server_url: str, store_url: str, *, timing: Timing = DEFAULT_TIMING) -> None:
        server, credentials = parse_url(server_url)
        store, store_credentials = parse_url(store_url)
        self._machine = Machine(
            identity,
            store.url,
            random.Random(),
            server_url=server.url,
            credentials=credentials,
            store_credentials=store_credentials,
            timing=timing,
        )
        self._driver: Driver | None = None
        self._refused = asyncio.Event()

    async def start(self) -> None:
        self._driver = Driver(self._machine, self._after)
        self._driver.start()

    async def stop(self) -> None:
        if self._driver is not None:
            await self._driver.stop()

    def server_ended(self) -> None:
        """The server's process is gone; whoever watches it says so."""
        self._machine.server_ended()

    @property
    def problem(self) -> str:
        """What keeps the agent from working, in words; empty if nothing does."""
        return self._machine.problem or (self._driver.troubles.problem if self._driver is not None else "")

    async def until_refused(self) -> None:
        """Raise `Misplaced` when another agent is what this one says it is; it has stopped working then."""
        await self._refused.wait()
        raise Misplaced(self._machine.refused)

    def _after(self) -> None:
        if self._driver is not None:
            self._machine.wall_offset_s = self._driver.wall_offset_s()
        if self._machine.refused:
            self._refused.set()
