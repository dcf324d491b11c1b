"""Snapshot and plan as arrays, for policies to compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.core.model.placement import Mode, Placement, Plan
from nearcast.core.model.planning import Snapshot, TopicLoad

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int32]

NOWHERE = -1  # the home of a topic that is on several brokers, or on no known one

_IDLE = TopicLoad()
_REPLICATED = (Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)


class Loads(msgspec.Struct, frozen=True, eq=False):
    """Columns by broker number, then columns by topic number.

    Brokers and topics are numbered in the order of their names, so that the order of the caller's mappings does not
    matter. A topic that a policy cannot move now, because its placement names a broker that is not in the snapshot or
    has a mode without shares, has no home and no replicas here: it only shows in the output of its brokers.
    """

    brokers: tuple[str, ...]
    capacity: Floats  # T_i, bytes per second
    output: Floats  # M_i, bytes per second, measured
    draining: Flags
    removable: Flags
    fresh: Flags

    topics: list[str]
    placements: list[Placement]
    traffic: Floats  # outgoing bytes per second, all brokers of the topic together
    publishers: Floats
    publications: Floats  # per second
    subscribers: Floats
    home: Numbers  # the broker of a topic that has only one
    replicas: dict[int, tuple[int, ...]]  # the brokers of a topic that has several

    @staticmethod
    def of(snapshot: Snapshot, plan: Plan) -> Loads:
        brokers = tuple(sorted(snapshot.brokers))
        rows = [snapshot.brokers[name] for name in brokers]
        topics = sorted(plan.topics)
        placements = [plan.topics[topic] for topic in topics]
        loads = [snapshot.topics.get(topic, _IDLE) for topic in topics]
        home, replicas = _places(placements, {name: number for number, name in enumerate(brokers)})
        return Loads(
            brokers,
            _column(rows, "capacity_bytes_per_s"),
            _column(rows, "output_bytes_per_s"),
            _column(rows, "draining") > 0,
            _column(rows, "removable") > 0,
            _column(rows, "fresh") > 0,
            topics,
            placements,
            _column(loads, "output_bytes_per_s"),
            _column(loads, "publishers"),
            _column(loads, "publications_per_s"),
            _column(loads, "subscribers"),
            home,
            replicas,
        )


def _column(rows: Sequence[object], field: str) -> Floats:
    return np.fromiter(map(attrgetter(field), rows), np.float64, len(rows))


def _places(placements: Sequence[Placement], numbers: Mapping[str, int]) -> tuple[Numbers, dict[int, tuple[int, ...]]]:
    home = np.full(len(placements), NOWHERE, np.int32)
    replicas: dict[int, tuple[int, ...]] = {}
    single = Mode.SINGLE
    homes = [
        numbers.get(placement.brokers[0], NOWHERE) if placement.mode is single else NOWHERE for placement in placements
    ]
    home[:] = homes
    for topic in np.flatnonzero(home == NOWHERE).tolist():
        placement = placements[topic]
        if placement.mode in _REPLICATED and all(broker in numbers for broker in placement.brokers):
            replicas[topic] = tuple(numbers[broker] for broker in placement.brokers)
    return home, replicas
