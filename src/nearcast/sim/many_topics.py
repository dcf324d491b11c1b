"""A client with many topics, whose work takes time: can it come back after a lost connection?

Everywhere else in the simulator a process answers at once. Here reading costs time per byte and a tick costs time per
flow it looks after, as measured on one core; timers run before sockets, as an event loop does that is late. A few real
topics stand for many: costs are multiplied, and limits and reads divided, by `scale`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.effects import Done
from nearcast.core.mailbox import Mailbox, Overflow
from nearcast.core.message import Event
from nearcast.sim.network import Pipe
from nearcast.sim.process import Process

if TYPE_CHECKING:
    from nearcast.core.client import Client
    from nearcast.sim.world import World

BYTE_S = 0.2e-6  # about 20 us for the 106 bytes that attaching to one topic takes
ATTENDED_S = 3.3e-6
READ_BYTES = 1 << 18  # what asyncio reads at once


class BusyProcess(Process):
    def __init__(self, world: World, name: str, machine: Client, scale: int) -> None:
        self.scale = scale
        self._client = machine
        self._work: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = False
        super().__init__(world, name, machine)

    def _turn(self) -> None:
        if self.alive and not self.paused:
            self._work.appendleft((self._client.attended * ATTENDED_S * self.scale, self._look_after))
            self._next()

    def _look_after(self) -> None:
        self.machine.tick(self.now_s)

    def _arrived(self, pipe: Pipe, data: bytes) -> None:
        scale = self.scale if self._brings_topics(pipe) else 1
        step = max(1, READ_BYTES // scale)
        for start in range(0, len(data), step):
            part = data[start : start + step]
            self._work.append((len(part) * BYTE_S * scale, partial(self._read, pipe, part)))
        self._next()

    def _brings_topics(self, pipe: Pipe) -> bool:
        """Whether what comes there stands for many; a greeting or the proof of a lease stands for itself."""
        link = self._client.links.up(pipe.link)
        return link is not None and link.unanswered > 0

    def _read(self, pipe: Pipe, part: bytes) -> None:
        if self.pipes.get(pipe.link) is pipe:
            self.machine.received(pipe.link, part, self.now_s)

    def _next(self) -> None:
        if self._busy or self.paused or not self._work or not self.alive:
            return
        self._busy = True
        cost_s, work = self._work.popleft()
        work()
        self.settle()
        self.world.timeline.after(cost_s, self._done)

    def _done(self) -> None:
        self._busy = False
        self._next()


class ManyTopics:
    """One program that subscribes to `count` topics nobody else uses, standing for `scale` times as many."""

    def __init__(self, world: World, count: int, scale: int) -> None:
        self.name = "subscriber of many topics"
        self.machine = world.new_client(self.name, scale)
        self.process = BusyProcess(world, self.name, self.machine, scale)
        self.process.after = self._after
        self.mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
        self.events: list[Event] = []
        self._joining = count
        world.seed_client(self.machine, self.process.now_s)
        for number in range(count):
            self.machine.subscribe(b"many-%d" % number, self.mailbox, number, self.process.now_s)
        self.process.settle()

    def _after(self) -> None:
        self._joining -= sum(isinstance(effect, Done) for effect in self.machine.effects)
        self.machine.effects.clear()
        self.machine.woken.clear()
        self.events += self.mailbox.take()

    def unfinished(self) -> list[str]:
        found = [f"{self.name} never joined {self._joining} of them"] if self._joining else []
        apart = sum(not inflow.whole for inflow in self.machine.inflows.values())
        return [*found, f"{self.name} is not whole on {apart} of them"] if apart else found
