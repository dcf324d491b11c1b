"""What policies and balancers read, and what they propose. The controller decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import TopicDistances
from nearcast.core.model.placement import Mode, Plan

# --- snapshot


class BrokerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One broker that carries topics. Brokers that are down or still joining are not in the snapshot."""

    capacity_bytes_per_s: float  # T_i: outgoing bandwidth it supports
    output_bytes_per_s: float  # M_i: outgoing bandwidth measured
    cpu_share: float = 0.0
    memory_share: float = 0.0  # of what the server may use; 0 if it has no limit
    messages_per_s: float = 0.0  # delivered
    messages_high_per_s: float = 0.0  # R_out^th: more than this slows it down, as profiled; 0: not known
    connections: int = 0
    replicas: int = 0  # of its server, that answer
    coordinate: tuple[float, ...] = ()  # a position, and a height at its end; empty if not known
    site: str = "local"
    draining: bool = False  # it is being removed: give it nothing new
    removable: bool = True  # it may be proposed for removal
    fresh: bool = False  # it joined after the last change of the plan

    @property
    def load_ratio(self) -> float:
        """LR_i = M_i / T_i (Dynamoth, equation 1)."""
        return self.output_bytes_per_s / self.capacity_bytes_per_s


class TopicLoad(msgspec.Struct, frozen=True, array_like=True):
    """One topic, all its brokers together."""

    publishers: float = 0.0
    publications_per_s: float = 0.0
    subscribers: float = 0.0
    deliveries_per_s: float = 0.0
    input_bytes_per_s: float = 0.0
    output_bytes_per_s: float = 0.0


class Snapshot(msgspec.Struct, frozen=True):
    """The controller's immutable view of all load, which policies read.

    Rates are means over the last seconds. A topic's figures are sums over all its brokers; how a replicated topic
    divides among them follows from its placement.
    """

    at_s: float
    brokers: Mapping[str, BrokerLoad]
    topics: Mapping[str, TopicLoad]
    spare: int = 0  # how many more brokers could be rented
    coming: int = 0  # how many were requested and have not joined yet
    distances: Mapping[str, TopicDistances] = {}  # by topic, where they are known
    bounds: Mapping[str, Bound] = {}  # by topic, if it has one
    quorums: Mapping[str, int] = {}  # by topic that a log keeps: how many servers must have its messages, if above 1
    settling: frozenset[str] = frozenset()  # topics that move, have just moved, or are measured: leave them there


# --- proposals


class Cause(StrEnum):
    """Why something changes."""

    HIGH_LOAD = "high_load"  # a broker's load ratio is too high
    LOW_LOAD = "low_load"  # the cluster could manage with fewer brokers
    LOAD_ROSE = "load_rose"  # a removal is cancelled
    NEW_BROKER = "new_broker"  # a broker that has just joined is given its share
    MANY_PUBLICATIONS = "many_publications"
    MANY_SUBSCRIBERS = "many_subscribers"
    COOLED = "cooled"  # a replicated topic needs fewer brokers, or one
    RING = "ring"  # consistent hashing says so
    BOUND = "bound"  # a topic's messages take longer than they may
    UNBALANCED = "unbalanced"  # the loads of the brokers differ too much: single subscribers move
    SKEWED = "skewed"  # they differ so much that all subscribers are placed again
    ASKED = "asked"  # a person wants all subscribers placed again


class Reason(msgspec.Struct, frozen=True, gc=False):  # one per topic of a large plan, and never part of a cycle
    """Why: a measure, its value, and the threshold it crossed."""

    cause: Cause
    measure: str
    value: float
    threshold: float

    def __str__(self) -> str:
        return f"{self.cause}: {self.measure} {self.value:.4g}, threshold {self.threshold:.4g}"


