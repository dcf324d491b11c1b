"""A crowd: subscribers who come to the topics of a load and go again, audited like those who stay.

    async with Crowd() as crowd:
        crowd.listen_to(load)            # before anything is published
        ...
        await crowd.come(urls, 14)
        ...
        verdict = await crowd.leave()

A crowd has an audit of its own, which hears of the load's messages too. What is published after it has decided to go is
owed to it no more, and it waits for the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Self

from nearcast.errors import UsageError
from nearcast.testbed.audit import Audit, Verdict
from nearcast.testbed.load import Load, LoadShape

LEAVE_S = 3.0  # a crowd waits so long for what it is owed before it goes
POLL_S = 0.01


class Crowd:
    """Comes once. `load` is its subscribers, None before they come; it is there to count when they have gone."""

    def __init__(self) -> None:
        self.load: Load | None = None
        self.present = 0
        self._audit = Audit()
        self._topics: tuple[str, ...] = ()
        self._gone: Verdict | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    def listen_to(self, load: Load) -> None:
        """From its first message on: a crowd that comes later could not number what it gets."""
        load.audit = _Overheard(self._audit)
        self._topics = load.shape.topic_names

    async def come(self, urls: Iterable[str], count: int) -> None:
        """Connect so many subscribers; returns when all of them are attached."""
        if self.load is not None:
            raise UsageError("this crowd has come already: make another")
        self.load = Load(urls, LoadShape(publishers=0, subscribers=count, names=self._topics))
        self.load.audit = self._audit
        await self._stack.enter_async_context(self.load)
        self.present = count

    async def leave(self) -> Verdict:
        """Go when all that was published until now has come, or does not come for a while."""
        if self._gone is None:
            self._audit.all_leave(time.time())
            self._gone = await self._when_all_has_come()
            await self._stack.aclose()
            self.present = 0
        return self._gone

    def verdict(self) -> Verdict:
        return self._gone or self._audit.verdict()

    async def _when_all_has_come(self) -> Verdict:
        ends_s = time.monotonic() + LEAVE_S
        while True:
            verdict = self._audit.verdict()
            if not verdict.lost or time.monotonic() > ends_s:
                return verdict
            await asyncio.sleep(POLL_S)


class _Overheard(Audit):
    """An audit that lets another one know what publishers say."""

    def __init__(self, listener: Audit) -> None:
        super().__init__()
        self._listener = listener

    def published(self, publisher: int, topic: str, at_s: float) -> int:
        self._listener.published(publisher, topic, at_s)
        return super().published(publisher, topic, at_s)

    def acknowledged(self, publisher: int, topic: str, number: int, at_s: float) -> None:
        self._listener.acknowledged(publisher, topic, number, at_s)
        super().acknowledged(publisher, topic, number, at_s)
