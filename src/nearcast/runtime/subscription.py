"""A subscription as a program sees it: await it, iterate over it, leave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING

from nearcast.core.mailbox import Mailbox
from nearcast.core.message import Event
from nearcast.errors import Closed, SlowSubscriber

if TYPE_CHECKING:
    from nearcast.runtime.client import Client


class Subscription:
    """Events of one or more topics.

    `await` it to be attached: nothing acknowledged from then on is missed. Iterating attaches it if need be.

        async for event in client.subscribe("t"):
            match event:
                case Message(payload=payload): ...
                case Gap() | Interrupted(): ...
    """

    def __init__(self, client: Client, topics: tuple[bytes, ...], *, pattern: bool, mailbox: Mailbox) -> None:
        self._client = client
        self._topics = topics
        self._pattern = pattern
        self._mailbox = mailbox
        self._attaching: asyncio.Future[None] | None = None
        self._ready: Iterator[Event] = iter(())
        self._waiter: asyncio.Future[None] | None = None

    @property
    def dropped(self) -> int:
        """Messages dropped because the program did not keep up; each is in a Gap."""
        return self._mailbox.dropped

    # --- attaching

    def __await__(self) -> Generator[object, None, Subscription]:
        yield from self._attach().__await__()
        return self

    async def __aenter__(self) -> Subscription:
        await self._attach()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    async def _attach(self) -> None:
        if self._attaching is None:
            self._attaching = self._client._attach(self._topics, self._mailbox, self, pattern=self._pattern)
        await asyncio.shield(self._attaching)

    def close(self) -> None:
        """Leave all topics. Events that wait are still there for `take`."""
        if not self._mailbox.ended:
            self._mailbox.ended = True
            self._client._detach(self._topics, self._mailbox, pattern=self._pattern)
        self._wake()

    # --- reading

    def take(self) -> list[Event]:
        """Everything that has come, without waiting."""
        events = [*self._ready, *self._mailbox.take()]
        self._client._taken(self._mailbox)
        return events

    async def get(self) -> Event:
        """The next event. Raises Closed at the end, SlowSubscriber if the mailbox overflowed and so says its policy."""
        await self._attach()
        while True:
            for event in self._ready:
                return event
            if not await self._more():
                raise Closed("the subscription was closed")

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        await self._attach()
        while True:
            for event in self._ready:  # kept on the object: leaving the loop loses nothing
                yield event
            if not await self._more():
                return

    async def _more(self) -> bool:
        """Wait until events are in `_ready`; False when there will be no more."""
        while not len(self._mailbox):
            if self._mailbox.overflowed:
                self._client._detach(self._topics, self._mailbox, pattern=self._pattern)
                raise SlowSubscriber(
                    "the program read too slowly and the subscription was ended: read faster, raise "
                    "the mailbox limit, or choose overflow='drop_oldest'"
                )
            if self._mailbox.ended:
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._ready = iter(self._mailbox.take())
        self._client._taken(self._mailbox)
        return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
