"""The observer: the last seconds of load, and the snapshot a policy sees of them.

As in the controller (core/load_book.py) rates are means over the last `window_s`. What is measured is what servers
sent and subscribers got, not what was asked for: a server that cannot keep up reports its limit.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from nearcast.core.snapshot import BrokerLoad, Snapshot, TopicLoad
from nearcast.flow.demand import BoolArray, FloatArray
from nearcast.flow.fleet import Fleet
from nearcast.flow.settings import FlowSettings


class Measured(NamedTuple):
    """One step. `topics`: the figures of TopicLoad in their order, one row each. The others are per broker."""

    topics: FloatArray
    output_bytes_per_s: FloatArray
    cpu: FloatArray
    subscribers: FloatArray


class Observer:
    def __init__(self, topics: tuple[str, ...], settings: FlowSettings) -> None:
        self._names = np.array(topics, dtype=object)
        self._settings = settings
        self._window: deque[Measured] = deque(maxlen=settings.window_steps)

    def add(self, measured: Measured) -> None:
        self._window.append(measured)

    def loaded(self) -> BoolArray:
        """The topics that a snapshot would name."""
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
        """A broker that joined within the window has no figures for the time before: they count as 0."""
        return sum(float(step[row]) for step in steps if row < len(step)) / len(steps)


def _loaded(topics: FloatArray) -> BoolArray:
    """With publishers or subscribers."""
    return (topics[0] > 0) | (topics[2] > 0)
