"""The desk between a controller machine and its store: carries out what the machine asks, and brings the answers back.

Campaigns travel one behind the other without waiting for answers, so that a slow disk does not cost the leadership; and
they do not wait for the journal, so that it is renewed while a journal is read or a commit is on its way. Nothing here
ends by an error: whatever goes wrong is logged, shown as `problem`, and answered as a failure, which the machine
recovers from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nearcast.core.controller import Controller as Machine
from nearcast.core.controller_effects import Campaign, Commit, Leadership, Load, Resign, StoreEffect
from nearcast.errors import NearcastError
from nearcast.runtime.store import Store
from nearcast.runtime.troubles import Troubles
from nearcast.runtime.workers import Workers

RESIGN_S = 1.0  # that a process which is stopped waits for the store: less than those who stop it wait for its end

log = logging.getLogger("nearcast.controller")

_Leading = tuple[Campaign | Resign, asyncio.Task[Leadership | None]]


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
        # No longer than a few entries: the machine has CAMPAIGNS_MAX, one load and one commit on their way at a time.
        self._leading: asyncio.Queue[_Leading] = asyncio.Queue()
        self._journal: asyncio.Queue[Load | Commit] = asyncio.Queue()
        self._problems: dict[str, str] = {}
        self._calls: set[asyncio.Task[Leadership | None]] = set()
        self._resigning: asyncio.Task[Leadership | None] | None = None
        self._troubles = troubles
        self._workers = Workers(troubles)
        self._workers.start("the store's desk for the lead", self._serve_leading)
        self._workers.start("the store's desk for the journal", self._serve_journal)

    @property
    def problem(self) -> str:
        """Why the store could not be used the last time; empty if it could."""
        return next(iter(self._problems.values()), "")

    def ask(self, effect: StoreEffect) -> None:
        if isinstance(effect, Campaign | Resign):
            call = asyncio.create_task(self._lead(effect))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            self._leading.put_nowait((effect, call))
            if isinstance(effect, Resign):
                self._resigning = call
        else:
            self._journal.put_nowait(effect)

    async def close(self) -> None:
        """A leadership that was given back is still brought to the store, if that answers; nothing else is."""
        if self._resigning is not None:
            await asyncio.wait([self._resigning], timeout=RESIGN_S)
        await self._workers.stop()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._store.close()

    # --- the leadership

    async def _lead(self, effect: Campaign | Resign) -> Leadership | None:
        if isinstance(effect, Campaign):
            return await self._store.campaign(effect.candidate, effect.stale, effect.above)
        await self._store.resign(effect.candidate)
        return None

    async def _serve_leading(self) -> None:
        """Answers are given in the order of the questions."""
        while True:
            effect, call = await self._leading.get()
            await self._answer("leadership", effect, self._led(call))

    async def _led(self, call: asyncio.Task[Leadership | None]) -> None:
        leadership = await call
        if leadership is not None:
            self._machine.campaigned(leadership, self._now())

    # --- the journal

    async def _serve_journal(self) -> None:
        while True:
            effect = await self._journal.get()
            await self._answer("journal", effect, self._carry_out(effect))

    async def _carry_out(self, effect: Load | Commit) -> None:
        machine, store, now = self._machine, self._store, self._now
        if isinstance(effect, Load):
            version = await store.load(lambda entries: machine.read(effect.term, entries, now()))
            machine.loaded(effect.term, version, now())
        else:
            ok = await store.commit(effect.version, effect.term, effect.changes)
            machine.committed(effect.term, ok, now())

    # --- both

    async def _answer(self, about: str, effect: StoreEffect, carried_out: Awaitable[None]) -> None:
        try:
            await carried_out
            self._problems.pop(about, None)
        except Exception as error:
            self._problems[about] = str(error) or repr(error)
            self._report(effect, error)
            self._fail(effect, self._problems[about])
        self._settle()

    def _report(self, effect: StoreEffect, error: Exception) -> None:
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
