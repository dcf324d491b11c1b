"""Watching a server's process from beside it, so that its death is known at once and for certain.

A lost connection may be the network; an ended process is an ended process. Only then may the controller give a broker
up without waiting for its lease to end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from nearcast.errors import ClusterError, UsageError
from nearcast.runtime.connection import parse_url
from nearcast.runtime.requester import Requester

POLL_S = 0.05


async def watch_server(pid: int, url: str, on_end: Callable[[], None]) -> None:
    """Call `on_end` each time the server's process ends. A server started anew is found by asking it for its pid."""
    running = await _pid_of(url)
    if running not in (None, pid):
        address, _ = parse_url(url)
        raise UsageError(f"process {pid} is not the server at {address.url}, which is process {running}: give that")
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
    # Unlike kill(pid, 0), this also tells when the process has ended and its parent has not looked yet.
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
    """What the server says its process is; None if it does not answer."""
    requester = Requester(url)
    try:
        reply = await requester.ask("INFO", "server")
    except ClusterError:
        return None
    finally:
        await requester.close()
    lines = reply.decode().splitlines() if isinstance(reply, bytes) else []
    return next((int(line.partition(":")[2]) for line in lines if line.startswith("process_id:")), None)
