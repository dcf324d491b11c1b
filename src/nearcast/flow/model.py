"""The values of the flow simulator: demand, results, and settings."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from nearcast.core.controller.planning_input import WINDOW_S
from nearcast.core.model.membership import VIRTUAL_NODES
from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Proposal
from nearcast.errors import UsageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


# --- demand


def summed(numbers: IntArray, weights: FloatArray, count: int) -> FloatArray:
    """For each number below `count`, the sum of the weights next to it."""
    return np.bincount(numbers, weights=weights, minlength=count).astype(np.float64, copy=False)


class Subscriptions(NamedTuple):
    """Each entry: this client is subscribed to this topic."""

    client: IntArray
    topic: IntArray


class Publications(NamedTuple):
    """Each entry: this client publishes on this topic at this rate."""

    client: IntArray
    topic: IntArray
    rate_per_s: FloatArray


class Demand(NamedTuple):
    """What a workload asks of the cluster in one step, as arrays.

    Clients and topics are numbers from 0; a workload's `topics` gives the topics their names.
    """

    clients: int  # how many there are; their numbers are below this
    subscriptions: Subscriptions
    publications: Publications
    message_bytes: float | FloatArray  # payload: one size for all topics, or one for each

    @property
    def all_hear_themselves(self) -> bool:
        """Whether every publisher is subscribed where it publishes, known because both share the same arrays."""
        subscribed, published = self.subscriptions, self.publications
        return subscribed.client is published.client and subscribed.topic is published.topic

    def heard_by_themselves(self) -> BoolArray:
        """For each entry of `publications`, whether the client is subscribed to the topic."""
        if self.all_hear_themselves:
            return np.ones(len(self.publications.client), dtype=np.bool_)
        return np.isin(self._pairs(*self.publications[:2]), self._pairs(*self.subscriptions))

    def _pairs(self, clients: IntArray, topics: IntArray) -> IntArray:
        return topics * self.clients + clients


class Workload(Protocol):
    """What clients do over time."""

    @property
    def topics(self) -> tuple[str, ...]: ...

    def demand(self, at_s: float) -> Demand: ...


# --- results


class ChangeKind(StrEnum):
    """What a change of the plan did."""

    JOINED = "joined"  # a rented broker has joined
    DRAINING = "draining"  # a broker gets no new topics
    KEPT = "kept"  # a draining broker stays after all
    RELEASED = "released"  # a drained broker is gone
    PLACED = "placed"  # a topic has another placement


class PlanChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change as it took effect. The message-level simulator can replay a run from these, in order."""

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
    """The results of a run, one entry per step. It encodes to JSON as it is.

    Response times are means over messages; NaN (null in JSON) where there were none.
    """

    seed: int
    policy: str
    step_s: float
    at_s: list[float] = []
    clients: list[int] = []
    publications_per_s: list[float] = []
    deliveries_per_s: list[float] = []  # sent by the servers to subscribers that accept them
    lost_per_s: list[float] = []  # deliveries owed that will not arrive
    connections_dropped: list[int] = []  # of subscribers that were too slow
    brokers: list[int] = []
    load_ratio_mean: list[float] = []
    load_ratio_max: list[float] = []
    cpu_max: list[float] = []  # requested share of the busiest server's CPU
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


# --- settings


class FlowSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What servers, connections and a cluster can do, in seconds and bytes.

    The defaults describe the machines of Dynamoth's experiments (section V) as far as the paper says. Where the paper
    gives no figure but a point at which a server breaks, the constant is chosen so that a server breaks there.

    A server sends at most `fail_ratio * capacity_bytes_per_s`. Its load ratio is relative to `capacity_bytes_per_s`,
    its nominal bandwidth (T_i).
    """

    step_s: float = 1.0  # the paper's time unit t (III.A)
    window_s: float = WINDOW_S  # a snapshot's rates are means over this long, as in the controller

    # A server
    capacity_bytes_per_s: float = 6e6  # T_i; the authors' configuration (mammoth.properties) gives servers 6,000 kB/s
    fail_ratio: float = 1.15  # a server fails when its load ratio exceeds this (V.D)
    backlog_max_s: float = 10.0  # ours: the most output a server holds; anything beyond is lost
    cpu_s_per_delivery: float = 185e-6  # above 500 subscribers x 10 messages/s the CPU is full (V.C.1): 540 x 10
    cpu_s_per_publication: float = 50e-6  # ours: small, 'CPU was not a limiting factor' for publications (III.A)
    overhead_bytes: float = 64.0  # RESP frame and envelope of one delivery, counted on the wire of a Valkey server

    # A subscriber's connection
    subscriber_bytes_per_s: float = 540e3  # above 200 publishers x 10 messages/s of 264 bytes it is full (V.C.2)
    output_buffer_bytes: float = (
        8 << 20
    )  # Valkey's client-output-buffer-limit for pubsub: 8 MB (for 60 s; at once 32 MB)
    reconnect_s: float = 1.0  # ours: how long a subscriber is away after its connection was dropped

    # The cluster
    brokers_max: int = 8  # servers available (V.D)
    start_s: float = 5.0  # ours: from requesting a broker until it joins, with machines on standby as in V.B
    wait_s: float = 10.0  # T_wait (III.B): Planning's default; the authors' code waits 30 s
    move_s: float = 1.0  # a move from start to fence: at most Timing.lazy_s if no client is slow
    move_bytes: float = 500.0  # control frames of a move per client of the topic, at old and at new brokers each
    virtual_nodes: int = VIRTUAL_NODES  # of a broker on the ring that places topics on their first use

    def __post_init__(self) -> None:
        positive = ("step_s", "window_s", "capacity_bytes_per_s", "backlog_max_s", "subscriber_bytes_per_s")
        for name in positive:
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} is {getattr(self, name):g}: it must be above 0")
        for name, value in msgspec.structs.asdict(self).items():
            if not value >= 0:
                raise UsageError(f"{name} is {value:g}: it must not be negative")
        if self.fail_ratio < 1:
            raise UsageError(f"fail_ratio is {self.fail_ratio:g}: a server must carry its capacity, use 1 or more")
        if self.window_s < self.step_s:
            raise UsageError(
                f"window_s {self.window_s:g} is shorter than one step of {self.step_s:g} s: make it longer"
            )
        if min(self.brokers_max, self.virtual_nodes) < 1:
            raise UsageError("brokers_max and virtual_nodes must be 1 or more")

    @property
    def limit_bytes_per_s(self) -> float:
        """What a server can actually send."""
        return self.fail_ratio * self.capacity_bytes_per_s

    @property
    def window_steps(self) -> int:
        return round(self.window_s / self.step_s)
