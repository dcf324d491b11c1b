"""A series: what a run of the flow simulator showed, step by step. Encodes to JSON as it is."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nearcast.core.placement import Mode
from nearcast.core.proposal import Proposal


class ChangeKind(StrEnum):
    JOINED = "joined"  # a rented broker is there
    DRAINING = "draining"  # a broker gets nothing new
    KEPT = "kept"  # ... and stays after all
    RELEASED = "released"  # a drained broker is gone
    PLACED = "placed"  # a topic has another placement


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change as it took effect. In order, these are what a replay in the message-level simulator needs."""

    at_s: float
    kind: ChangeKind
    broker: str = ""
    topic: str = ""
    mode: Mode | None = None
    brokers: tuple[str, ...] = ()
    began_s: float | None = None  # when a move was ordered; it took effect at `at_s`


class Rebalancing(msgspec.Struct, frozen=True):
    """A proposal with changes, and when it was made."""

    at_s: float
    proposal: Proposal


class Series(msgspec.Struct, kw_only=True):
    """One entry per step. Response times are means over messages; NaN (null in JSON) where there were none."""

    seed: int
    policy: str
    step_s: float
    at_s: list[float] = []
    clients: list[int] = []
    publications_per_s: list[float] = []
    deliveries_per_s: list[float] = []  # sent by the servers to subscribers that take them
    lost_per_s: list[float] = []  # deliveries owed that will not come
    connections_dropped: list[int] = []  # of subscribers that were too slow
    brokers: list[int] = []
    load_ratio_mean: list[float] = []
    load_ratio_max: list[float] = []
    cpu_max: list[float] = []  # share of the busiest server's CPU that is asked for
    response_s: list[float] = []
    response_p99_s: list[float] = []
    topics_moving: list[int] = []
    rebalancings: list[Rebalancing] = []
    changes: list[PlanChange] = []

    @property
    def lost(self) -> float:
        """Deliveries lost in the whole run."""
        return sum(self.lost_per_s) * self.step_s

    @property
    def deliveries(self) -> float:
        return sum(self.deliveries_per_s) * self.step_s
