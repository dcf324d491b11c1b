"""Long polls that wait for a commit: woken from any thread, counted, and ended when the process stops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from nearcast.pipeline.catalog.refusals import CatalogFull


class Commits:
    """Tells waiting coroutines that something was committed, on whatever event loop they run."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._polls: set[Poll] = set()
        self._closed = False

    @contextlib.contextmanager
    def poll(self) -> Iterator[Poll]:
        """Open it before the first look at the catalogue: a commit after that look wakes it."""
        with self._lock:
            if len(self._polls) >= self._most:
                raise CatalogFull(f"{self._most} long polls are open", "ask again later, or raise the limit")
            poll = Poll()
            self._polls.add(poll)
            if self._closed:
                poll.end()
        try:
            yield poll
        finally:
            with self._lock:
                self._polls.discard(poll)

    def happened(self) -> None:
        with self._lock:
            for poll in self._polls:
                poll.wake()

    def close(self) -> None:
        """No poll waits from now on."""
        with self._lock:
            self._closed = True
            for poll in self._polls:
                poll.end()


class Poll:
    """One waiting call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._ended = False

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended, and so has whoever waited
            self._loop.call_soon_threadsafe(self._event.set)

    def end(self) -> None:
        self._ended = True
        self.wake()

    async def wait(self, deadline_s: float) -> bool:
        """Until the next commit; False at the deadline (of the loop's clock), or when the process stops."""
        if self._ended:
            return False
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return not self._ended
