"""The intake: everything that one PubSub receives, in one sequence.

All topics and patterns of a PubSub share one mailbox, so their messages keep the order in which they came. In redis-py
the server sends confirmations; here they are made by the intake and put into the same sequence: that of a subscription
before its first message, that of an unsubscription after its last.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from nearcast.asyncio.options import ClosedWhileUsed
from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.model.message import Event, Message
from nearcast.core.model.names import encode_topic
from nearcast.core.model.settings import Limits
from nearcast.errors import ConnectFailed, LimitReached
from nearcast.runtime.client import Client


class Key(NamedTuple):
    """A topic or a pattern: the same name may be both."""

    name: bytes
    pattern: bool


class Confirmation(NamedTuple):
    """The answer to a subscribe or unsubscribe; `held` is how many the PubSub has after it."""

    kind: str
    name: bytes | None
    held: int


class Pong(NamedTuple):
    data: bytes


Item = Event | Confirmation | Pong


class Intake:
    """One per PubSub. Commands run one after another, as on a connection; reading never waits for them."""

    def __init__(self, client: Client, limits: Limits) -> None:
        self._client = client
        self._mailbox = Mailbox(limits.mailbox, limits.mailbox_bytes, Overflow.DROP_OLDEST, accept_foreign=True)
        self._held: dict[Key, None] = {}  # a set that keeps its order
        self._unconfirmed: set[Key] = set()  # held, but not confirmed yet
        self._ready: deque[Item] = deque()
        self._answers = 0  # how many of them are answers
        self._news = asyncio.Event()
        self._command = asyncio.Lock()

    # --- commands

    async def subscribe(self, keys: list[Key], timeout_s: float | None) -> None:
        """Returns when nothing published from then on is missed. If it fails, nothing new is subscribed."""
        async with self._command:
            self._check_room()
            new = dict.fromkeys(key for key in keys if key not in self._held)
            try:
                await self._attach(new, timeout_s)
            except BaseException:
                self._detach(new)
                raise
            self._check_open()
            self._collect()
            for key in keys:
                if key not in new or key in self._unconfirmed:
                    self._confirm(key)

    async def unsubscribe(self, keys: list[Key], timeout_s: float | None, *, pattern: bool) -> None:
        """Leave these, or all topics (patterns) if none is given. Returns when the servers have unsubscribed us."""
        async with self._command:
            self._check_room()
            self._collect()
            ends = []
            for key in keys or [key for key in self._held if key.pattern is pattern]:
                self._detach([key])
                ends.append(Confirmation(_kind("unsubscribe", pattern), key.name, len(self._held)))
            try:
                await self._client.sync(timeout_s=timeout_s)
            finally:
                self._collect()
                for end in ends or [Confirmation(_kind("unsubscribe", pattern), None, len(self._held))]:
                    self._put(end)

    async def ping(self, data: bytes, timeout_s: float | None) -> None:
        async with self._command:
            self._check_room()
            await check_connected(self._client, timeout_s)
            self._collect()
            self._put(Pong(data))

    async def _attach(self, keys: Iterable[Key], timeout_s: float | None) -> None:
        attaching = []
        try:
            for key in keys:
                attaching.append(self._client.consumers.attach((key.name,), self._mailbox, self, pattern=key.pattern))
                self._held[key] = None
                self._unconfirmed.add(key)
            async with self._client.attaching([key.name for key in keys], timeout_s):
                await asyncio.gather(*attaching)
        finally:
            for future in attaching:
                future.cancel()

    def _detach(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key in self._held:
                del self._held[key]
                self._unconfirmed.discard(key)
                self._client.consumers.detach((key.name,), self._mailbox, pattern=key.pattern)

    def _confirm(self, key: Key) -> None:
        self._unconfirmed.discard(key)
        self._put(Confirmation(_kind("subscribe", key.pattern), key.name, len(self._held) - len(self._unconfirmed)))

    def _check_room(self) -> None:
        """Unlike messages, answers have no overflow policy: a program that does not read them gets no more."""
        if self._answers >= 2 * self._mailbox.limit:  # as many as there may be messages
            raise LimitReached(f"{self._answers} answers are waiting: read them with get_message() or listen() first")

    # --- reading

    async def get(self, timeout_s: float | None) -> Item | None:
        """The next item, or None if none came in time. A cancelled caller takes nothing away."""
        item = self._pop()
        if item is not None:
            return item
        if timeout_s is not None and timeout_s <= 0:
            await asyncio.sleep(0)  # a program that polls without waiting must not keep the sockets from being read
            return self._pop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                return await self._wait()
        return None

    async def _wait(self) -> Item:
        while (item := self._pop()) is None:
            self._news.clear()
            await self._news.wait()
        return item

    def _pop(self) -> Item | None:
        if not self._ready:
            self._collect()
        if self._ready:
            item = self._ready.popleft()
            self._answers -= isinstance(item, (Confirmation, Pong))
            return item
        self._check_open()
        return None

    def _check_open(self) -> None:
        if self._mailbox.ended:
            raise ClosedWhileUsed("another task closed this PubSub: subscribe again to continue")

    def _collect(self) -> None:
        """Take what has arrived; if a message came before its confirmation, the confirmation is put before it."""
        if len(self._ready) >= self._mailbox.limit:
            return  # the rest stays in the mailbox, which has an overflow policy
        for event in self._mailbox.take():
            if self._unconfirmed and isinstance(event, Message):
                key = _key_of(event)
                if key in self._unconfirmed:
                    self._confirm(key)
            self._ready.append(event)
        self._client.consumers.taken()

    def _put(self, answer: Confirmation | Pong) -> None:
        self._ready.append(answer)
        self._answers += 1
        self._news.set()

    # --- what the client calls

    def close(self) -> None:
        """Leave everything; what was not read is discarded."""
        self._mailbox.ended = True
        self._detach(list(self._held))
        self._client.consumers.release(self._mailbox)  # needed if nothing was held
        self._ready.clear()
        self._answers = 0
        self._mailbox.take()
        self._news.set()

    def wake(self) -> None:
        self._news.set()


async def check_connected(client: Client, timeout_s: float | None) -> None:
    if not await client.sync(timeout_s=timeout_s):
        raise ConnectFailed("no broker of the cluster is connected at the moment: check the servers, or try again")


def _kind(verb: str, pattern: bool) -> str:
    return "p" + verb if pattern else verb


def _key_of(message: Message) -> Key:
    if message.pattern is not None:
        return Key(encode_topic(message.pattern), True)
    return Key(encode_topic(message.topic), False)
