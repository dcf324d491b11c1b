"""A holding: what a client knows of a subscription, its topics and who waits for their events.

The client must not know the subscription itself, or one that its program has dropped without closing it, as by leaving
a loop over it, would stay for ever. A task that waits for events keeps its subscription, and is kept by its future.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from nearcast.core.mailbox import Mailbox
from nearcast.runtime.consumers import Consumers


class Holding:
    def __init__(self, consumers: Consumers, topics: tuple[bytes, ...], mailbox: Mailbox, *, pattern: bool) -> None:
        self._consumers = consumers
        self._topics = topics
        self._mailbox = mailbox
        self._pattern = pattern
        self._readers: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # once it was attached

    def attach(self) -> asyncio.Future[object]:
        self._loop = asyncio.get_running_loop()
        return self._consumers.attach(self._topics, self._mailbox, self, pattern=self._pattern)

    def detach(self) -> None:
        self._consumers.detach(self._topics, self._mailbox, pattern=self._pattern)

    def let_go(self) -> None:
        """Detach, and be able to attach again."""
        self.detach()
        self._consumers.release(self._mailbox)

    def close(self) -> None:
        self._mailbox.ended = True
        if self._mailbox in self._consumers:  # it may have ended before, by its policy at its limit
            self.detach()
        self.wake()

    def dropped(self) -> None:
        """Nobody has the subscription any more. Called by the garbage collector, in any thread and at any moment."""
        if self._loop is not None and self._mailbox in self._consumers:
            with suppress(RuntimeError):  # the loop is closed, and the client ended with it
                self._loop.call_soon_threadsafe(self.close)

    async def news(self) -> None:
        """Wait until something has happened."""
        reader = asyncio.get_running_loop().create_future()
        self._readers.append(reader)
        try:
            await reader
        finally:
            if reader in self._readers:
                self._readers.remove(reader)

    def wake(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
