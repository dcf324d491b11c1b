"""Faults: what goes wrong in a run, drawn from its seed or placed at one step boundary.

Uniformly random faults rarely find mistakes in a protocol. The interesting moments are the boundaries between two steps
of an agent or a controller: just before and just after each write. A run can be set up to crash the writer, or another
process, at the n-th boundary.
"""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.names import AGENT_CHANNEL, CONTROL, CONTROLLER_CHANNEL
from nearcast.sim.store import DESK, NO_TROUBLE, StoreTrouble

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from nearcast.sim.process import Process
    from nearcast.sim.valkey.server import Session, SimServer
    from nearcast.sim.world import World


class Profile(StrEnum):
    """What kind of faults a seed gets."""

    CALM = "calm"  # moves only
    CONTROL = "control"  # agents and controllers crash; control messages are duplicated and late
    NETWORK = "network"  # connections break, partitions
    SERVERS = "servers"  # servers are killed or stopped
    RIGHTS = "rights"  # the right to use a topic is withdrawn for a while
    CLOCKS = "clocks"  # host clocks step and drift; processes pause, and serve sockets before timers when they wake
    STORE = "store"  # operations of the store fail or are slow
    LOSS = "loss"  # the store comes back empty, or as it was some commits ago; something else fails too
    ALL = "all"


LEADER = "leader"


class FaultPlan(msgspec.Struct, frozen=True):
    """Which faults a run gets."""

    profile: Profile
    boundaries: frozenset[int] = frozenset()  # crash the victim when a process reaches these step boundaries
    counted_from_s: float = 0.0
    victim: str = ""  # the name of a process, or LEADER; if empty, the process that reaches the boundary
    down_s: float | None = None  # how long the victim is down; drawn if None
    stops: int = 0  # how often the current leader is shut down properly


