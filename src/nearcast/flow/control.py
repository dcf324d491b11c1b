"""The controller's side of the flow simulator: brokers, placements, moves, and what a policy sees."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nearcast.core.model.membership import Ring
from nearcast.core.model.placement import Mode, Placement, Plan, problems
from nearcast.core.model.planning import BrokerLoad, PlaceTopic, Snapshot, TopicLoad
from nearcast.errors import UsageError
from nearcast.flow.model import BoolArray, ChangeKind, FloatArray, FlowSettings, IntArray, PlanChange
from nearcast.flow.traffic import NOWHERE, Layout, TopicTraffic

# --- fleet


class Fleet:
    """Which brokers exist, are coming, and are leaving: the counterpart of a provider of real servers.

    A broker has a row in the arrays: its number in order of joining, never reused after it is released.
    """

    def __init__(self, brokers: int, settings: FlowSettings) -> None:
        if not 1 <= brokers <= settings.brokers_max:
            raise UsageError(f"{brokers} brokers at the start: use 1 to {settings.brokers_max} (brokers_max)")
        self._settings = settings
        self.names: list[str] = []  # by row, of all brokers there ever were
        self.rows: dict[str, int] = {}  # of the brokers there are now
        self.draining: set[str] = set()
        self.rented: set[str] = set()
        self._due_s: list[float] = []  # of the brokers that are coming
        for _ in range(brokers):
            self._join()
        self.ring = self._new_ring()

    @property
    def coming(self) -> int:
        return len(self._due_s)

    @property
    def spare(self) -> int:
        return self._settings.brokers_max - len(self.rows) - self.coming

    # --- growing

    def rent(self, count: int, now_s: float) -> None:
        self._due_s += [now_s + self._settings.start_s] * min(count, self.spare)

    def joined(self, now_s: float) -> list[str]:
        """The brokers that join now."""
        due = [due_s for due_s in self._due_s if due_s <= now_s]
        self._due_s = [due_s for due_s in self._due_s if due_s > now_s]
        names = [self._join() for _ in due]
        self.rented.update(names)
        if names:
            self.ring = self._new_ring()
        return names

    def _join(self) -> str:
        name = f"b{len(self.names) + 1}"
        self.rows[name] = len(self.names)
        self.names.append(name)
        return name

    # --- shrinking

    def drain(self, name: str) -> bool:
        """Returns whether the broker is draining from now on; the last one cannot be drained."""
        if name not in self.rows or len(self.rows) - len(self.draining) <= 1:
            return False
        self.draining.add(name)
        self.ring = self._new_ring()
        return True

    def keep(self, name: str) -> None:
        self.draining.discard(name)
        self.ring = self._new_ring()

    def release(self, name: str) -> None:
        del self.rows[name]
        self.draining.discard(name)
        self.rented.discard(name)

    def _new_ring(self) -> Ring:
        staying = [name for name in self.rows if name not in self.draining]
        return Ring(staying, self._settings.virtual_nodes)


# --- placements


Place = tuple[Mode, tuple[str, ...]]


class Placements:
    """The placements of all topics: by name as the plan that a policy sees, by number as the layout of the arrays."""

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
        """Every topic that was ever used and is not forgotten. It is a new object whenever something has changed."""
        return self._plan

    def number(self, topic: str) -> int:
        if topic not in self._index:
            raise UsageError(f"the workload has no topic {topic!r}: place only its own topics")
        return self._index[topic]

    def first_use(self, loaded: BoolArray) -> None:
        """Put topics without a placement on their ring owner, as the product does."""
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
        """Drop the placements of these topics; they are placed again when they are next used."""
        topics = dict(self._plan.topics)
        for number in numbers.tolist():
            del topics[self._topics[number]]
        self.layout.forget(numbers)
        self._changed(topics)

    def _changed(self, topics: dict[str, Placement]) -> None:
        self.layout.build()
        self._plan = Plan(self._plan.version + 1, topics)


# --- moves


@dataclass(frozen=True, slots=True)
class _Move:
    number: int  # of the topic
    place: PlaceTopic
    began_s: float
    due_s: float


class Moves:
    """Moves in progress: topics still at their old brokers, while their clients attach to the new ones.

    A move takes `move_s` and costs control frames at the old and at the new brokers. Messages are not duplicated,
    because a publisher writes to the old placement until the fence and to the new one after it.
    """

    def __init__(self, placements: Placements, fleet: Fleet, settings: FlowSettings) -> None:
        self._placements = placements
        self._fleet = fleet
        self._settings = settings
        self._under_way: list[_Move] = []

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, places: list[PlaceTopic], now_s: float) -> None:
        due_s = now_s + self._settings.move_s
        self._under_way += [_Move(self._placements.number(place.topic), place, now_s, due_s) for place in places]

    def finish(self, now_s: float) -> list[PlanChange]:
        """Make the moves that are due take effect."""
        done = [move for move in self._under_way if move.due_s <= now_s]
        if done:
            self._under_way = [move for move in self._under_way if move.due_s > now_s]
            self._placements.place({move.place.topic: (move.place.mode, move.place.brokers) for move in done})
        return [
            PlanChange(
                at_s=now_s,
                kind=ChangeKind.PLACED,
                topic=move.place.topic,
                mode=move.place.mode,
                brokers=move.place.brokers,
                began_s=move.began_s,
            )
            for move in done
        ]

    def moving(self, topics: int) -> BoolArray:
        mask = np.zeros(topics, dtype=np.bool_)
        mask[[move.number for move in self._under_way]] = True
        return mask

    def involve(self, broker: str) -> bool:
        return any(broker in move.place.brokers for move in self._under_way)

    def bytes_per_s(self, traffic: TopicTraffic, rows: int) -> FloatArray:
        """Control frames, per broker."""
        total = np.zeros(rows)
        plan = self._placements.plan.topics
        for move in self._under_way:
            clients = traffic.subscribers[move.number] + traffic.publishers[move.number]
            bytes_per_s = clients * self._settings.move_bytes / max(self._settings.move_s, self._settings.step_s)
            for brokers in (plan[move.place.topic].brokers, move.place.brokers):
                for broker in brokers:
                    total[self._fleet.rows[broker]] += bytes_per_s / len(brokers)
        return total


# --- observer


class Measured(NamedTuple):
    """One step's measurements. `topics` has a row for each figure of TopicLoad, in order; the rest is per broker."""

    topics: FloatArray
    output_bytes_per_s: FloatArray
    cpu: FloatArray
    subscribers: FloatArray


