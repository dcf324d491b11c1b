"""The programs of a simulation: publishers and subscribers that write down what they were promised and what came."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client import Client
from nearcast.core.effects import Done, Failed
from nearcast.core.mailbox import Mailbox, Overflow
from nearcast.core.message import Event
from nearcast.core.wire import UserPayload
from nearcast.errors import PublishBufferFull
from nearcast.sim.process import Process

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
    given_up: bool = False  # by its caller, or with others by a flush that failed: it may have arrived or not
    failed: Exception | None = None


class Publisher:
    def __init__(self, world: World, index: int, topics: list[bytes], *, until_s: float, rate_per_s: float) -> None:
        self.world = world
        self.machine = world.new_client(f"publisher {index}")
        self.process = Process(world, f"publisher {index}", self.machine, world.new_clock())
        self.process.after = self._after
        self.publications: list[Publication] = []
        self.user = f"user {index}" if index % 3 == 1 else ""  # for whom it publishes, as gateways do
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
        payload = UserPayload.of(self.user, payload) if self.user else payload
        token = publication if waits else None
        try:
            self.machine.publish(topic, payload, int(self.process.clock.wall_s() * 1e9), token, self.process.now_s)
        except PublishBufferFull:
            return
        publication.sequence = self.machine.outflows[topic].sequence
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
        for topic, outflow in self.machine.outflows.items():
            self.world.history.followed(topic, outflow.placement)

    def untold(self) -> list[str]:
        """Publications that were neither acknowledged nor refused."""
        return [
            f"{self.process.name} was told nothing of number {publication.sequence} of {publication.topic!r}"
            for publication in self.publications
            if publication.acknowledged_s is None and publication.failed is None and not publication.given_up
        ]

    def _flush(self, now_s: float) -> None:
        """What `flush` would say now of the messages nobody waits for, topic by topic."""
        for topic in self.machine.refusals.take():
            for publication in self._unwaited.pop(topic, ()):
                publication.given_up = True
        for topic, waiting in self._unwaited.items():
            outflow = self.machine.outflows.get(topic)  # a topic ends when all is acknowledged
            while waiting and (outflow is None or waiting[0].sequence <= outflow.acknowledged):
                waiting.popleft().acknowledged_s = now_s


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
        self.process = Process(world, self.name, self.machine, world.new_clock())
        self.process.after = self._after
        self.mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
        self.events: list[tuple[float, Event]] = []
        self.joined_s: float | None = None
        self.left_s: float | None = None
        self.tries_forbidden = index % 3 == 0
        self.failed: Exception | None = None  # what became of the forbidden topic
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
        inflow = self.machine.inflows.get(self.topic)
        if inflow is not None:
            self.world.history.followed(self.topic, inflow.placement)
