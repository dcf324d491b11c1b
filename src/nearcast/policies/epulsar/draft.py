"""The draft: the plan P of Algorithm 1 while it is being made, and `can_host`."""

from __future__ import annotations

from collections.abc import MutableSequence
from enum import StrEnum
from typing import cast

import msgspec
import numpy as np

from nearcast.core.model.placement import Plan
from nearcast.core.model.planning import Snapshot, TopicLoad
from nearcast.policies.epulsar.config import EPulsarConfig
from nearcast.policies.loads import NOWHERE, Flags, Floats, Loads

_IDLE = TopicLoad()
_NOTHING = (0.0, 0.0, 0.0, 0.0)


class Constraint(StrEnum):
    """What rules a broker out for a topic."""

    BOUND = "bound"  # messages would take too long
    UNKNOWN = "unknown"  # nobody knows how long they would take
    DRAINING = "draining"  # the broker is being removed
    REPLICAS = "replicas"  # too few for the quorum of the topic's log
    NETWORK = "network"
    CPU = "cpu"
    MESSAGES = "messages"  # R_out^th
    MEMORY = "memory"


class Obstacle(msgspec.Struct, frozen=True):
    """A constraint, the value it would have with the topic, and its limit. Seconds, shares or messages per second."""

    constraint: Constraint
    value: float
    limit: float

    def __str__(self) -> str:
        if self.constraint in (Constraint.UNKNOWN, Constraint.DRAINING):
            return str(self.constraint)
        sign = "<" if self.constraint is Constraint.REPLICAS else ">"
        return f"{self.constraint} {self.value:.4g} {sign} {self.limit:.4g}"


