"""The controller process: one controller machine, with a store and, if wanted, a policy and a balancer.

They run in threads: a plan for a hundred thousand topics takes most of a second, and the loop must not stand still for
so long.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Callable, Coroutine
from typing import TypeVar

from nearcast.core.audience import Seats
from nearcast.core.controller import Controller as Machine
from nearcast.core.controller import Role
from nearcast.core.controller_effects import Balance, Propose
from nearcast.core.coordination import Coordinating
from nearcast.core.planner import Planning
from nearcast.core.proposal import Policy, Proposal
from nearcast.core.settings import DEFAULT_TIMING, Timing
from nearcast.runtime.connection import parse_url
from nearcast.runtime.driver import Driver
from nearcast.runtime.store import Store
from nearcast.runtime.store.valkey import ValkeyStore
from nearcast.runtime.store_desk import StoreDesk
from nearcast.runtime.troubles import Troubles

DEFAULT_PLANNING = Planning()
DEFAULT_COORDINATING = Coordinating()
TICK_S = 0.05  # how often subscribers' readiness is asked for: it is part of how long a move takes

log = logging.getLogger("nearcast.controller")

T = TypeVar("T")


class Controller:
    def __init__(
        self,
        store_url: str,
        *,
        name: str = "",
        store: Store | None = None,
        policy: Policy | None = None,
        planning: Planning = DEFAULT_PLANNING,
        coordinating: Coordinating = DEFAULT_COORDINATING,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        address, credentials = parse_url(store_url)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{random.randrange(1 << 16):04x}"
        self._store: Store = store or ValkeyStore(store_url)
        self._policy = policy
        self._machine = Machine(
            self.name,
            address.url,
            random.Random(),
            credentials=credentials,
            timing=timing,
            planning=planning if policy is not None else None,
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
        """What keeps the controller from working, in words; empty if nothing does."""
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
        """Whoever waits may lead at once. A store that does not answer is not waited for."""
        if self._driver is not None:
            self._machine.retire(self._driver.now())
            self._driver.settle()  # nothing is said as a leader from here on: what was not written yet is dropped
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
        for question in machine.asked:
            self._spawn(self._think(question))
        machine.asked.clear()
        for balance in machine.balances:
            self._spawn(self._seat(balance))
        machine.balances.clear()
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

    async def _think(self, question: Propose) -> None:
        """Ask the policy. One that fails must not take the controller with it: topics stay where they are."""
        assert self._policy is not None
        proposal: Proposal | None = None
        try:
            proposal = await asyncio.to_thread(_proposal, self._policy, question)
        except Exception as error:
            self._troubles.note(f"policy {self._policy.name}", error)
        self._answer(self._machine.proposed, question.number, proposal)

    async def _seat(self, question: Balance) -> None:
        """Ask the balancer. If it fails, subscribers stay where they are."""
        seats: Seats | None = None
        try:
            seats = await asyncio.to_thread(question.balancer.seat, question.audience)
        except Exception as error:
            self._troubles.note(f"balancer {question.balancer.name}", error)
        self._answer(self._machine.seated, question.number, seats)

    def _answer(self, tell: Callable[[int, T | None, float], None], number: int, answer: T | None) -> None:
        """An answer the machine cannot take is none: it must not wait for one for ever."""
        assert self._driver is not None
        try:
            tell(number, answer, self._driver.now())
        except Exception as error:
            self._troubles.note("taking an answer of the policy or the balancer", error)
            tell(number, None, self._driver.now())
        self._driver.settle()


def _proposal(policy: Policy, question: Propose) -> Proposal:
    return policy.propose(*question.view.snapshot())
