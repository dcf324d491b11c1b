"""The agent process as a list of parts, and how it is put together from its settings.

Every part has the same four members, so what runs beside a server is a list: the agent itself, a watch on the server's
process, a gateway. They start in that order and stop in the opposite one. The first part that ends ends the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from nearcast.agent.distances import Distances, ProbeOptions
from nearcast.agent.process import Agent, watch_server
from nearcast.core.agent.machine import Identity
from nearcast.runtime.workers import until_one_ends

if TYPE_CHECKING:
    from nearcast.agent.gateway import GatewayOptions


class Part(Protocol):
    """Something the agent process does, from `start` to `stop`."""

    @property
    def problem(self) -> str:
        """What keeps it from working, in words; empty if nothing does."""
        ...

    async def start(self) -> None: ...

    async def ended(self) -> None:
        """Return, or raise the reason, when the part cannot go on; most never do. May be cancelled and called again."""

    async def stop(self) -> None:
        """Also called for a part whose `start` failed."""


class Task:
    """A part that is a single coroutine, which runs until it is cancelled."""

    def __init__(self, run: Callable[[], Coroutine[Any, Any, None]], problem: Callable[[], str] = str) -> None:
        self._run = run
        self._problem = problem
        self._task: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        return self._problem()

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class Parts:
    """All parts of one agent process; itself a part."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._started: list[Part] = []

    @property
    def problem(self) -> str:
        """The problems of all parts."""
        return "; ".join(part.problem for part in self._parts if part.problem)

    async def start(self) -> None:
        """Start all. Raises the reason if a part fails meanwhile: a later one may wait for the store, for hours."""
        for part in self._parts:
            earlier = tuple(self._started)
            self._started.append(part)
            await until_one_ends(part.start(), *(other.ended() for other in earlier))

    async def ended(self) -> None:
        await until_one_ends(*(part.ended() for part in self._parts))

    async def stop(self) -> None:
        """Stop all, the last started first. A part that fails to stop does not keep the others running."""
        failures = []
        while self._started:
            try:
                await self._started.pop().stop()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What runs beside one server."""

    identity: Identity
    server_url: str  # where the agent reaches the server; clients use `identity.url`
    store_url: str
    server_pid: int | None = None  # to notice the server's end at once
    gateway: GatewayOptions | None = None
    probes: ProbeOptions | None = None  # where it answers probes; None: it measures no distances


def assemble(settings: AgentSettings) -> Parts:
    """The parts of an agent process, not started yet. A gateway listens already. Raises UsageError."""
    agent = Agent(settings.identity, settings.server_url, settings.store_url)
    parts: list[Part] = [agent]
    if settings.server_pid is not None:
        pid, url = settings.server_pid, settings.server_url
        parts.append(Task(lambda: watch_server(pid, url, agent.server_ended)))
    if settings.probes is not None:
        parts.append(Distances(agent.machine, settings.probes))
    if settings.gateway is not None:
        from nearcast.agent.gateway import open_gateway  # its packages are an extra

        parts.append(open_gateway(settings.gateway, settings.identity, settings.server_url, settings.store_url))
    return Parts(parts)