class Faults:
    """Makes the faults of a run happen, and lists them in `done`."""

    def __init__(self, world: World, plan: FaultPlan, rng: Random) -> None:
        self._world = world
        self._plan = plan
        self._rng = rng
        self._calm = False
        self._lasting = 0
        self.store_trouble = NO_TROUBLE
        self.boundaries = 0
        self.done: list[str] = []

    def boundary(self, process: Process) -> None:
        """An agent or a controller is about to take a step, or has just taken it."""
        if self._calm or self._world.timeline.now_s < self._plan.counted_from_s:
            return
        if process not in self._world.controls.values():
            return
        self.boundaries += 1
        if self.boundaries in self._plan.boundaries:
            self._crash_control(self._victim(process), self._plan.down_s)

    def _victim(self, process: Process) -> str:
        victim = self._plan.victim or process.name
        return self._world.leader() or process.name if victim == LEADER else victim

    def schedule(self, from_s: float, to_s: float) -> None:
        """Spread this run's random faults over the time given."""
        rng, world = self._rng, self._world
        kinds = {
            Profile.CALM: [],
            Profile.CONTROL: [self._crash_any_control] * 4 + [self._cut_control],
            Profile.NETWORK: [self._cut_client] * 4 + [self._partition] * 2,
            Profile.SERVERS: [self._kill_server, self._stop_server],
            Profile.RIGHTS: [self._withdraw_rights] * 3,
            Profile.CLOCKS: [self._step_clock] * 2 + [self._pause] * 4 + [self._partition],
            Profile.STORE: [self._trouble_store] * 2 + [self._crash_controller] * 2,
            Profile.LOSS: [self._lose_store, rng.choice((self._crash_any_control, self._kill_server, self._partition))],
            Profile.ALL: [
                self._crash_any_control,
                self._crash_any_control,
                self._cut_control,
                self._cut_client,
                self._cut_client,
                self._partition,
                self._kill_server,
                self._stop_server,
                self._withdraw_rights,
                self._trouble_store,
            ],
        }[self._plan.profile]
        for kind in kinds:
            world.timeline.after(from_s + rng.random() * (to_s - from_s) - world.timeline.now_s, self._happen, kind)
        stops_rng = Random(world.seed ^ 0x5709)  # drawn separately, so that the seed's other faults stay the same
        for _ in range(self._plan.stops):
            stop = partial(self._stop_leader, stops_rng.choice((0.05, 0.5, 2.5)) * (0.5 + stops_rng.random()))
            after_s = from_s + stops_rng.random() * (to_s - from_s) - world.timeline.now_s
            world.timeline.after(after_s, self._happen, stop)
        if self._plan.profile in (Profile.CONTROL, Profile.ALL):
            world.hosts["store"].server.observers.append(_Echo(world, rng))

    @property
    def lasts(self) -> bool:
        """Whether a process is paused or the store is in trouble."""
        return self._lasting > 0

    def calm(self) -> None:
        """No more faults from here on."""
        self._calm = True

    def _happen(self, kind) -> None:  # type: ignore[no-untyped-def]
        if not self._calm:
            kind()

    def _note(self, text: str) -> None:
        self.done.append(f"{self._world.timeline.now_s:.3f} {text}")

    # --- kinds

    def _crash_any_control(self) -> None:
        self._crash_control(self._rng.choice(sorted(self._world.controls)))

    def _crash_controller(self) -> None:
        self._crash_control(self._rng.choice([name for name in sorted(self._world.controls) if name[0] == "c"]))

    def _crash_control(self, name: str, down_s: float | None = None) -> None:
        if down_s is None:
            down_s = self._rng.choice((0.05, 0.3, 1.0, 2.5)) * (0.5 + self._rng.random())
        self._note(f"crash {name} for {down_s:.2f} s")
        self._world.crash_control(name, down_s)

    def _stop_leader(self, down_s: float) -> None:
        leader = self._world.leader()
        if leader is not None:
            self._note(f"shut down {leader} for {down_s:.2f} s")
            self._world.stop_controller(leader, down_s)

    def _cut_control(self) -> None:
        process = self._world.controls[self._rng.choice(sorted(self._world.controls))]
        self._cut(process)

    def _cut_client(self) -> None:
        self._cut(self._rng.choice(self._world.clients()))

    def _cut(self, process: Process) -> None:
        pipes = sorted(process.pipes)
        if pipes:
            link = self._rng.choice(pipes)
            self._note(f"cut {process.name} from {link}")
            process.pipes[link].cut()

    def _partition(self) -> None:
        world, rng = self._world, self._rng
        process = rng.choice([*(client.name for client in world.clients()), *sorted(world.controls)])
        server = rng.choice(sorted(world.hosts))
        for_s = rng.choice((0.2, 1.0, 4.0)) * (0.5 + rng.random())
        self._note(f"partition {process} from {server} for {for_s:.2f} s")
        world.network.partition(process, server, for_s)
        if server == "store":
            world.network.partition(process, DESK, for_s)

    def _kill_server(self) -> None:
        broker = self._rng.choice(sorted(self._world.brokers))
        silent, down_s = self._rng.random() < 0.3, self._rng.choice((0.1, 1.0, 6.0))
        self._note(f"kill server {broker}{' silently' if silent else ''} for {down_s} s")
        self._world.kill_server(broker, silent=silent, down_s=down_s)

    def _withdraw_rights(self) -> None:
        world, rng = self._world, self._rng
        topic = rng.choice(world.topics)
        channels = rng.choice(((topic,), (CONTROL + topic,), (topic, CONTROL + topic), (b"t*",)))
        for_s = rng.choice((0.1, 0.5, 2.5)) * (0.5 + rng.random())
        brokers = sorted(world.brokers) if rng.random() < 0.5 else [rng.choice(sorted(world.brokers))]
        self._note(f"withdraw the right to {channels} at {', '.join(brokers)} for {for_s:.2f} s")
        for broker in brokers:
            world.withdraw(broker, channels, for_s)

    def _stop_server(self) -> None:
        broker = self._rng.choice(sorted(self._world.brokers))
        for_s = self._rng.choice((0.3, 2.0, 5.0))
        self._note(f"stop server {broker} for {for_s} s")
        host = self._world.hosts[broker]
        host.stop()
        self._world.timeline.after(for_s, host.go_on)

    def _step_clock(self) -> None:
        host = self._rng.choice(sorted(self._world.clocks))
        by_s = self._rng.choice((-3600.0, -8.0, -1.0, 1.0, 8.0))
        self._note(f"step the clock of {host} by {by_s} s")
        self._world.clocks[host].step(by_s)

    def _pause(self) -> None:
        processes = [*self._world.clients(), *self._world.controls.values()]
        process = self._rng.choice(processes)
        if process.paused or not process.alive:
            return
        for_s = self._rng.choice((0.3, 1.5, 4.0)) * (0.5 + self._rng.random())
        self.pause(process, for_s)
        if self._rng.random() < 0.5:  # servers do not wait forever for a client that does not read
            self._world.timeline.after(self._rng.random() * for_s, self._happen, partial(self._cut, process))

    def pause(self, process: Process, for_s: float) -> None:
        self._note(f"pause {process.name} for {for_s:.2f} s")
        process.pause()
        self._last(for_s, process.wake)

    def _trouble_store(self) -> None:
        trouble = self._rng.choice(
            (StoreTrouble(slow_s=0.5), StoreTrouble(slow_s=2.0), StoreTrouble(fail_share=0.3), StoreTrouble(1.0, 0.2))
        )
        for_s = self._rng.choice((0.5, 2.0, 4.0))
        self._note(f"trouble with the store for {for_s} s: {trouble}")
        self.store_trouble = trouble
        self._last(for_s, self._end_trouble)

    def _lose_store(self) -> None:
        commits, down_s = self._rng.choice((None, None, 1, 3, 10)), self._rng.choice((0.05, 1.0, 4.0))
        back = "empty" if commits is None else f"as it was {commits} commits ago"
        self._note(f"the store ends and comes back after {down_s} s, {back}")
        self._world.lose_store(commits, down_s)
        self._last(down_s, lambda: None)
        kinds = self._rng.choice(("", "", "c", "a", "ca"))  # also ended: controllers, agents, or both
        for name in sorted(self._world.controls):
            if name[0] in kinds:
                self._crash_control(name, self._rng.choice((0.05, 1.0, 2.0)))

    def _end_trouble(self) -> None:
        self.store_trouble = NO_TROUBLE

    def _last(self, for_s: float, end: Callable[[], None]) -> None:
        def over() -> None:
            self._lasting -= 1
            end()

        self._lasting += 1
        self._world.timeline.after(for_s, over)


class _Echo:
    """Repeats control messages, immediately or much later."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._echoing = False

    def published(self, server: SimServer, channel: bytes, payload: bytes, receivers: Collection[Session]) -> None:
        on_bus = channel.startswith((AGENT_CHANNEL, CONTROLLER_CHANNEL))
        if self._echoing or not on_bus or self._rng.random() > self._world.setup.echoed_share:
            return
        self._world.timeline.after(
            self._rng.choice(self._world.setup.echoes_s), self._say_again, server, channel, payload
        )

    def installed(self, server: SimServer, topic: bytes, record: bytes) -> None:
        pass

    def appended(self, stream: bytes, topic: bytes, batch: bytes) -> None:
        pass

    def wiped(self, server: SimServer) -> None:
        pass

    def _say_again(self, server: SimServer, channel: bytes, payload: bytes) -> None:
        self._echoing = True
        server.publish(channel, payload)
        server.flush()
        self._echoing = False
