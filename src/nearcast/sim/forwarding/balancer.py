"""The load balancer: sends each new plan to all dispatchers, and again until they have it (paper, section IV.A.1)."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from nearcast.core.link import Link
from nearcast.core.names import decode_topic
from nearcast.core.ring import Ring
from nearcast.core.settings import DEFAULT_TIMING
from nearcast.core.store_names import AGENT_CHANNEL, CONTROLLER_CHANNEL
from nearcast.sim.forwarding.tethered import Tethered
from nearcast.sim.forwarding.timers import Timers
from nearcast.sim.forwarding.wire import Holding, Plan, Route, decode, encode

STORE = "store"  # the server on which dispatchers and the load balancer talk

_LONG_AGO_S = -1e9


class LoadBalancer(Tethered):
    def __init__(self, urls: Mapping[str, str], ring: Ring, rng: Random, timers: Timers) -> None:
        super().__init__({STORE: urls[STORE]}, rng)
        self.moves = 0
        self._ring = ring
        self._timers = timers
        self._plan = Plan(1, {})  # the paper's plan 0: every topic is where the ring has it
        self._moved_s: dict[bytes, float] = {}
        self._holding: dict[str, int] = {}  # broker -> version of the plan its dispatcher says it has
        self._sent_s: dict[str, float] = {}
        self.at(STORE, self._listen)

    def _listen(self, link: Link) -> None:
        link.control[CONTROLLER_CHANNEL] = self._heard
        link.subscribe(CONTROLLER_CHANNEL)

    def owner(self, topic: bytes) -> str:
        """The broker of a topic in the newest plan."""
        route = self._plan.routes.get(decode_topic(topic))
        return self._ring.owner(topic) if route is None else route.broker

    def rested(self, topic: bytes, now_s: float) -> bool:
        """Whether T_wait has passed since the topic's last move."""
        return now_s - self._moved_s.get(topic, _LONG_AGO_S) >= self._timers.wait_s

    def move(self, topic: bytes, broker: str, now_s: float) -> None:
        self.moves += 1
        self._moved_s[topic] = now_s
        version = self._plan.version + 1
        route = Route(broker, version, self.owner(topic))
        self._plan = Plan(version, {**self._plan.routes, decode_topic(topic): route})
        for name in self._ring.brokers:
            self._send(name, now_s)

    def _heard(self, payload: bytes, now_s: float) -> None:
        word = decode(payload)
        assert isinstance(word, Holding)
        self._holding[word.broker] = word.version
        if word.version == 0:
            self._send(word.broker, now_s)

    def _send(self, broker: str, now_s: float) -> None:
        self._sent_s[broker] = now_s
        data = encode(self._plan)
        self.at(STORE, lambda link: link.tell(AGENT_CHANNEL + broker.encode(), data))

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        for broker, version in self._holding.items():
            late = now_s - self._sent_s.get(broker, _LONG_AGO_S) >= DEFAULT_TIMING.retry_s
            if version < self._plan.version and late:
                self._send(broker, now_s)
