"""The programs of a simulation: publishers and subscribers that write down what they were promised and what came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client import Client
from nearcast.core.effects import Done, Failed
from nearcast.core.mailbox import Mailbox, Overflow
from nearcast.core.message import Event
from nearcast.errors import PublishBufferFull
from nearcast.sim.process import Process

if TYPE_CHECKING:
    from nearcast.sim.world import World


class Publication(msgspec.Struct, eq=False):
    """One message as its publisher knows it."""

    topic: bytes
    publisher: int
    sequence: int
    published_s: float
    acknowledged_s: float | None = None
    given_up: bool = False


class Publisher:
    def __init__(self, world: World, index: int, topics: list[bytes], *, until_s: float, rate_per_s: float) -> None:
        self.world = world
        self.machine = world.new_client(f"publisher {index}")
        self.process = Process(world, f"publisher {index}", self.machine)
        self.process.after = self._after
        self.publications: list[Publication] = []
        self._topics = topics
        self._until_s = until_s
        self._rate_per_s = rate_per_s
        world.seed_client(self.machine)
        self.process.settle()
        self._next()

    def _next(self) -> None:
        self.world.timeline.after(self.world.rng.expovariate(self._rate_per_s), self._publish)

    def _publish(self) -> None:
        timeline, rng = self.world.timeline, self.world.rng
        if timeline.now_s > self._until_s or not self.process.alive:
            return
        self._next()
        topic = rng.choice(self._topics)
        publication = Publication(topic, self.machine.client_id, 0, timeline.now_s)
        payload = b"%x-%d" % (self.machine.client_id, len(self.publications))
        try:
            self.machine.publish(topic, payload, int(timeline.now_s * 1e9), publication, timeline.now_s)
        except PublishBufferFull:
            return
        publication.sequence = self.machine.outflows[topic].sequence
        self.publications.append(publication)
        if rng.random() < self.world.setup.cancelled_share:
            publication.given_up = True
            self.machine.give_up(topic, publication)
        self.process.settle()

    def _after(self) -> None:
        acks, self.machine.acks = self.machine.acks, []
        for publication, _ in acks:
            assert isinstance(publication, Publication)
            publication.acknowledged_s = self.world.timeline.now_s
        for topic, outflow in self.machine.outflows.items():
            self.world.history.followed(topic, outflow.placement)


class Subscriber:
    """Subscribes at some moment, and may leave again."""

    def __init__(
        self, world: World, index: int, topic: bytes, *, pattern: bytes = b"", leave_s: float | None = None
    ) -> None:
        self.world = world
        self.name = f"subscriber {index}"
        self.topic = topic
        self.pattern = pattern
        self.machine: Client = world.new_client(self.name)
        self.process = Process(world, self.name, self.machine)
        self.process.after = self._after
        self.mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
        self.events: list[tuple[float, Event]] = []
        self.joined_s: float | None = None
        self.left_s: float | None = None
        self.failed: Exception | None = None
        world.seed_client(self.machine)
        if pattern:
            self.machine.psubscribe(pattern, self.mailbox, self, world.timeline.now_s)
        else:
            self.machine.subscribe(topic, self.mailbox, self, world.timeline.now_s)
        self.process.settle()
        if leave_s is not None:
            world.timeline.after(leave_s, self.leave)

    def leave(self) -> None:
        self.left_s = self.world.timeline.now_s
        if not self.pattern:
            self.machine.unsubscribe(self.topic, self.mailbox, self.left_s)
            self.process.settle()

    def _after(self) -> None:
        now_s = self.world.timeline.now_s
        for effect in self.machine.effects:
            if isinstance(effect, Done):
                self.joined_s = now_s
            elif isinstance(effect, Failed):
                self.failed = effect.error
        self.machine.effects.clear()
        if self.machine.woken:
            self.machine.woken.clear()
            if self.left_s is None:
                self.events += [(now_s, event) for event in self.mailbox.take()]
        inflow = self.machine.inflows.get(self.topic)
        if inflow is not None:
            self.world.history.followed(self.topic, inflow.placement)
