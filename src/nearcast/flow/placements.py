"""The placements of all topics by name, as the plan a policy sees, and by number, as the layout the arrays need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nearcast.core.placement import Mode, Placement, problems
from nearcast.core.plan import Plan
from nearcast.errors import UsageError
from nearcast.flow.demand import BoolArray, IntArray
from nearcast.flow.fleet import Fleet
from nearcast.flow.layout import NOWHERE, Layout

Place = tuple[Mode, tuple[str, ...]]


class Placements:
    def __init__(self, topics: tuple[str, ...], fleet: Fleet, given: Mapping[str, Place]) -> None:
        if len(set(topics)) != len(topics):
            raise UsageError("the workload names a topic twice: every topic needs its own name")
        self.layout = Layout(len(topics))
        self._topics = topics
        self._index = {topic: number for number, topic in enumerate(topics)}
        self._fleet = fleet
        self._plan = Plan(0, {})
        self.place(given)

    @property
    def plan(self) -> Plan:
        """Every topic that was ever used and is not forgotten. A new object whenever something has changed."""
        return self._plan

    def number(self, topic: str) -> int:
        if topic not in self._index:
            raise UsageError(f"the workload has no topic {topic!r}: place only its own topics")
        return self._index[topic]

    def first_use(self, loaded: BoolArray) -> None:
        """Put topics that nobody has placed on the owner the ring gives them, as the product does."""
        new = np.flatnonzero(loaded & (self.layout.home == NOWHERE))
        if len(new):
            names = [self._topics[number] for number in new.tolist()]
            self.place({name: (Mode.SINGLE, (self._fleet.ring.owner(name.encode()),)) for name in names})

    def place(self, places: Mapping[str, Place]) -> None:
        known = frozenset(self._fleet.rows)
        topics = dict(self._plan.topics)
        for topic, (mode, brokers) in places.items():
            before = topics.get(topic)
            placement = Placement(before.epoch + 1 if before else 1, mode, brokers)
            wrong = problems(placement, known)
            if wrong:
                raise UsageError(f"topic {topic!r}: {wrong[0]}")
            topics[topic] = placement
            self.layout.place(self.number(topic), mode, tuple(self._fleet.rows[broker] for broker in brokers))
        self._changed(topics)

    def forget(self, numbers: IntArray) -> None:
        """These topics are placed anew when they are used again."""
        topics = dict(self._plan.topics)
        for number in numbers.tolist():
            del topics[self._topics[number]]
        self.layout.forget(numbers)
        self._changed(topics)

    def _changed(self, topics: dict[str, Placement]) -> None:
        self.layout.build()
        self._plan = Plan(self._plan.version + 1, topics)
