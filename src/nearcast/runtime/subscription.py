"""A subscription as a program sees it: await it, iterate over it, leave it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from operator import length_hint
from typing import TYPE_CHECKING

from nearcast.core.mailbox import Mailbox
from nearcast.core.message import Event
from nearcast.errors import Closed, NearcastError, SlowSubscriber, TimedOut
from nearcast.runtime.deadlines import CLIENT_DEFAULT, Timeout
from nearcast.runtime.holding import Holding

if TYPE_CHECKING:
    from nearcast.runtime.client import Client


class Subscription:
    """Events of one or more topics.

    `await` it to be attached: nothing acknowledged from then on is missed. Iterating attaches it if need be.

        async for event in client.subscribe("t"):
            match event:
                case Message(payload=payload): ...
                case Gap() | Interrupted(): ...

    Close it, or use `async with`, to leave its topics at once. One that the program has dropped leaves them too.
    """

    def __init__(
        self,
        client: Client,
        topics: tuple[bytes, ...],
        *,
        pattern: bool,
        mailbox: Mailbox,
        timeout_s: Timeout = CLIENT_DEFAULT,
    ) -> None:
        self._holding = Holding(client.consumers, topics, mailbox, pattern=pattern)
        self._client = client
        self._timeout_s = timeout_s
        self._topics = topics
        self._mailbox = mailbox
        self._attaching: asyncio.Future[object] | None = None
        self._awaiting = 0  # tasks that wait until it is attached
        self._used = False  # some task has seen it attached
        self._ready: Iterator[Event] = iter(())

    def __del__(self) -> None:
        self._holding.dropped()

    @property
    def dropped(self) -> int:
        """Messages dropped because the program did not keep up; each is in a Gap."""
        return self._mailbox.dropped

    # --- attaching

    def __await__(self) -> Generator[object, None, Subscription]:
        yield from self._enter().__await__()
        return self

    async def __aenter__(self) -> Subscription:
        await self._enter()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    async def _enter(self) -> None:
        """Attach for a caller who gets nothing to close if it is cancelled: then nothing is left behind."""
        try:
            await self._attach()
        except asyncio.CancelledError:
            if not self._awaiting and not self._used:
                self._let_go()
            raise

    async def _attach(self) -> None:
        """Wait until attached. After a failure nothing is held, and it can be tried again."""
        if self._attaching is None:
            if self._mailbox.ended:
                raise Closed("the subscription was closed")
            self._attaching = self._holding.attach()
        attaching = self._attaching
        if self._used:
            return
        self._awaiting += 1
        try:
            async with self._client.attaching(self._topics, self._timeout_s):
                await asyncio.shield(attaching)
            self._used = True
        except TimedOut:
            if self._attaching is attaching and self._awaiting == 1:
                self._let_go()  # else to those who still wait
            raise
        except NearcastError:
            if self._attaching is attaching:
                self._let_go()
            raise
        finally:
            self._awaiting -= 1

    def _let_go(self) -> None:
        self._attaching = None
        self._holding.let_go()

    def close(self) -> None:
        """Leave all topics. Events that wait are still there for `take`."""
        self._holding.close()

    # --- reading

    def take(self) -> list[Event]:
        """Everything that has come, without waiting. Raises SlowSubscriber as `get` does."""
        events = [*self._ready, *self._mailbox.take()]
        self._client.consumers.taken()
        if not events:
            self._check_in_time()
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
        """Wait until events are in `_ready`, whichever reader puts them there; False when there will be no more."""
        while not length_hint(self._ready):
            if len(self._mailbox):
                self._ready = iter(self._mailbox.take())
                self._client.consumers.taken()
                break
            self._check_in_time()
            if self._mailbox.ended:
                return False
            await self._holding.news()
        return True

    def _check_in_time(self) -> None:
        if self._mailbox.overflowed:
            self._holding.detach()
            raise SlowSubscriber(
                "the program read too slowly and the subscription was ended: read faster, raise "
                "the mailbox limit, or choose overflow='drop_oldest'"
            )
