"""Simulated processes: machines of the core under virtual time, the counterpart of `runtime/driver.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.controller.machine import Controller
from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.model.message import Event
from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import AddBroker, Cause, PlaceTopic, Proposal, Reason, Snapshot
from nearcast.core.wire.effects import Connect, Disconnect, Done, Rename
from nearcast.sim.network import HostClock, Pipe
from nearcast.sim.store import SimStoreDesk

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.runtime.driver import Machine
    from nearcast.sim.world import World


THINKS_S = 0.05

_REASON = Reason(Cause.HIGH_LOAD, "load ratio", 1.0, 0.9)
_CHANGES = (AddBroker(_REASON), PlaceTopic("topic-0", Mode.SINGLE, ("nobody",), _REASON))


class HalfWrong:
    """A policy whose proposals are partly impossible: one more broker, and a topic on a broker that does not exist.

    A controller must refuse all of it.
    """

    name = "half wrong"

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        return Proposal(self.name, _CHANGES)


PLANNING = PlanningSettings(check_s=0.5, wait_s=0.5, brokers_max=9, policy=HalfWrong())
TICK_S = 0.1


class Process:
    """Runs one machine.

    While it is paused (SIGSTOP, a virtual machine being moved), nothing in it runs, and its sockets fill. When it
    wakes, what has arrived is served before its timers, as in an event loop.
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
        self.after: Callable[[], None] = lambda: None  # called for the program to read what the machine has for it
        world.timeline.after(world.rng.random() * TICK_S, self._tick)

    @property
    def now_s(self) -> float:
        """The time the machine is called with; its wall time is derived from it."""
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
        """Something has arrived for the process: run now, or when it wakes."""
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
        """Carry out the machine's effects, and write what it has to send."""
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
        """A point at which a fault may crash the process. Returns whether it is still alive."""
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
    """A controller with its store and its policy.

    The store is also reached over the network: requests and answers may be lost. The policy is asked, and its answer
    comes back, as with a real one.
    """

    def __init__(self, world: World, name: str, machine: Controller, clock: HostClock) -> None:
        super().__init__(world, name, machine, clock)
        self.controller = machine
        self.after = self._serve
        self._desk = SimStoreDesk(self, Random(world.rng.getrandbits(64)))

    def _serve(self) -> None:
        questions, self.controller.questions[:] = list(self.controller.questions), []
        for question in questions:
            answer = partial(self.controller.answered, question.number, question.decide())
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
        """Its last turn: the requests it then makes to the store are still delivered."""
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


# --- a client with many topics


BYTE_S = 0.2e-6  # about 20 us for the 106 bytes that attaching to one topic takes
ATTENDED_S = 3.3e-6
READ_BYTES = 1 << 18  # what asyncio reads at once


class BusyProcess(Process):
    """A client with many topics whose work takes time: can it recover from a lost connection?

    Everywhere else in the simulator a process answers at once. Here reading costs time per byte, and a tick costs time
    per flow it handles, as measured on one core. Timers run before sockets, as in an event loop that is late. A few
    real topics stand for many: costs are multiplied by `scale`, limits and reads divided by it.
    """

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
        """Whether what arrives there stands for many topics; a greeting or the proof of a lease does not."""
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
    """One program that subscribes to `count` topics of its own, which stand for `scale` times as many."""

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
        found = [f"{self.name} never joined {self._joining} topics"] if self._joining else []
        apart = sum(not topic_subscriber.whole for topic_subscriber in self.machine.topic_subscribers.values())
        return [*found, f"{self.name} is not whole on {apart} topics"] if apart else found
