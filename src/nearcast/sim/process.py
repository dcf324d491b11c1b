"""A simulated process: one machine of the core under virtual time, the counterpart of `runtime/driver.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from nearcast.core.controller import Controller
from nearcast.core.effects import Connect, Disconnect, Rename
from nearcast.sim.clock import HostClock
from nearcast.sim.network import Pipe
from nearcast.sim.policy import HALF_WRONG, THINKS_S
from nearcast.sim.store_desk import SimStoreDesk

if TYPE_CHECKING:
    from nearcast.runtime.driver import Machine
    from nearcast.sim.world import World

TICK_S = 0.1


class Process:
    """While it is paused (SIGSTOP, a virtual machine that is moved) nothing of it runs, and its sockets fill.

    When it wakes, what has come is served before its timers, as an event loop does.
    """

    def __init__(self, world: World, name: str, machine: Machine, clock: HostClock | None = None) -> None:
        self.name = name
        self.machine = machine
        self.world = world
        self.clock = clock or HostClock(world.timeline)
        self.alive = True
        self.paused = False
        self._waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.pipes: dict[str, Pipe] = {}
        self.after: Callable[[], None] = lambda: None  # the program's chance to read what the machine has for it
        world.timeline.after(world.rng.random() * TICK_S, self._tick)

    @property
    def now_s(self) -> float:
        """The time the machine is called with; what it calls wall time goes with it."""
        now_s = self.clock.now_s
        self.machine.wall_offset_s = self.clock.wall_s() - now_s
        return now_s

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for action, arguments in waiting:
            self.serve(action, *arguments)
        self._turn()

    def serve(self, action: Callable[..., None], *arguments: Any) -> None:
        """Something has come for the process: now, or when it wakes."""
        if not self.alive:
            return
        if self.paused:
            self._waiting.append((action, arguments))
        else:
            action(*arguments)

    def _tick(self) -> None:
        if self.alive:
            self.world.timeline.after(TICK_S, self._tick)
            self._turn()

    def _turn(self) -> None:
        if self.alive and not self.paused:
            self.machine.tick(self.now_s)
            self.settle()

    def settle(self) -> None:
        """Carry out what the machine asks, write what it has to send."""
        machine = self.machine
        if machine.effects:
            machine.effects[:] = [effect for effect in machine.effects if not self._carry_out(effect)]
        self.after()
        for link, data in machine.outgoing():
            pipe = self.pipes.get(link)
            if pipe is None:
                continue
            if not self.boundary():
                return
            pipe.write(data)
            if not self.boundary():
                return

    def boundary(self) -> bool:
        """A place where a process may be made to crash. Returns whether it lives on."""
        self.world.faults.boundary(self)
        return self.alive

    def crash(self) -> None:
        self.alive = False
        self._waiting.clear()
        for pipe in self.pipes.values():
            pipe.close()
        self.pipes.clear()

    def _carry_out(self, effect: object) -> bool:
        if isinstance(effect, Connect):
            self.world.network.connect(self, effect.link, effect.url, lambda pipe: self.opened(effect.link, pipe))
        elif isinstance(effect, Disconnect):
            pipe = self.pipes.pop(effect.link, None)
            if pipe is not None:
                pipe.close()
        elif isinstance(effect, Rename):
            pipe = self.pipes.pop(effect.link, None)
            if pipe is not None:
                pipe.link = effect.name
                self.pipes[effect.name] = pipe
        else:
            return False
        return True

    # --- what the network reports

    def opened(self, link: str, pipe: Pipe | None) -> None:
        if not self.alive and pipe is not None:
            pipe.close()
        self.serve(self._opened, link, pipe)

    def arrived(self, pipe: Pipe, data: bytes) -> None:
        self.serve(self._arrived, pipe, data)

    def ended(self, pipe: Pipe, reason: str) -> None:
        self.serve(self._ended, pipe, reason)

    def _opened(self, link: str, pipe: Pipe | None) -> None:
        if link in self.pipes:  # a seed may have turned out to be this broker in the meantime
            if pipe is not None:
                pipe.close()
            return
        if pipe is None:
            self.machine.lost(link, "refused", self.now_s)
        else:
            self.pipes[link] = pipe
            self.machine.connected(link, self.now_s)
        self.settle()

    def _arrived(self, pipe: Pipe, data: bytes) -> None:
        if self.pipes.get(pipe.link) is pipe:
            self.machine.received(pipe.link, data, self.now_s)
            self.settle()

    def _ended(self, pipe: Pipe, reason: str) -> None:
        if self.pipes.get(pipe.link) is pipe:
            del self.pipes[pipe.link]
            self.machine.lost(pipe.link, reason, self.now_s)
            self.settle()


class ControllerProcess(Process):
    """A controller, whose store is asked over the network too: requests and answers may be lost."""

    def __init__(self, world: World, name: str, machine: Controller, clock: HostClock) -> None:
        super().__init__(world, name, machine, clock)
        self.controller = machine
        self.after = self._serve
        self._desk = SimStoreDesk(self, Random(world.rng.getrandbits(64)))

    def _serve(self) -> None:
        asked, self.controller.asked[:] = list(self.controller.asked), []
        for question in asked:
            answer = partial(self.controller.proposed, question.number, HALF_WRONG)
            self.world.timeline.after(THINKS_S, self.serve, self._hear, answer)
        self._serve_store()

    def _serve_store(self) -> None:
        effects, self.controller.store[:] = list(self.controller.store), []
        for effect in effects:
            if not self.boundary():
                return
            self._desk.ask(effect)
            if not self.boundary():
                return

    def retire(self) -> None:
        """Its last turn: what it asks of the store then is still brought there."""
        self.controller.retire(self.now_s)
        self.settle()

    def answered(self, answer: Callable[[float], None]) -> None:
        """The store has answered."""
        self.serve(self._take, answer)

    def _take(self, answer: Callable[[float], None]) -> None:
        if self.boundary():
            self._hear(answer)

    def _hear(self, answer: Callable[[float], None]) -> None:
        answer(self.now_s)
        self.settle()
