"""The operator of a simulated cluster: asks for random moves, lets brokers leave, and brings them back.

A broker that has left is stopped like a rented server would be, and after a while joins again with an empty memory.
The steps of a script are carried out one after the other, each when its time has come and its brokers are members.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nearcast.core import bus
from nearcast.core.controller import Controller
from nearcast.core.journal import BrokerEntry, BrokerState, broker_key, decode_entry
from nearcast.core.placement import Mode
from nearcast.sim.script import Add, Deafen, Intrude, Lose, LoseStore, Part, Pause, Readdress, Remove, Step

if TYPE_CHECKING:
    from nearcast.sim.world import World

LOOK_S = 0.2
CANCELLED_SHARE = 0.25  # of drains
AWAY_S = (0.2, 1.5)  # between stopping a broker that has left and starting it again


class Operator:
    def __init__(self, world: World, until_s: float) -> None:
        self._world = world
        self._until_s = until_s
        self._asked = 0
        self.steps = deque(world.setup.script)  # still to be carried out

    def begin(self) -> None:
        setup, timeline, rng = self._world.setup, self._world.timeline, self._world.rng
        self._go_on()
        if setup.moves_per_s:
            timeline.after(0.3, self._move)
        for _ in range(setup.drains):
            timeline.after(0.2 + rng.random() * 0.6 * setup.traffic_s, self._drain)

    # --- moves

    def _move(self) -> None:
        """Ask the leader for a random placement of a random topic."""
        world, rng, setup = self._world, self._world.rng, self._world.setup
        if world.timeline.now_s > self._until_s:
            return
        world.timeline.after(rng.expovariate(setup.moves_per_s), self._move)
        mode = rng.choice(setup.modes)
        count = 1 if mode is Mode.SINGLE else rng.randint(2, min(3, len(world.brokers)))
        target = tuple(rng.sample(world.brokers, count))
        topic = rng.choice(world.topics).decode()
        self.ask(bus.MoveTopics(self._request(), {topic: (mode, target)}), patient=True)

    def ask(self, request: bus.Request, *, patient: bool = False) -> bool:
        """Give the leader a request; the patient wait while another one has not begun. Returns whether it was heard."""
        for process in self._world.controls.values():
            controller = process.machine
            if not process.alive or process.paused or not isinstance(controller, Controller):
                continue
            if controller.reign is None:
                continue
            if patient and len(controller.reign.requests):
                return False
            controller.reign.heard(request, process.now_s)
            controller.reign.go_on(process.now_s)
            process.settle()
            return True
        return False

    def _request(self) -> str:
        self._asked += 1
        return f"operator.{self._asked}"

    # --- brokers that leave

    def _drain(self) -> None:
        world, rng = self._world, self._world.rng
        broker = rng.choice(world.brokers)
        if world.timeline.now_s > self._until_s or not self.ask(bus.Drain(self._request(), broker)):
            return
        if rng.random() < CANCELLED_SHARE:
            world.timeline.after(rng.random() * 0.3, self._cancel, broker)
        world.timeline.after(LOOK_S, self._look, broker)

    def _cancel(self, broker: str) -> None:
        self.ask(bus.Drain(self._request(), broker, cancel=True))

    def _look(self, broker: str) -> None:
        """Stop the broker when it has left."""
        world = self._world
        state = self._state(broker)
        if state is BrokerState.LEAVING:
            world.timeline.after(LOOK_S, self._look, broker)
        elif state is BrokerState.LEFT:
            world.stop_broker(broker, world.rng.uniform(*AWAY_S))

    # --- the script

    def _go_on(self) -> None:
        world = self._world
        while self.steps and world.timeline.now_s >= self.steps[0].at_s and self._carry_out(self.steps[0]):
            self.steps.popleft()
        if self.steps:
            world.timeline.after(LOOK_S, self._go_on)

    def _carry_out(self, step: Step) -> bool:
        """False: not yet."""
        if isinstance(step, Add):
            self._world.add_broker(step.broker)
            return True
        if isinstance(step, Lose):
            self._world.kill_server(step.broker, silent=False, down_s=step.away_s, told=step.told)
            return True
        if isinstance(step, LoseStore):
            self._world.lose_store(step.commits, step.away_s)
            return True
        if isinstance(step, Readdress | Intrude | Pause | Deafen | Part):
            return self._trouble(step)
        if isinstance(step, Remove):
            asked = self._state(step.broker) is BrokerState.MEMBER and self.ask(bus.Drain(self._request(), step.broker))
            if asked:
                self._world.timeline.after(LOOK_S, self._await_end, step.broker)
            return asked
        named = {broker for _, brokers in step.topics.values() for broker in brokers}
        if any(self._state(broker) is not BrokerState.MEMBER for broker in sorted(named)):
            return False
        return self.ask(bus.MoveTopics(self._request(), step.topics), patient=True)

    def _trouble(self, step: Readdress | Intrude | Pause | Deafen | Part) -> bool:
        """A fault of the script; False: not yet."""
        world = self._world
        leader = world.leader()
        if isinstance(step, Readdress):
            world.readdress(step.broker)
        elif isinstance(step, Intrude):
            world.intrude(step.broker, step.server)
        elif isinstance(step, Part):
            world.network.partition(step.process, step.server, step.for_s)
        elif leader is None:
            return False
        elif isinstance(step, Pause):
            world.faults.pause(world.controls[leader], step.for_s)
        else:
            followers = [name for name in sorted(world.controls) if name[0] == "c" and name != leader]
            world.network.partition(followers[0], "store", step.for_s)
        return True

    def _await_end(self, broker: str) -> None:
        if self._state(broker) is BrokerState.LEFT:
            self._world.end_broker(broker)
        else:
            self._world.timeline.after(LOOK_S, self._await_end, broker)

    def _state(self, broker: str) -> BrokerState | None:
        _, entries = self._world.store.load_now()
        value = entries.get(broker_key(broker))
        entry = decode_entry(broker_key(broker), value) if value is not None else None
        return entry.state if isinstance(entry, BrokerEntry) else None
