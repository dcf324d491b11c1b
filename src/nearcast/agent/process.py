"""The agent process: one agent machine beside one server, whose process it watches.

Watching the server's process from beside it shows the server's death at once and for certain. A lost connection may be
the network; an ended process is an ended process. Only then may the controller give a broker up without waiting for its
lease to end.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable

from nearcast.core.agent.machine import Agent as Machine
from nearcast.core.agent.machine import Identity
from nearcast.core.model.settings import DEFAULT_TIMING, Timing
from nearcast.errors import ClusterError, Misplaced, UsageError
from nearcast.runtime.driver import Driver, parse_url
from nearcast.runtime.requester import Requester

# --- the process


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
        """Called by the watcher of the server's process when it is gone."""
        self._machine.server_ended()

    @property
    def machine(self) -> Machine:
        return self._machine

    @property
    def problem(self) -> str:
        """What keeps the agent from working, in words; empty if nothing does."""
        return self._machine.problem or (self._driver.troubles.problem if self._driver is not None else "")

    async def ended(self) -> None:
        """Raise `Misplaced` when another agent holds this one's identity; this one has stopped working then."""
        await self._refused.wait()
        raise Misplaced(self._machine.refused)

    def _after(self) -> None:
        if self._driver is not None:
            self._machine.wall_offset_s = self._driver.wall_offset_s()
        if self._machine.refused:
            self._refused.set()


# --- watching the server


POLL_S = 0.05


async def watch_server(pid: int, url: str, on_end: Callable[[], None]) -> None:
    """Call `on_end` each time the server's process ends. A restarted server is found by asking it for its pid."""
    running = await _pid_of(url)
    if running not in (None, pid):
        address, _ = parse_url(url)
        raise UsageError(f"process {pid} is not the server at {address.url}, which is process {running}: give that one")
    while True:
        await _end_of(pid)
        running = await _pid_of(url)
        if running is None:  # else another server answers there already, and the agent finds that out itself
            on_end()
        while running is None:
            await asyncio.sleep(POLL_S)
            running = await _pid_of(url)
        pid = running


async def _end_of(pid: int) -> None:
    """Return when the process has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or a kernel before 5.3
        await _polled_end_of(pid)
        return
    # Unlike kill(pid, 0), this also notices a process that has ended but whose parent has not collected it yet.
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


async def _polled_end_of(pid: int) -> None:
    while True:
        if not _exists(pid):
            return
        await asyncio.sleep(POLL_S)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def _pid_of(url: str) -> int | None:
    """The pid that the server reports; None if it does not answer."""
    requester = Requester(url)
    try:
        reply = await requester.ask("INFO", "server")
    except ClusterError:
        return None
    finally:
        await requester.close()
    lines = reply.decode().splitlines() if isinstance(reply, bytes) else []
    return next((int(line.partition(":")[2]) for line in lines if line.startswith("process_id:")), None)
