"""A subscription as a program sees it, and how a client attaches, wakes and releases it.

A program awaits a `Subscription`, iterates over it, and leaves it. `Consumers` are the readers of a client's mailboxes.
A `SubscriptionConsumer` is the one of a subscription: all that the client knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import suppress
from operator import length_hint
from typing import TYPE_CHECKING, Any, Protocol

from nearcast.core.client.machine import Client as Machine
from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.model.message import Event
from nearcast.errors import Closed, NearcastError, SlowSubscriber, TimedOut
from nearcast.runtime.calls import CLIENT_DEFAULT, Timeout
from nearcast.runtime.driver import Driver

if TYPE_CHECKING:
    from nearcast.runtime.client import Client


# --- the readers of a client


class Consumer(Protocol):
    """Reads a mailbox."""

    def close(self) -> None: ...

    def wake(self) -> None: ...


class Attaching:
    """Attaching several topics, as one future: done with the last of them, failed with the first that fails."""

    __slots__ = ("_left", "future")

    def __init__(self, topics: int) -> None:
        self._left = topics
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.future.add_done_callback(_looked_at)

    def attached(self) -> None:
        self._left -= 1
        if not self._left and not self.future.done():
            self.future.set_result(None)

    def failed(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Consumers:
    """The readers of a client's mailboxes: it attaches them, wakes them and releases them.

    A mailbox whose policy is BLOCK stops the sockets while it is full, but only for T_block: fences must get through.
    """

    def __init__(self, machine: Machine) -> None:
        self.driver: Driver | None = None  # before the client is opened
        self._machine = machine
        self._of: dict[Mailbox, Consumer] = {}
        self._blocked_until_s: float | None = None

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, mailbox: Mailbox) -> bool:
        return mailbox in self._of

    def attach(
        self, names: tuple[bytes, ...], mailbox: Mailbox, consumer: Consumer, *, pattern: bool
    ) -> asyncio.Future[object]:
        """Begin to attach; if even that fails, leave nothing behind."""
        driver = self.driver
        if driver is None:
            raise not_open()
        driver.check_loop()
        known = mailbox in self._of
        self._of[mailbox] = consumer
        attach = self._machine.psubscribe if pattern else self._machine.subscribe
        attaching, now_s = Attaching(len(names)), driver.now()
        try:
            for name in names:
                attach(name, mailbox, attaching, now_s)
        except BaseException:
            self.detach(names, mailbox, pattern=pattern)
            if not known:
                self.release(mailbox)
            raise
        driver.settle()
        return attaching.future

    def detach(self, names: tuple[bytes, ...], mailbox: Mailbox, *, pattern: bool) -> None:
        if mailbox.ended:
            self.release(mailbox)
        if self.driver is None:
            return
        detach = self._machine.punsubscribe if pattern else self._machine.unsubscribe
        for name in names:
            detach(name, mailbox, self.driver.now())
        self.driver.settle()

    def release(self, mailbox: Mailbox) -> None:
        """Put nothing into the mailbox from now on."""
        self._of.pop(mailbox, None)

    def close(self) -> None:
        for consumer in list(self._of.values()):
            consumer.close()

    # --- waking, blocking

    def wake(self, mailboxes: Iterable[Mailbox]) -> None:
        """Something was put into these mailboxes."""
        for mailbox in mailboxes:
            consumer = self._of.get(mailbox)
            if consumer is None:
                continue
            consumer.wake()
            if mailbox.overflow is Overflow.BLOCK and mailbox.full and self._blocked_until_s is None and self.driver:
                self._blocked_until_s = self.driver.now() + self._machine.timing.block_s
                self.driver.pause_reading(True)

    def taken(self) -> None:
        """A mailbox was emptied: if it had stopped the sockets, resume reading."""
        if self._blocked_until_s is not None and not any(box.full for box in self._of):
            self._unblock()

    def tick(self) -> None:
        if self._blocked_until_s is not None and self.driver and self.driver.now() >= self._blocked_until_s:
            self._unblock()

    def _unblock(self) -> None:
        self._blocked_until_s = None
        if self.driver is not None:
            self.driver.pause_reading(False)


def not_open() -> Closed:
    return Closed("this client is not connected: use `async with nearcast.connect(...)` or await it first")


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Retrieve the error, because the waiter may have left, and asyncio would log a failure that is never awaited."""
    if not future.cancelled():
        future.exception()


