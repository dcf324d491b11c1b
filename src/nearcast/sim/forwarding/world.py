"""A world of the variant: the simulator's servers, network and faults, with other processes and programs.

    agent bN      -> a dispatcher, next to its server
    controller 0  -> the load balancer

Everything else, such as what is started when and how a crash works, is as in `sim/world.py`. The programs are
publishers and subscribers that write down what was acknowledged and what arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from random import Random

import msgspec

from nearcast.core.model.membership import Ring
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.forwarding.client import Client
from nearcast.sim.forwarding.dispatcher import Dispatcher, LoadBalancer
from nearcast.sim.forwarding.wire import Timers
from nearcast.sim.network import LinkModel, Network, Timeline
from nearcast.sim.process import Process
from nearcast.sim.programs import Publication
from nearcast.sim.world import START_S, Setup, World

# --- programs


class Publisher:
    """Publishes at random moments if it has a rate, and whenever it is asked to."""

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

    From its own point of view it is subscribed as soon as a server has confirmed. We count from when the *right*
    server, by the newest plan, has confirmed: what a newcomer misses before that is not counted as lost.
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
        """The broker it is subscribed at; None while that is changing."""
        return self.machine.subscriptions[self.topic].attached

    def _after(self) -> None:
        delivered, self.machine.delivered = self.machine.delivered, []
        self.received += delivered
        if self.joined_s is None and self.attached == self._world.balancer.owner(self.topic):
            self.joined_s = self._world.timeline.now_s


BALANCER = "controller 0"

# --- network and world


# How long a forwarded message may still take after the last reply: two links of the network, with a spike on each.
ON_ITS_WAY_S = 2.0

# Between two hosts of one data centre, without spikes. The paper's servers are "connected by a LAN" (section V.B).
LAN = LinkModel(base_s=0.0003, jitter_s=0.0005, spike_share=0.0)

# (process, server) -> how long bytes take between them; None: the network draws it.
LinkRule = Callable[[str, str], LinkModel | None]


def brokers_apart(process: str, server: str) -> LinkModel | None:
    """Brokers are where the users are: a dispatcher reaches another server as a client would."""
    return None


def one_data_centre(process: str, server: str) -> LinkModel | None:
    """All servers, dispatchers and the load balancer are in one place; clients are not."""
    beside = process == f"agent {server}"
    return LAN if process.startswith(("agent ", "controller ")) and not beside else None


class _RuledNetwork(Network):
    """A network in which a rule gives the delays of some links, instead of chance."""

    def __init__(self, timeline: Timeline, rng: Random, rule: LinkRule) -> None:
        super().__init__(timeline, rng)
        self._rule = rule

    def model(self, process: str, server: str) -> LinkModel:
        return self._rule(process, server) or super().model(process, server)


class ForwardingWorld(World):
    """A world in which topics move as in the paper."""

    def __init__(
        self, seed: int, setup: Setup, *, links: LinkRule = brokers_apart, timers: Timers | None = None
    ) -> None:
        self.timers = timers or Timers()
        self.senders: list[Publisher] = []
        self.receivers: list[Subscriber] = []
        self._moves_per_s = setup.moves_per_s
        super().__init__(seed, msgspec.structs.replace(setup, moves_per_s=0.0), FaultPlan(Profile.CALM))
        network = _RuledNetwork(self.timeline, self.network.rng, links)
        network.hosts.update(self.network.hosts)
        self.network = network
        if self._moves_per_s:
            self.timeline.after(START_S + 0.3, self._move)

    @cached_property
    def ring(self) -> Ring:
        return Ring(self.brokers)

    @cached_property
    def urls(self) -> dict[str, str]:
        return {host.server.name: url for url, host in self.network.hosts.items()}

    @property
    def balancer(self) -> LoadBalancer:
        machine = self.controls[BALANCER].machine
        assert isinstance(machine, LoadBalancer)
        return machine

    # --- parts

    def _start_control(self, name: str) -> None:
        kind, _, which = name.partition(" ")
        rng = Random(self.rng.getrandbits(64))
        if kind == "agent":
            dispatcher = Dispatcher(which, self.topics, self.urls, self.ring, rng, self.timers)
            self.controls[name] = Process(self, name, dispatcher)
        else:
            self.controls[name] = Process(self, name, LoadBalancer(self.urls, self.ring, rng, self.timers))

    def new_forwarding_client(self) -> Client:
        rng = Random(self.rng.getrandbits(64))
        return Client(rng.getrandbits(64), self.urls, self.ring, rng, self.timers)

    def clients(self) -> list[Process]:
        return [program.process for program in self.senders] + [program.process for program in self.receivers]

    # --- what happens

    def _subscribe(self, index: int) -> None:
        self.receivers.append(Subscriber(self, index, self.rng.choice(self.topics)))

    def _publish(self, index: int) -> None:
        self.senders.append(Publisher(self, index, until_s=self._end_s, rate_per_s=self.setup.rate_per_s))

    def _move(self) -> None:
        """A new plan moves a random topic, unless it was moved less than T_wait ago."""
        now_s = self.timeline.now_s
        if now_s > self._end_s:
            return
        self.timeline.after(self.rng.expovariate(self._moves_per_s), self._move)
        topic = self.rng.choice(self.topics)
        if self.balancer.rested(topic, now_s):
            others = [broker for broker in self.brokers if broker != self.balancer.owner(topic)]
            self.move(topic, self.rng.choice(others))

    def move(self, topic: bytes, broker: str) -> None:
        self.balancer.move(topic, broker, self.timeline.now_s)
        self.controls[BALANCER].settle()

    def unfinished(self) -> list[str]:
        found = []
        if self.timeline.now_s < self._end_s + ON_ITS_WAY_S:
            found.append("messages may be in flight")
        waiting = [p for sender in self.senders for p in sender.publications if p.acknowledged_s is None]
        if waiting:
            found.append(f"{len(waiting)} publications were not answered")
        return found
