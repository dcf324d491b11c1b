"""The controller process: one controller machine with its store and, optionally, a policy and a balancer.

`check_store` refuses a server that must not be the store. A controller that is given a broker's server by mistake would
lead there alone, apart from the cluster's controllers, and it would go unnoticed. So a broker's server is refused,
unless it was the store before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from nearcast.core.controller.effects import Ask, Campaign, Commit, Leadership, LoadJournal, Resign, StoreEffect
from nearcast.core.controller.machine import Controller as Machine
from nearcast.core.controller.machine import Role
from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.controller.subscribers import CoordinationSettings
from nearcast.core.model.membership import read_membership
from nearcast.core.model.names import CLAIM_KEY, MEMBERS, READY_KEY, TERM_KEY
from nearcast.core.model.planning import Policy
from nearcast.core.model.settings import DEFAULT_TIMING, Timing
from nearcast.errors import ClusterError, Misplaced, NearcastError
from nearcast.runtime.driver import Driver, parse_url
from nearcast.runtime.requester import Requester
from nearcast.runtime.store import Store, ValkeyStore
from nearcast.runtime.workers import Pauses, Troubles, Workers

# --- the desk between machine and store


RESIGN_S = 1.0  # how long a stopping process waits for the store: less than its parent waits for its end

log = logging.getLogger("nearcast.controller")

_Leading = tuple[Campaign | Resign, asyncio.Task[Leadership | None]]


class StoreDesk:
    """Stands between the machine and its store: it carries out what the machine asks, and returns the answers.

    Campaigns are sent one after another without waiting for answers, so that a slow disk does not cost the leadership.
    They do not wait for the journal either, so that the leadership is renewed while a journal is read or a commit is in
    flight. No error ends the desk: whatever goes wrong is logged, shown as `problem`, and answered as a failure, from
    which the machine recovers.
    """

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
        # Never more than a few entries: the machine has at most CAMPAIGNS_MAX, one load and one commit in flight.
        self._leading: asyncio.Queue[_Leading] = asyncio.Queue()
        self._journal: asyncio.Queue[LoadJournal | Commit] = asyncio.Queue()
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
        """Send a pending resignation to the store, if the store answers, and nothing else."""
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
        """Give the answers in the order of the questions."""
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

    async def _carry_out(self, effect: LoadJournal | Commit) -> None:
        machine, store, now = self._machine, self._store, self._now
        if isinstance(effect, LoadJournal):
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
        """Tell the machine that the outcome is unknown. It gives up the lead and rereads the journal."""
        if isinstance(effect, Campaign):
            self._machine.not_campaigned(self._now())
        elif isinstance(effect, LoadJournal):
            self._machine.not_loaded(effect.term, reason, self._now())
        elif isinstance(effect, Commit):
            self._machine.committed(effect.term, False, self._now())


# --- the process


DEFAULT_PLANNING = PlanningSettings()
DEFAULT_COORDINATING = CoordinationSettings()
TICK_S = 0.05  # how often subscribers' readiness is polled: it adds to the time a move takes


class Controller:
    """Runs the machine on the event loop.

    The policy and the balancer run in threads, because a plan for a hundred thousand topics takes most of a second, and
    the loop must not stop for that long.
    """

    def __init__(
        self,
        store_url: str,
        *,
        name: str = "",
        store: Store | None = None,
        policy: Policy | None = None,
        planning: PlanningSettings = DEFAULT_PLANNING,
        coordinating: CoordinationSettings = DEFAULT_COORDINATING,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        address, credentials = parse_url(store_url)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{random.randrange(1 << 16):04x}"
        self._store: Store = store or ValkeyStore(store_url)
        self._machine = Machine(
            self.name,
            address.url,
            random.Random(),
            credentials=credentials,
            timing=timing,
            planning=msgspec.structs.replace(planning, policy=policy) if policy is not None else None,
            coordinating=coordinating,
        )
        self._driver: Driver | None = None
        self._desk: StoreDesk | None = None
        self._troubles = Troubles(log)
        self._thinking: set[asyncio.Task[None]] = set()
        self.on_note: Callable[[str], None] = log.info

    @property
    def leads(self) -> bool:
        return self._machine.role is Role.LEADER

    @property
    def problem(self) -> str:
        """What keeps the controller from working; empty if nothing does."""
        bus = self._machine.bus
        if bus.link is None and bus.problem:
            return f"{bus.name} {bus.url}: {bus.problem}"
        asked = self._desk.problem if self._desk is not None else ""
        return asked or self._machine.too_late or self._machine.loss or self._troubles.problem

    async def start(self) -> None:
        self._driver = driver = Driver(self._machine, self._after, tick_s=TICK_S, troubles=self._troubles)
        self._machine.wall_offset_s = driver.wall_offset_s()
        self._desk = StoreDesk(self._store, self._machine, driver.now, driver.settle, self._troubles)
        driver.start()

    async def stop(self) -> None:
        """Resign, so that a waiting controller may lead at once. A store that does not answer is not waited for."""
        if self._driver is not None:
            self._machine.retire(self._driver.now())
            self._driver.settle()  # from here on it says nothing as a leader: what is not written yet is dropped
            await self._driver.stop()
        for task in self._thinking:
            task.cancel()
        await asyncio.gather(*self._thinking, return_exceptions=True)
        if self._desk is not None:
            await self._desk.close()

    def _after(self) -> None:
        machine = self._machine
        if self._desk is not None:
            for effect in machine.store:
                self._desk.ask(effect)
            machine.store.clear()
        for question in machine.questions:
            self._spawn(self._think(question))
        machine.questions.clear()
        for alarm in machine.alarms:
            log.error("%s", alarm)
        machine.alarms.clear()
        for note in machine.notes:
            self.on_note(note)
        machine.notes.clear()

    def _spawn(self, thought: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(thought)
        self._thinking.add(task)
        task.add_done_callback(self._thinking.discard)

    async def _think(self, question: Ask[Any]) -> None:
        """Have the decider answer, in a thread. If it fails, nothing changes, and the controller continues."""
        answer: object = None
        try:
            answer = await asyncio.to_thread(question.decide)
        except Exception as error:
            self._troubles.note(question.decider.name, error)
        self._answer(question, answer)

    def _answer(self, question: Ask[Any], answer: object) -> None:
        """Pass the answer on. One that the machine cannot take is ignored."""
        assert self._driver is not None
        try:
            self._machine.answered(question.number, answer, self._driver.now())
        except Exception as error:
            self._troubles.note(f"taking an answer of {question.decider.name}", error)
        self._driver.settle()


async def until_checked(url: str) -> None:
    """Return when the server has shown that it can be the store, asking as often as needed; raise `Misplaced`."""
    pauses = Pauses()
    while True:
        try:
            return await check_store(url)
        except ClusterError as error:
            log.warning("the store does not answer: %s", error)
            await asyncio.sleep(pauses.next_s())


async def check_store(url: str) -> None:
    """Raise `Misplaced` if this is a broker's server; warn if it is both a broker's and the store."""
    requester = Requester(url)
    try:
        found = await _sign_of_a_broker(requester)
        if not found:
            return
        store_url = await _store_known_to(requester)
        has_led = await requester.ask("EXISTS", TERM_KEY) == 1
    finally:
        await requester.close()
    address, _ = parse_url(url)  # without the password
    advice = f"the store of its cluster is {store_url}" if store_url else "give the URL of the store"
    if has_led:  # refusing would leave a cluster that has run like this until now without a controller
        log.warning(
            "--store %s is %s, and also a store: %s; the store should be a separate server", address.url, found, advice
        )
        return
    raise Misplaced(
        f"--store {address.url} is {found}, not a store: {advice}."
        " To make this server the store, stop its agent and empty it first (FLUSHALL)"
    )


async def _sign_of_a_broker(requester: Requester) -> str:
    """The evidence that the server is a broker's; empty if there is none, or if we may not look."""
    holder = await requester.ask("HGET", CLAIM_KEY, "holder")
    if isinstance(holder, bytes):
        return f"the server of broker {holder.decode().rpartition(':')[0]}"
    found = await requester.ask("EXISTS", MEMBERS, READY_KEY)
    return "the server of a broker" if isinstance(found, int) and found else ""


async def _store_known_to(requester: Requester) -> str:
    document = await requester.ask("HGET", MEMBERS, "document")
    membership = read_membership(document) if isinstance(document, bytes) else None
    return membership.store_url if membership is not None else ""
