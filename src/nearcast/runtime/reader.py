"""A reader of a log as a program sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nearcast.core.client.log_reader import READY_MAX, LogReader, Start
from nearcast.core.model.message import Kept
from nearcast.errors import Closed, UsageError
from nearcast.runtime.calls import CLIENT_DEFAULT, Timeout
from nearcast.runtime.subscription import not_open

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from nearcast.core.client.machine import Client as Machine
    from nearcast.runtime.driver import Driver

Within = Callable[[Timeout, str, Callable[[], str]], "AbstractAsyncContextManager[None]"]
_ROOM_AT = (0, READY_MAX // 2)  # messages that are left when the next ones are asked for

_TIME_MAX_S = datetime.max.replace(tzinfo=UTC).timestamp()  # a larger number is none of seconds: maybe of milliseconds
From = str | float | datetime  # "earliest", "latest", or a time (seconds since the Unix epoch)


class Readings:
    """The readers of one client: it opens them, wakes them and closes them."""

    def __init__(self, machine: Machine, within: Within) -> None:
        self.driver: Driver | None = None  # before the client is opened
        self.within = within
        self._machine = machine
        self._of: dict[LogReader, asyncio.Event] = {}  # set when there is news
        self._loop: asyncio.AbstractEventLoop | None = None  # known once there was a reader

    def open(
        self, news: asyncio.Event, log: str, start: Start | float, *, group: str, holds: bool, token: object
    ) -> LogReader:
        driver = self._running()
        opened = self._machine.readers.read(log, start, group=group, holds=holds, token=token, now_s=driver.now())
        self._of[opened], self._loop = news, asyncio.get_running_loop()
        driver.settle()
        return opened

    async def know(self, log: str) -> None:
        """Read the membership again if a log is not known: it may have been created a moment ago."""
        driver, machine = self._running(), self._machine
        if any(known.name == log for known in machine.membership.logs):
            return
        for link in machine.links.all_up():
            read = asyncio.get_running_loop().create_future()
            machine.links.look_at_members(link, lambda now_s, read=read: _done(read))  # type: ignore[misc]
            driver.settle()
            await read
            if any(known.name == log for known in machine.membership.logs):
                return

    def commit(self, reader: LogReader, done: object) -> None:
        driver = self._running()
        reader.commit(done, driver.now())
        driver.settle()

    def go_on(self, reader: LogReader) -> None:
        """There is room for more messages."""
        if self.driver is not None:
            reader.go_on(self.driver.now())
            self.driver.soon()

    def wake(self) -> None:
        woken, self._machine.readers.woken = self._machine.readers.woken, set()
        for reader in woken:
            if reader in self._of:
                self._of[reader].set()

    def close(self, reader: LogReader) -> None:
        if self._of.pop(reader, None) is not None and self.driver is not None:
            reader.close()
            self.driver.settle()

    def dropped(self, reader: LogReader) -> None:
        """The program no longer has the reader. Called by the garbage collector, in any thread, at any moment."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, and the client ended with it
                self._loop.call_soon_threadsafe(self.close, reader)

    def why(self, reader: LogReader | None) -> str:
        """What a reader waits for, in words."""
        links, now_s = self._machine.links, self._running().now()
        parts = [part for part in reader.parts.values() if not part.ended] if reader is not None else []
        troubles = [links.trouble(part.broker, now_s) for part in parts if part.broker]
        gone = [part.life for part in parts if not part.broker and part.link is None]
        troubles += [self._machine.side_links.trouble_with(life) for life in gone]
        return next(filter(None, troubles), "the brokers have not answered")

    def _running(self) -> Driver:
        if self.driver is None:
            raise not_open()
        if self._machine.closed:
            raise Closed("this client is closed: connect a new one")
        return self.driver


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# --- the reader


