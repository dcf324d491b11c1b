"""The programs of the variant: publishers and subscribers that write down what was acknowledged and what came."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nearcast.sim.process import Process
from nearcast.sim.programs import Publication

if TYPE_CHECKING:
    from nearcast.sim.forwarding.world import ForwardingWorld


class Publisher:
    """Publishes at random moments, if it is given a rate, and whenever it is told to."""

    def __init__(self, world: ForwardingWorld, index: int, *, until_s: float = 0.0, rate_per_s: float = 0.0) -> None:
        self.machine = world.new_forwarding_client()
        self.process = Process(world, f"publisher {index}", self.machine)
        self.process.after = self._after
        self.publications: list[Publication] = []
        self._world = world
        self._until_s = until_s
        self._rate_per_s = rate_per_s
        self._sequences: Counter[bytes] = Counter()
        if rate_per_s:
            self._next()

    def _next(self) -> None:
        self._world.timeline.after(self._world.rng.expovariate(self._rate_per_s), self._publish_any)

    def _publish_any(self) -> None:
        if self._world.timeline.now_s <= self._until_s:
            self._next()
            self.publish(self._world.rng.choice(self._world.topics))

    def publish(self, topic: bytes) -> Publication:
        now_s = self._world.timeline.now_s
        self._sequences[topic] += 1
        publication = Publication(topic, self.machine.client_id, self._sequences[topic], now_s)
        self.publications.append(publication)
        self.machine.publish(topic, publication.sequence, publication, now_s)
        self.process.settle()
        return publication

    def _after(self) -> None:
        acknowledged, self.machine.acknowledged = self.machine.acknowledged, []
        for publication in acknowledged:
            assert isinstance(publication, Publication)
            publication.acknowledged_s = self._world.timeline.now_s


class Subscriber:
    """Subscribes at once and stays.

    By its own view it is subscribed as soon as a server has confirmed. We count from when the *right* server of the
    newest plan has: what a newcomer misses while it finds its way is not held against the variant.
    """

    def __init__(self, world: ForwardingWorld, index: int, topic: bytes) -> None:
        self.name = f"subscriber {index}"
        self.topic = topic
        self.machine = world.new_forwarding_client()
        self.process = Process(world, self.name, self.machine)
        self.process.after = self._after
        self.received: list[tuple[int, int]] = []  # (publisher, sequence)
        self.joined_s: float | None = None
        self._world = world
        self.machine.subscribe(topic)
        self.process.settle()

    @property
    def attached(self) -> str | None:
        """The broker it is subscribed at, None while that is changing."""
        return self.machine.subscriptions[self.topic].attached

    def _after(self) -> None:
        delivered, self.machine.delivered = self.machine.delivered, []
        self.received += delivered
        if self.joined_s is None and self.attached == self._world.balancer.owner(self.topic):
            self.joined_s = self._world.timeline.now_s
