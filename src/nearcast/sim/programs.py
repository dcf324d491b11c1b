"""The programs of a simulation, and its operator."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client.machine import Client
from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.controller.machine import Controller
from nearcast.core.model.journal import BrokerEntry, BrokerState, broker_key, decode_entry
from nearcast.core.model.message import Event
from nearcast.core.model.placement import Mode
from nearcast.core.wire import bus
from nearcast.core.wire.effects import Done, Failed
from nearcast.core.wire.frames import UserPayload
from nearcast.errors import PublishBufferFull
from nearcast.sim.faults import Profile
from nearcast.sim.process import Process
from nearcast.sim.script import Add, Deafen, Drop, Intrude, Keep, Lose, LoseStore, Part, Pause, Readdress, Remove, Step

if TYPE_CHECKING:
    from nearcast.sim.world import World


SECRET = b"secret"  # a topic that no program of a world may use
RETRY_S = 0.5


class Publication(msgspec.Struct, eq=False):
    """One message as its publisher knows it."""

    topic: bytes
    publisher: int
    sequence: int
    published_s: float
    acknowledged_s: float | None = None
    given_up: bool = False  # by its caller, or by a failed flush together with others: it may or may not have arrived
    failed: Exception | None = None


class Publisher:
    """Publishes at random moments, and writes down what was acknowledged and what was refused."""

    def __init__(self, world: World, index: int, topics: list[bytes], *, until_s: float, rate_per_s: float) -> None:
        self.world = world
        self.machine = world.new_client(f"publisher {index}")
        self.process = Process(world, f"publisher {index}", self.machine, world.new_clock())
        self.process.after = self._after
        self.publications: list[Publication] = []
        self.user = f"user {index}" if index % 3 == 1 else ""  # the user it publishes for, as gateways do
        self._unwaited: dict[bytes, deque[Publication]] = {}  # published without waiting, and not acknowledged yet
        self._topics = topics
        self._until_s = until_s
        self._rate_per_s = rate_per_s
        world.seed_client(self.machine, self.process.now_s)
        self.process.settle()
        self._next()

    def _next(self) -> None:
        self.world.timeline.after(self.world.rng.expovariate(self._rate_per_s), self._publish)

    def _publish(self) -> None:
        timeline, rng = self.world.timeline, self.world.rng
        if timeline.now_s > self._until_s or not self.process.alive:
            return
        self._next()
        if self.process.paused:
            return
        setup = self.world.setup
        topic = SECRET if rng.random() < setup.forbidden_share else rng.choice(self._topics)
        waits = rng.random() >= setup.unwaited_share
        publication = Publication(topic, self.machine.client_id, 0, timeline.now_s)
        payload = b"%x-%d" % (self.machine.client_id, len(self.publications))
        payload = payload.ljust(setup.payload_bytes, b".")
        payload = UserPayload.of(self.user, payload) if self.user else payload
        token = publication if waits else None
        try:
            self.machine.publish(topic, payload, int(self.process.clock.wall_s() * 1e9), token, self.process.now_s)
        except PublishBufferFull:
            return
        publication.sequence = self.machine.topic_publishers[topic].sequence
        self.publications.append(publication)
        if not waits:
            self._unwaited.setdefault(topic, deque()).append(publication)
        elif rng.random() < setup.cancelled_share:
            publication.given_up = True
            self.machine.give_up(topic, publication.sequence)
        self.process.settle()

    def _after(self) -> None:
        now_s = self.world.timeline.now_s
        acks, self.machine.acks = self.machine.acks, []
        for publication, _ in acks:
            assert isinstance(publication, Publication)
            publication.acknowledged_s = now_s
        for effect in self.machine.effects:
            if isinstance(effect, Failed) and isinstance(effect.token, Publication):
                effect.token.failed = effect.error
        self.machine.effects.clear()
        self._flush(now_s)
        for topic, topic_publisher in self.machine.topic_publishers.items():
            self.world.history.followed(topic, topic_publisher.placement)

    def untold(self) -> list[str]:
        """Publications that were neither acknowledged nor refused."""
        return [
            f"{self.process.name} got no answer for number {publication.sequence} of {publication.topic!r}"
            for publication in self.publications
            if publication.acknowledged_s is None and publication.failed is None and not publication.given_up
        ]

    def _flush(self, now_s: float) -> None:
        """Note what `flush` would report now about the messages that were published without waiting."""
        for topic in self.machine.refusals.take():
            for publication in self._unwaited.pop(topic, ()):
                publication.given_up = True
        for topic, waiting in self._unwaited.items():
            topic_publisher = self.machine.topic_publishers.get(topic)  # a topic ends when everything is acknowledged
            while waiting and (topic_publisher is None or waiting[0].sequence <= topic_publisher.acknowledged):
                waiting.popleft().acknowledged_s = now_s


class Subscriber:
    """Subscribes at some moment, may leave again, and writes down what it got."""

    def __init__(
        self, world: World, index: int, topic: bytes, *, pattern: bytes = b"", leave_s: float | None = None
    ) -> None:
        self.world = world
        self.name = f"subscriber {index}"
        self.topic = topic
        self.pattern = pattern
        self.machine: Client = world.new_client(self.name)
        self.process = Process(world, self.name, self.machine, world.new_clock())
        self.process.after = self._after
        self.mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
        self.events: list[tuple[float, Event]] = []
        self.joined_s: float | None = None
        self.left_s: float | None = None
        self.tries_forbidden = index % 3 == 0
        self.failed: Exception | None = None  # the outcome for the forbidden topic
        world.seed_client(self.machine, self.process.now_s)
        self._subscribe()
        if self.tries_forbidden:
            forbidden = Mailbox(10, 1000, Overflow.DROP_OLDEST, accept_foreign=False)
            self.machine.subscribe(SECRET, forbidden, SECRET, self.process.now_s)
        self.process.settle()
        if leave_s is not None:
            world.timeline.after(leave_s, self.leave)

    def _subscribe(self) -> None:
        if self.left_s is not None:
            return
        now_s = self.process.now_s
        if self.pattern:
            self.machine.psubscribe(self.pattern, self.mailbox, self, now_s)
        else:
            self.machine.subscribe(self.topic, self.mailbox, self, now_s)
        self.process.settle()

    def leave(self) -> None:
        self.left_s = self.world.timeline.now_s
        self.process.serve(self._unsubscribe)

    def _unsubscribe(self) -> None:
        if self.pattern:
            self.machine.punsubscribe(self.pattern, self.mailbox, self.process.now_s)
        else:
            self.machine.unsubscribe(self.topic, self.mailbox, self.process.now_s)
        self.process.settle()

    def _after(self) -> None:
        now_s = self.world.timeline.now_s
        for effect in self.machine.effects:
            if isinstance(effect, Done) and effect.token is self:
                self.joined_s = now_s
            elif isinstance(effect, Failed) and effect.token is self:
                self.world.timeline.after(
                    RETRY_S, self.process.serve, self._subscribe
                )  # the right to it was withdrawn for a while
            elif isinstance(effect, Failed):
                self.failed = effect.error
        self.machine.effects.clear()
        if self.machine.woken:
            self.machine.woken.clear()
            if self.left_s is None:
                self.events += [(now_s, event) for event in self.mailbox.take()]
        topic_subscriber = self.machine.topic_subscribers.get(self.topic)
        if topic_subscriber is not None:
            self.world.history.followed(self.topic, topic_subscriber.placement)


# --- the operator


LOOK_S = 0.2
CANCELLED_SHARE = 0.25  # of drains
AWAY_S = (0.2, 1.5)  # from stopping a broker that has left until it starts again


class Operator:
    """Asks for random moves, lets brokers leave, brings them back, and carries out the script.

    A broker that has left is stopped, as a rented server would be. After a while it joins again with an empty memory.
    """

    def __init__(self, world: World, until_s: float) -> None:
        self._world = world
        self._until_s = until_s
        self._asked = 0
        self.abandoned: set[str] = set()  # brokers whose messages it was ready to lose
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
        """Give the leader a request, a patient one only if no other is waiting. Returns whether it was given."""
        for process in self._world.controls.values():
            controller = process.machine
            if not process.alive or process.paused or not isinstance(controller, Controller):
                continue
            if controller.leading is None:
                continue
            if patient and len(controller.leading.requests):
                return False
            controller.leading.heard(request, process.now_s)
            controller.leading.go_on(process.now_s)
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
        # What no group reads would keep the broker here until it expires.
        abandon = not world.logs.all_read_by_groups or Random(world.seed ^ self._asked).random() < 0.5
        self.abandoned |= {broker} if abandon else set()
        drain = bus.Drain(self._request(), broker, abandon=abandon)
        if world.timeline.now_s > self._until_s or not self.ask(drain):
            return
        if rng.random() < CANCELLED_SHARE:
            world.timeline.after(rng.random() * 0.3, self._cancel, broker)
        world.timeline.after(LOOK_S, self._look, broker, abandon)

    def _cancel(self, broker: str) -> None:
        self.ask(bus.Drain(self._request(), broker, cancel=True))

    def _look(self, broker: str, abandon: bool) -> None:
        """Stop the broker when it has left."""
        world = self._world
        state = self._state(broker)
        if state in (BrokerState.LEAVING, None):
            if abandon:  # a store that has lost its data may have lost that too
                self.ask(bus.Drain(self._request(), broker, abandon=True))
            world.timeline.after(LOOK_S, self._look, broker, abandon)
        elif state is BrokerState.LEFT:
            world.stop_broker(broker, world.rng.uniform(*AWAY_S))
        elif world.plan.profile is Profile.LOSS:  # a lost store may have brought back a drain that was cancelled
            world.timeline.after(LOOK_S, self._look, broker, abandon)

    # --- the script

    def _go_on(self) -> None:
        world = self._world
        while self.steps and world.timeline.now_s >= self.steps[0].at_s and self._carry_out(self.steps[0]):
            self.steps.popleft()
        if self.steps:
            # What is published from the very moment on in which a log is there must be kept.
            look_s = LOOK_S / 100 if isinstance(self.steps[0], Keep | Drop) else LOOK_S
            world.timeline.after(look_s, self._go_on)

    def _carry_out(self, step: Step) -> bool:
        """Returns False if the step has to wait."""
        if isinstance(step, Keep | Drop):
            return self._world.logs.carry_out(step)
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
            self.abandoned.add(step.broker)
            drain = bus.Drain(self._request(), step.broker, abandon=True)
            asked = self._state(step.broker) is BrokerState.MEMBER and self.ask(drain)
            if asked:
                self._world.timeline.after(LOOK_S, self._await_end, step.broker)
            return asked
        named = {broker for _, brokers in step.topics.values() for broker in brokers}
        if any(self._state(broker) is not BrokerState.MEMBER for broker in sorted(named)):
            return False
        return self.ask(bus.MoveTopics(self._request(), step.topics), patient=True)

    def _trouble(self, step: Readdress | Intrude | Pause | Deafen | Part) -> bool:
        """Carry out a fault of the script. Returns False if it has to wait."""
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