class Observer:
    """Keeps the last seconds of load, and makes the snapshot that a policy sees.

    As in the controller (core/controller/planner.py), rates are means over the last `window_s`. It measures what was
    sent and received, not what was requested: a server that cannot keep up reports its limit.
    """

    def __init__(self, topics: tuple[str, ...], settings: FlowSettings) -> None:
        self._names = np.array(topics, dtype=object)
        self._settings = settings
        self._window: deque[Measured] = deque(maxlen=settings.window_steps)

    def add(self, measured: Measured) -> None:
        self._window.append(measured)

    def loaded(self) -> BoolArray:
        """The topics that a snapshot would contain."""
        return _loaded(self._topics())

    def snapshot(self, at_s: float, fleet: Fleet, known: frozenset[str]) -> Snapshot:
        """`known`: brokers the policy has seen before; the others are fresh."""
        topics = self._topics()
        loaded = np.flatnonzero(_loaded(topics))
        figures = topics[:, loaded].tolist()
        loads = dict(zip(self._names[loaded].tolist(), map(TopicLoad, *figures), strict=True))
        brokers = {name: self._broker(name, row, fleet, known) for name, row in fleet.rows.items()}
        return Snapshot(at_s, brokers, loads, fleet.spare, fleet.coming)

    def _topics(self) -> FloatArray:
        total = self._window[0].topics.copy()
        for step in range(1, len(self._window)):
            total += self._window[step].topics
        return total / len(self._window)

    def _broker(self, name: str, row: int, fleet: Fleet, known: frozenset[str]) -> BrokerLoad:
        return BrokerLoad(
            capacity_bytes_per_s=self._settings.capacity_bytes_per_s,
            output_bytes_per_s=self._mean([measured.output_bytes_per_s for measured in self._window], row),
            cpu_share=min(1.0, self._mean([measured.cpu for measured in self._window], row)),
            connections=round(self._mean([measured.subscribers for measured in self._window], row)),
            draining=name in fleet.draining,
            removable=name in fleet.rented,
            fresh=name not in known,
        )

    def _mean(self, steps: list[FloatArray], row: int) -> float:
        """The mean over the window. The time before a broker joined counts as 0."""
        return sum(float(step[row]) for step in steps if row < len(step)) / len(steps)


def _loaded(topics: FloatArray) -> BoolArray:
    """The topics with publishers or subscribers."""
    return (topics[0] > 0) | (topics[2] > 0)
