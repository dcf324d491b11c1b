"""A simulated process: one machine of the core under virtual time, the counterpart of `runtime/driver.py`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from nearcast.core.controller import Controller
from nearcast.core.effects import Campaign, Connect, Disconnect, Load, Rename, StoreEffect
from nearcast.sim.network import Pipe

if TYPE_CHECKING:
    from nearcast.runtime.driver import Machine
    from nearcast.sim.world import World

TICK_S = 0.1


class Process:
    def __init__(self, world: World, name: str, machine: Machine) -> None:
        self.name = name
        self.machine = machine
        self.world = world
        self.alive = True
        self.pipes: dict[str, Pipe] = {}
        self.after: Callable[[], None] = lambda: None  # the program's chance to read what the machine has for it
        world.timeline.after(world.rng.random() * TICK_S, self._tick)

    def _tick(self) -> None:
        if self.alive:
            self.world.timeline.after(TICK_S, self._tick)
            self.machine.tick(self.world.timeline.now_s)
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
        for pipe in self.pipes.values():
            pipe.close()
        self.pipes.clear()

    def _carry_out(self, effect: object) -> bool:
        if isinstance(effect, Connect):
            self.world.network.connect(self, effect.link, effect.url, lambda pipe: self._opened(effect.link, pipe))
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

    def _opened(self, link: str, pipe: Pipe | None) -> None:
        if not self.alive or link in self.pipes:  # a seed may have turned out to be this broker in the meantime
            if pipe is not None:
                pipe.close()
            return
        if pipe is None:
            self.machine.lost(link, "refused", self.world.timeline.now_s)
        else:
            self.pipes[link] = pipe
            self.machine.connected(link, self.world.timeline.now_s)
        self.settle()

    def arrived(self, pipe: Pipe, data: bytes) -> None:
        if self.alive and self.pipes.get(pipe.link) is pipe:
            self.machine.received(pipe.link, data, self.world.timeline.now_s)
            self.settle()

    def ended(self, pipe: Pipe, reason: str) -> None:
        if self.alive and self.pipes.get(pipe.link) is pipe:
            del self.pipes[pipe.link]
            self.machine.lost(pipe.link, reason, self.world.timeline.now_s)
            self.settle()


class ControllerProcess(Process):
    """A controller, whose store is asked over the network too: requests and answers may be lost."""

    def __init__(self, world: World, name: str, machine: Controller) -> None:
        super().__init__(world, name, machine)
        self.controller = machine
        self.after = self._serve_store
        self._rng: Random = world.rng

    def _serve_store(self) -> None:
        effects, self.controller.store[:] = list(self.controller.store), []
        for effect in effects:
            if not self.boundary():
                return
            self.world.timeline.after(0.001 + self._rng.random() * 0.01, self._reach_store, effect)
            if not self.boundary():
                return

    def _reach_store(self, effect: StoreEffect) -> None:
        """What was sent before a crash arrives all the same."""
        store, world = self.world.store, self.world
        cut = world.network.is_cut(self.name, "store")
        answer: Callable[[float], None]
        if isinstance(effect, Campaign):
            term = None if cut else store.campaign_now(effect.candidate, self.controller.timing.leader_s)
            answer = lambda now_s: self.controller.campaigned(term, now_s)  # noqa: E731
        elif isinstance(effect, Load):
            version, entries = store.load_now()
            answer = lambda now_s: self.controller.loaded(version, entries, now_s)  # noqa: E731
        else:
            ok = not cut and store.commit_now(effect.version, effect.term, effect.changes)
            if ok:
                world.history.committed(effect.changes, world.timeline.now_s)
            answer = lambda now_s: self.controller.committed(ok, now_s)  # noqa: E731
        world.timeline.after(0.001 + self._rng.random() * 0.01, self._answered, answer)

    def _answered(self, answer: Callable[[float], None]) -> None:
        if self.alive and self.boundary():
            answer(self.world.timeline.now_s)
            self.settle()