class Draft:
    """The plan while it is being made, with the load that each broker would have.

    It is the copy of P_0 that line 9 changes. Views of the arrays serve single elements, which are slow to read from
    arrays: topics are placed one after another.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, config: EPulsarConfig) -> None:
        self.loads = loads = Loads.of(snapshot, plan)
        self.config = config
        self.brokers = [snapshot.brokers[name] for name in loads.brokers]
        topics = [snapshot.topics.get(topic, _IDLE) for topic in loads.topics]
        self.deliveries = np.fromiter((topic.deliveries_per_s for topic in topics), np.float64, len(topics))
        self.rate = loads.publications + self.deliveries  # R_out(t): in and out (section 3.4.3)
        self.rates_on = self._rates()
        self.rate_on = _view(self.rates_on)  # changes with the plan
        self.cpu_of = self._cpu()
        self.home: list[int] = loads.home.tolist()  # P[t]
        self._outputs = loads.output.copy()
        self._cpus = np.array([broker.cpu_share for broker in self.brokers])
        self._messages = np.array([broker.messages_per_s for broker in self.brokers])
        self._highs = loads.capacity * config.resource_high
        own = np.array([broker.messages_high_per_s for broker in self.brokers])
        self._messages_highs = np.where(own > 0, own, config.messages_high_per_s)
        self._full = np.array([broker.memory_share > config.resource_high for broker in self.brokers], np.bool_)
        self.output, self.cpu, self.messages = _view(self._outputs), _view(self._cpus), _view(self._messages)
        self._output_high = _view(self._highs)
        self.messages_high = _view(self._messages_highs)  # R_out^th: a broker's own, or else the configured one
        self._closed = (self._full | loads.draining).tolist()
        # Of each topic. No tuples: a hundred thousand of them would keep the garbage collector busy.
        self._loads_of = [_view(column) for column in (loads.traffic, self.deliveries, self.cpu_of, self.rate)]

    def _rates(self) -> Floats:
        """The sum of R_out of each broker's topics. A replicated topic divides evenly over its brokers."""
        loads = self.loads
        here = loads.home != NOWHERE
        found: Floats = np.bincount(loads.home[here], self.rate[here], len(loads.brokers)).astype(np.float64)
        for topic, brokers in loads.replicas.items():
            for broker in brokers:
                found[broker] += self.rate[topic] / len(brokers)
        return found

    def _cpu(self) -> Floats:
        """What each topic takes of its broker's CPU: topics with the same rate are the same load (section 3.4.3)."""
        cpu = np.array([broker.cpu_share for broker in self.brokers])
        each = np.divide(cpu, self.rates_on, out=np.zeros(len(cpu)), where=self.rates_on > 0)
        return np.where(self.loads.home == NOWHERE, 0.0, each[self.loads.home] * self.rate) if len(each) else self.rate

    def _load_of(self, topic: int) -> list[float]:
        return [column[topic] for column in self._loads_of]

    # --- can_host

    def can_host(self, topic: int, broker: int) -> bool:
        """Whether the broker is not overloaded with this topic. The topic's own load counts once if it is there."""
        if self.home[topic] == broker:
            return not self.obstacles(topic, broker)
        traffic, deliveries, cpu, _ = self._loads_of
        return (
            not self._closed[broker]
            and self.output[broker] + traffic[topic] <= self._output_high[broker]
            and self.cpu[broker] + cpu[topic] <= self.config.resource_high
            and self.messages[broker] + deliveries[topic] <= self.messages_high[broker]
        )

    def obstacles(self, topic: int, broker: int) -> list[Obstacle]:
        """Why it cannot host: the same conditions, one by one."""
        found, row = [], self.brokers[broker]
        at_home = self.home[topic] == broker
        traffic, deliveries, cpu, _ = _NOTHING if at_home else self._load_of(topic)
        high = self.config.resource_high
        if row.draining:
            found.append(Obstacle(Constraint.DRAINING, 1.0, 0.0))
        if row.memory_share > high and not at_home:
            found.append(Obstacle(Constraint.MEMORY, row.memory_share, high))
        measures = (
            (Constraint.NETWORK, self.output[broker] + traffic, self._output_high[broker], row.capacity_bytes_per_s),
            (Constraint.CPU, self.cpu[broker] + cpu, high, 1.0),
            (Constraint.MESSAGES, self.messages[broker] + deliveries, self.messages_high[broker], 1.0),
        )
        for constraint, value, limit, unit in measures:
            if not value <= limit:
                found.append(Obstacle(constraint, value / unit, limit / unit))
        return found

    def overload(self, broker: int) -> list[Obstacle]:
        """What of a broker is above its threshold as the plan stands (section 3.4.2)."""
        row, high = self.brokers[broker], self.config.resource_high
        measures = (
            (Constraint.NETWORK, self.output[broker] / row.capacity_bytes_per_s, high),
            (Constraint.CPU, self.cpu[broker], high),
            (Constraint.MESSAGES, self.messages[broker], self.messages_high[broker]),
            (Constraint.MEMORY, row.memory_share, high),
        )
        return [Obstacle(constraint, value, limit) for constraint, value, limit in measures if value > limit]

    def lightest_host(self, topic: int, allowed: Flags) -> int:
        """Of the allowed brokers that can host the topic, the one with the lowest load ratio; NOWHERE if none can."""
        traffic, deliveries, cpu, _ = self._load_of(topic)
        room = allowed & ~self._full & ~self.loads.draining
        room &= self._outputs + traffic <= self._highs
        room &= self._cpus + cpu <= self.config.resource_high
        room &= self._messages + deliveries <= self._messages_highs
        found = np.flatnonzero(room)
        return int(found[np.argmin(self.ratio[found])]) if len(found) else NOWHERE

    @property
    def ratio(self) -> Floats:
        return self._outputs / self.loads.capacity

    # --- changing

    def move(self, topic: int, broker: int) -> None:
        """Line 9: P[t] <- b."""
        source = self.home[topic]
        traffic, deliveries, cpu, rate = self._load_of(topic)
        for place, sign in ((source, -1), (broker, 1)):
            self.output[place] += sign * traffic
            self.messages[place] += sign * deliveries
            self.cpu[place] += sign * cpu
            self.rate_on[place] += sign * rate
        self.home[topic] = broker

    def predicted(self) -> dict[str, float]:
        return dict(zip(self.loads.brokers, np.maximum(self.ratio, 0.0).tolist(), strict=True))


def _view(array: Floats) -> MutableSequence[float]:
    return cast("MutableSequence[float]", array.data)
