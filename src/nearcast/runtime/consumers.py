"""The consumers of a client: who reads which mailbox, how they are attached, woken, and let go.

A mailbox whose policy is BLOCK stops the sockets while it is full, but only for T_block: fences must get through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from nearcast.core.client import Client as Machine
from nearcast.core.mailbox import Mailbox, Overflow
from nearcast.errors import Closed
from nearcast.runtime.driver import Driver


class Consumer(Protocol):
    """Whoever reads a mailbox."""

    def close(self) -> None: ...

    def wake(self) -> None: ...


class Attaching:
    """The attaching of some topics, as one future: done with the last of them, failed with the first that fails."""

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
        """Begin to attach; if that cannot even begin, nothing is left of it."""
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
        """Nothing is put into the mailbox any more."""
        self._of.pop(mailbox, None)

    def close(self) -> None:
        for consumer in list(self._of.values()):
            consumer.close()

    # --- waking, blocking

    def wake(self, mailboxes: Iterable[Mailbox]) -> None:
        """Something was put into these."""
        for mailbox in mailboxes:
            consumer = self._of.get(mailbox)
            if consumer is None:
                continue
            consumer.wake()
            if mailbox.overflow is Overflow.BLOCK and mailbox.full and self._blocked_until_s is None and self.driver:
                self._blocked_until_s = self.driver.now() + self._machine.timing.block_s
                self.driver.pause_reading(True)

    def taken(self) -> None:
        """A mailbox was emptied: if it had stopped the sockets, go on reading."""
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
    """Whoever waited may have left: a failure that nobody awaits is no news for the log."""
    if not future.cancelled():
        future.exception()
