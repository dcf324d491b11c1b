"""Proposals: what a policy wants changed, and why. Policies propose, the controller disposes.

Every change carries its reason in a form a program can read, what it is expected to do, and what it costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec

from nearcast.core.placement import Mode
from nearcast.core.plan import Plan
from nearcast.core.snapshot import Snapshot


class Cause(StrEnum):
    HIGH_LOAD = "high_load"  # a broker's load ratio is too high
    LOW_LOAD = "low_load"  # the cluster could do with fewer brokers
    LOAD_ROSE = "load_rose"  # a removal is called off
    NEW_BROKER = "new_broker"  # a broker that has just joined is given its share
    MANY_PUBLICATIONS = "many_publications"
    MANY_SUBSCRIBERS = "many_subscribers"
    COOLED = "cooled"  # a replicated topic needs fewer brokers, or one
    RING = "ring"  # consistent hashing says so
    UNBALANCED = "unbalanced"  # the loads of the brokers differ too much: single subscribers move
    SKEWED = "skewed"  # they differ so much that all subscribers are placed anew
    ASKED = "asked"  # somebody wants all subscribers placed anew


class Reason(msgspec.Struct, frozen=True):
    """Why: a measure, its value, and the threshold it crossed."""

    cause: Cause
    measure: str
    value: float
    threshold: float

    def __str__(self) -> str:
        return f"{self.cause}: {self.measure} {self.value:.4g}, threshold {self.threshold:.4g}"


class PlaceTopic(msgspec.Struct, frozen=True, tag=True):
    topic: str
    mode: Mode
    brokers: tuple[str, ...]
    reason: Reason
    moved_bytes_per_s: float = 0.0  # the cost: traffic whose broker changes


class AddBroker(msgspec.Struct, frozen=True, tag=True):
    reason: Reason
    count: int = 1


class RemoveBroker(msgspec.Struct, frozen=True, tag=True):
    """Drain the broker, then release it."""

    broker: str
    reason: Reason


class KeepBroker(msgspec.Struct, frozen=True, tag=True):
    """Call a removal off."""

    broker: str
    reason: Reason


ProposedChange = PlaceTopic | AddBroker | RemoveBroker | KeepBroker


class MoveSubscriber(msgspec.Struct, frozen=True, tag=True):
    """A subscriber goes from one gateway to another. No part of a `Proposal`: a plan of topics does not change."""

    subscriber: str
    source: str
    target: str
    reason: Reason


class Proposal(msgspec.Struct, frozen=True):
    policy: str
    changes: tuple[ProposedChange, ...] = ()
    predicted: Mapping[str, float] = {}  # load ratio of each broker when the changes are done
    problem: str = ""  # why the goal is not reached by these changes, and what would help

    @property
    def placements(self) -> list[PlaceTopic]:
        return [change for change in self.changes if isinstance(change, PlaceTopic)]


class Policy(Protocol):
    """A pure function: the same snapshot and plan give the same proposal. The plan names every topic that has load."""

    name: str

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal: ...