class Reader:
    """The messages of a log, in each publisher's order, from all brokers. Make it with `client.read(...)`.

        reader = await client.read("orders", group="billing")
        async for event in reader:
            match event:
                case Message(payload=payload): ...
                case Lost(count=count, reason=reason): ...
            await reader.commit()  # or once for many events: what was taken since then is read again after a crash

    `await` it to begin: nothing that is acknowledged after that is missed. Iterating begins it if needed. With a group,
    its members share the parts of the log, and after a crash the group continues behind what was last committed. Where
    topics have moved, members wait until what the others have taken is committed: commit also when nothing comes.
    """

    def __init__(
        self, readings: Readings, log: str, *, group: str, start: Start | float, holds: bool, timeout_s: Timeout
    ) -> None:
        self._readings = readings
        self._log = log
        self._group = group
        self._start = start
        self._holds = holds
        self._timeout_s = timeout_s
        self._reader: LogReader | None = None
        self._begun: asyncio.Future[object] | None = None
        self._news = asyncio.Event()
        self._closed = False

    def __del__(self) -> None:
        """A program that has left a loop over it, and dropped it, need not close it."""
        if self._reader is not None and not self._closed:
            self._readings.dropped(self._reader)

    # --- beginning

    def __await__(self) -> Generator[object, None, Reader]:
        yield from self._begin().__await__()
        return self

    async def __aenter__(self) -> Reader:
        await self._begin()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    async def _begin(self) -> LogReader:
        if self._closed:
            raise Closed("the reader was closed: make a new one with client.read()")
        if self._reader is None:
            self._begun = asyncio.get_running_loop().create_future()
            async with self._readings.within(self._timeout_s, "the log is not known", self._why):
                await self._readings.know(self._log)
            self._reader = self._readings.open(
                self._news, self._log, self._start, group=self._group, holds=self._holds, token=self._begun
            )
        reader, begun = self._reader, self._begun
        assert begun is not None
        if not begun.done() or begun.exception() is not None:
            async with self._readings.within(self._timeout_s, "reading has not begun", self._why):
                await asyncio.shield(begun)
        return reader

    def _why(self) -> str:
        """What it waits for, in words."""
        return self._readings.why(self._reader)

    # --- reading

    def take(self) -> list[Kept]:
        """Everything that is there, without waiting; nothing before the reader was awaited."""
        events: list[Kept] = []
        while (event := self._next()) is not None:
            events.append(event)
        return events

    async def get(self) -> Kept:
        """The next message, or report of lost ones. Raises Closed at the end, or why it ended: the log was dropped."""
        reader = await self._begin()
        while True:
            event = self._next()
            if event is not None:
                return event
            if reader.closed:
                raise reader.failure or Closed("the reader was closed")
            self._news.clear()
            await self._news.wait()

    def _next(self) -> Kept | None:
        """The next event; what another member of the group reads by now is left out."""
        reader = self._reader
        while reader is not None and reader.ready:
            delivery = reader.ready.popleft()
            if len(reader.ready) in _ROOM_AT:
                self._readings.go_on(reader)
            if reader.taken(delivery):
                return delivery.event
        return None

    def __aiter__(self) -> AsyncIterator[Kept]:
        return self._events()

    async def _events(self) -> AsyncIterator[Kept]:
        while True:
            try:
                yield await self.get()
            except Closed:
                return

    async def commit(self, *, timeout_s: Timeout = CLIENT_DEFAULT) -> None:
        """Note on the servers that everything taken so far is done: after a crash, the group continues behind it.

        Raises Unavailable if another member reads some of it by now, which may then be read again; go on reading.
        Raises UsageError without a group, and LimitReached if too many commits wait for their answers.
        """
        reader = await self._begin()
        done = asyncio.get_running_loop().create_future()
        self._readings.commit(reader, done)
        async with self._readings.within(timeout_s, "not committed", self._why):
            await done

    def close(self) -> None:
        """Stop reading. What was taken and not committed is read again by the group."""
        self._closed = True
        if self._reader is not None:
            self._readings.close(self._reader)
        self._news.set()


def start_of(from_: From) -> Start | float:
    """Where to begin, as the machine needs it."""
    if isinstance(from_, datetime):
        return from_.timestamp()
    try:
        if not isinstance(from_, int | float):
            return Start(from_)
        if abs(from_) <= _TIME_MAX_S:  # not so of NaN
            return float(from_)
    except ValueError:
        pass
    raise UsageError(f"cannot read from {from_!r}: use 'earliest', 'latest', a datetime or Unix seconds")