class PlaceTopic(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Put the topic on these brokers, in this mode."""

    topic: str
    mode: Mode
    brokers: tuple[str, ...]
    reason: Reason
    moved_bytes_per_s: float = 0.0  # the cost: traffic whose broker changes
    predicted_s: float | None = None  # the latency that its bound is about, when it is there


class AddBroker(msgspec.Struct, frozen=True, tag=True):
    """Rent so many more brokers."""

    reason: Reason
    count: int = 1


class RemoveBroker(msgspec.Struct, frozen=True, tag=True):
    """Drain the broker, then release it."""

    broker: str
    reason: Reason


class KeepBroker(msgspec.Struct, frozen=True, tag=True):
    """Cancel a removal."""

    broker: str
    reason: Reason


ProposedChange = PlaceTopic | AddBroker | RemoveBroker | KeepBroker


class MoveSubscriber(msgspec.Struct, frozen=True, tag=True):
    """Moves a subscriber from one gateway to another. Not part of a `Proposal`: the plan of topics does not change."""

    subscriber: str
    source: str
    target: str
    reason: Reason


class Proposal(msgspec.Struct, frozen=True):
    """What a policy wants changed, each change with its machine-readable reason and cost; and the expected effect."""

    policy: str
    changes: tuple[ProposedChange, ...] = ()
    predicted: Mapping[str, float] = {}  # load ratio of each broker when the changes are done
    problem: str = ""  # why these changes do not reach the goal, and what would help

    @property
    def placements(self) -> list[PlaceTopic]:
        return [change for change in self.changes if isinstance(change, PlaceTopic)]


class ExplainedBroker(msgspec.Struct, frozen=True):
    """One broker for one topic."""

    broker: str
    latency_s: float | None  # the latency that the bound is about; None if not known
    ruled_out: str = ""  # why the topic may not be there, in words; empty if it may


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a topic is where it is, with the load as it is measured: what other topics do at once is not considered."""

    topic: str
    brokers: tuple[str, ...] = ()  # where it is
    bound: Bound | None = None
    latency_s: float | None = None  # today, the one that the bound is about
    violated: bool = False
    stays: str = ""  # why the policy would not move it, whatever the candidates; empty if it would
    candidates: tuple[ExplainedBroker, ...] = ()  # best first: those of known latency by it, then the others by load

    @property
    def best(self) -> ExplainedBroker | None:
        """The first that nothing rules out."""
        return next((candidate for candidate in self.candidates if not candidate.ruled_out), None)


class Policy(Protocol):
    """A pure function: the same snapshot and plan give the same proposal. The plan names every topic that has load."""

    name: str

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal: ...


@runtime_checkable
class ExplainingPolicy(Policy, Protocol):
    """A policy that can say why a topic is where it is. Raises UsageError for a topic it knows nothing of."""

    def explain(self, snapshot: Snapshot, plan: Plan, topic: str) -> Explanation: ...


@runtime_checkable
class LocatingPolicy(Policy, Protocol):
    """A policy that may need to know where brokers and clients are, beside how far they are from each other."""

    @property
    def wants_centroids(self) -> bool: ...


# --- subscribers and their gateways


Online = Mapping[str, tuple[str, ...]]  # user -> ids of the backend subscriptions it wants
PAIRS_SHOWN = 5  # of gateways, in the text of a decision


class SubscriberSnapshot(msgspec.Struct, frozen=True):
    """The subscribers at one moment: who is online at which gateway that takes subscribers, and what each user wants.

    Taking this view only copies references, because that happens on the controller's loop. The slow part is done where
    the balancer runs.
    """

    online: Mapping[str, Online]  # by gateway
    rates: Mapping[str, tuple[Mapping[str, float], ...]]  # by gateway: id -> bytes per second, one for each report
    shuffle: bool = False  # a person asks to place everyone again

    def mean_rates(self) -> dict[str, float]:
        """lambda_k of every subscription, over all reports that mention it."""
        return mean_rates(one for reports in self.rates.values() for one in reports)


class SubscriberProposal(msgspec.Struct, frozen=True):
    """What a balancer proposes: who goes where, and the effect on the coefficient of variation of the loads."""

    policy: str
    moves: tuple[MoveSubscriber, ...] = ()
    cov_before: float = 0.0
    cov_after: float = 0.0
    problem: str = ""  # why these moves do not reach the goal, and what would help

    def __str__(self) -> str:
        """The decision in one line: thousands of subscribers may move."""
        if not self.moves:
            return f"{self.policy}: no subscriber moves, coefficient of variation {self.cov_before:.3f}"
        pairs = Counter((move.source, move.target) for move in self.moves).most_common()
        shown = [f"{count} from {source} to {target}" for (source, target), count in pairs[:PAIRS_SHOWN]]
        if len(pairs) > PAIRS_SHOWN:
            shown.append(f"{sum(count for _, count in pairs[PAIRS_SHOWN:])} between others")
        return (
            f"{self.policy}: subscribers move, {', '.join(shown)}; coefficient of variation {self.cov_before:.3f} -> "
            f"{self.cov_after:.3f} ({self.moves[0].reason})"
        )


class Balancer(Protocol):
    """A pure function: the same snapshot gives the same proposal."""

    name: str

    def propose(self, snapshot: SubscriberSnapshot) -> SubscriberProposal: ...


def mean_rates(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Moving averages (BAD, section 6.1.2). A report that does not mention a subscription says nothing about it."""
    sums: dict[str, float] = {}
    counts: Counter[str] = Counter()
    for report in reports:
        for subscription, rate in report.items():
            sums[subscription] = sums.get(subscription, 0.0) + rate
            counts[subscription] += 1
    return {subscription: total / counts[subscription] for subscription, total in sums.items()}
