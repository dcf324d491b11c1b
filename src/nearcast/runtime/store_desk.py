"""The desk between a controller machine and its store: carries out what the machine asks, and brings the answers back.

Two tasks, so that the leadership is renewed while a journal is read or a commit is on its way. Neither ends by an
error: whatever goes wrong is logged, shown as `problem`, and answered as a failure, which the machine recovers from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nearcast.core.controller import Controller as Machine
from nearcast.core.effects import Campaign, Commit, Load, Resign, StoreEffect
from nearcast.errors import NearcastError
from nearcast.runtime.store import Store
from nearcast.runtime.troubles import Troubles
from nearcast.runtime.workers import Workers

log = logging.getLogger("nearcast.controller")


class StoreDesk:
    def __init__(
        self,
        store: Store,
        machine: Machine,
        now: Callable[[], float],
        settle: Callable[[], None],
        troubles: Troubles,
    ) -> None:
        """`settle` is called after each answer: the machine may have something to do."""
        self._store = store
        self._machine = machine
        self._now = now
        self._settle = settle
        # No longer than a few entries: the machine has one campaign, one load and one commit on their way at a time.
        self._leading: asyncio.Queue[StoreEffect] = asyncio.Queue()
        self._journal: asyncio.Queue[StoreEffect] = asyncio.Queue()
        self._problems: dict[asyncio.Queue[StoreEffect], str] = {}
        self._troubles = troubles
        self._workers = Workers(troubles)
        self._workers.start("the store's desk for the lead", lambda: self._serve(self._leading))
        self._workers.start("the store's desk for the journal", lambda: self._serve(self._journal))

    @property
    def problem(self) -> str:
        """Why the store could not be used the last time; empty if it could."""
        return next(iter(self._problems.values()), "")

    def ask(self, effect: StoreEffect) -> None:
        queue = self._leading if isinstance(effect, Campaign | Resign) else self._journal
        queue.put_nowait(effect)

    async def close(self) -> None:
        await self._workers.stop()
        await self._store.close()

    async def _serve(self, queue: asyncio.Queue[StoreEffect]) -> None:
        while True:
            effect = await queue.get()
            try:
                await self._carry_out(effect)
                self._problems.pop(queue, None)
            except Exception as error:
                self._report(queue, effect, error)
                self._fail(effect, self._problems[queue])
            self._settle()

    async def _carry_out(self, effect: StoreEffect) -> None:
        machine, store, now = self._machine, self._store, self._now
        if isinstance(effect, Campaign):
            term, held = await store.campaign(effect.candidate, effect.stale)
            machine.campaigned(term, held, now())
        elif isinstance(effect, Resign):
            await store.resign(effect.candidate)
        elif isinstance(effect, Load):
            version = await store.load(lambda entries: machine.read(effect.term, entries, now()))
            machine.loaded(effect.term, version, now())
        else:
            ok = await store.commit(effect.version, effect.term, effect.changes)
            machine.committed(effect.term, ok, now())

    def _report(self, queue: asyncio.Queue[StoreEffect], effect: StoreEffect, error: Exception) -> None:
        self._problems[queue] = str(error) or repr(error)
        if isinstance(error, NearcastError):
            log.warning("the store failed: %s", error)
        else:
            self._troubles.note(f"{type(effect).__name__} at the store", error)

    def _fail(self, effect: StoreEffect, reason: str) -> None:
        """Tell the machine that nobody knows what came of it. It gives the lead away and begins with the journal."""
        if isinstance(effect, Campaign):
            self._machine.not_campaigned(self._now())
        elif isinstance(effect, Load):
            self._machine.not_loaded(effect.term, reason, self._now())
        elif isinstance(effect, Commit):
            self._machine.committed(effect.term, False, self._now())