# --- what the client knows of a subscription


class SubscriptionConsumer:
    """What the client knows of a subscription: its topics, and the tasks that wait for their events.

    The client must not know the subscription itself. Otherwise one that its program has dropped without closing it, for
    example by leaving a loop over it, would stay forever. A task that waits for events keeps its subscription alive,
    and its future keeps the task alive.
    """

    def __init__(self, consumers: Consumers, topics: tuple[bytes, ...], mailbox: Mailbox, *, pattern: bool) -> None:
        self._consumers = consumers
        self._topics = topics
        self._mailbox = mailbox
        self._pattern = pattern
        self._readers: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None  # known once it was attached

    def attach(self) -> asyncio.Future[object]:
        self._loop = asyncio.get_running_loop()
        return self._consumers.attach(self._topics, self._mailbox, self, pattern=self._pattern)

    def detach(self) -> None:
        self._consumers.detach(self._topics, self._mailbox, pattern=self._pattern)

    def let_go(self) -> None:
        """Detach; it can be attached again."""
        self.detach()
        self._consumers.release(self._mailbox)

    def close(self) -> None:
        self._mailbox.ended = True
        if self._mailbox in self._consumers:  # it may have ended before, by its policy at its limit
            self.detach()
        self.wake()

    def dropped(self) -> None:
        """The program no longer has the subscription. Called by the garbage collector, in any thread, at any moment."""
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


# --- the subscription


class Subscription:
    """Events of one or more topics.

    `await` it to be attached: nothing acknowledged after that is missed. Iterating attaches it if needed.

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
        self._consumer = SubscriptionConsumer(client.consumers, topics, mailbox, pattern=pattern)
        self._client = client
        self._timeout_s = timeout_s
        self._topics = topics
        self._mailbox = mailbox
        self._attaching: asyncio.Future[object] | None = None
        self._awaiting = 0  # tasks that wait until it is attached
        self._used = False  # some task has seen it attached
        self._ready: Iterator[Event] = iter(())

    def __del__(self) -> None:
        self._consumer.dropped()

    @property
    def dropped(self) -> int:
        """Messages dropped because the program did not keep up; each one is in a Gap."""
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
        """Attach for a caller that has nothing to close yet: if it is cancelled, nothing is left behind."""
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
            self._attaching = self._consumer.attach()
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
                self._let_go()  # otherwise it belongs to the tasks that still wait
            raise
        except NearcastError:
            if self._attaching is attaching:
                self._let_go()
            raise
        finally:
            self._awaiting -= 1

    def _let_go(self) -> None:
        self._attaching = None
        self._consumer.let_go()

    def close(self) -> None:
        """Leave all topics. Events that wait are still there for `take`."""
        self._consumer.close()

    # --- reading

    def take(self) -> list[Event]:
        """All waiting events, at once. Raises SlowSubscriber as `get` does."""
        events = [*self._ready, *self._mailbox.take()]
        self._client.consumers.taken()
        if not events:
            self._check_in_time()
        return events

    async def get(self) -> Event:
        """The next event. Raises Closed at the end, SlowSubscriber if the mailbox overflowed and its policy says so."""
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
            await self._consumer.news()
        return True

    def _check_in_time(self) -> None:
        if self._mailbox.overflowed:
            self._consumer.detach()
            raise SlowSubscriber(
                "the program read too slowly and the subscription was ended: read faster, raise "
                "the mailbox limit, or choose overflow='drop_oldest'"
            )
