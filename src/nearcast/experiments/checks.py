"""Checks of a flow simulation's results: its plan changes replayed, its added servers justified, its clients counted.

`replay` makes the plan changes of a flow simulation again in the message-level simulator, where every single message
counts. The flow simulator says which topics move when, and which brokers come and go; it knows only rates, not
messages. Here the product's own machines make the same changes in the same order, with publishers and subscribers on
the same topics, and the checkers of the protocol examine what everybody got. Quiet time between two changes is cut
short, so changes follow each other more closely than they did. Nothing fails on purpose, so any Gap, Interrupted or
forced move is a fault too.

Was every added server needed? Each addition is checked against all single moves. `Additions` stands between the
simulator and a policy, and keeps what the policy saw whenever it asked for a broker. `sufficing_move` then tries every
topic on every other broker, in plain Python and independently of the policy. If one such move would have kept every
load ratio below `lr_high`, the addition was not needed.

`sustained` says how many clients a cluster sustains while more and more join, until the response time stays too long.
The average response time of each second is averaged over the last 10 s. The sustained number of clients is the number
in the last second at which this mean was below the limit. Rebalancings make it jump for a moment, and a cluster that
recovers is not at its end. Such jumps are counted, so that they are not hidden: seconds above the limit before the end,
and the number of clients when the limit was first passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from nearcast.core.model.message import Gap
from nearcast.core.model.placement import Mode, Plan
from nearcast.core.model.planning import AddBroker, Policy, Proposal, Snapshot, TopicLoad
from nearcast.errors import UsageError
from nearcast.flow.model import ChangeKind, PlanChange
from nearcast.sim.checkers import CHECKERS, check_duplicates, check_order, check_owed
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.script import Add, Place, Remove, Step
from nearcast.sim.world import START_S, Setup, World

# --- replaying plan changes


BEGIN_S = START_S + 1.0  # clients are attached by then
END_S = 5.0  # traffic after the last change
FAULTS_SHOWN = 5


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True):
    quiet_max_s: float = 1.0  # longest time between two changes
    publishers: int = 4  # each on all topics
    subscribers: int = 150  # each on one topic, half of them from the beginning
    rate_per_s: float = 40.0  # of each publisher
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.quiet_max_s, self.rate_per_s) <= 0 or min(self.publishers, self.subscribers) < 1:
            raise UsageError("a replay needs quiet_max_s and rate_per_s above 0, and at least one client of each kind")


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome. `lost`: acknowledged, owed to an attached subscriber, and not delivered, whether reported or not."""

    messages: int
    deliveries: int
    steps: int
    moves: int
    forced: int
    joined: int
    left: int
    lost: int
    duplicated: int
    reordered: int
    faults: list[str]  # the first few violations that the checkers found
    simulated_s: float


def replay(
    topics: Sequence[str], brokers: Sequence[str], changes: Sequence[PlanChange], settings: ReplaySettings
) -> Replayed:
    """`topics`: those of the workload. `brokers`: those at the start."""
    script = script_of(changes, settings.quiet_max_s)
    last_s = script[-1].at_s if script else BEGIN_S
    setup = Setup(
        broker_names=tuple(brokers),
        topic_names=tuple(topics),
        script=script,
        publishers=settings.publishers,
        early_subscribers=settings.subscribers - settings.subscribers // 2,
        late_subscribers=settings.subscribers // 2,
        traffic_s=last_s + END_S - START_S,
        moves_per_s=0.0,
        rate_per_s=settings.rate_per_s,
        cancelled_share=0.0,
    )
    world = World(settings.seed, setup, FaultPlan(Profile.CALM))
    world.run()
    return judge(world, script)


def script_of(changes: Sequence[PlanChange], quiet_max_s: float) -> tuple[Step, ...]:
    """The changes as steps of a script. Moves that began together are one step.

    A broker leaves when the flow simulator released it: by then the policy has moved what it carried, and a removal
    that was cancelled needs no step.
    """
    steps: list[Step] = []
    now_s, before_s = BEGIN_S, 0.0
    ordered = sorted(changes, key=_began_s)
    for index, change in enumerate(ordered):
        began_s = _began_s(change)
        if change.kind not in (ChangeKind.PLACED, ChangeKind.JOINED, ChangeKind.RELEASED):
            continue
        now_s += min(began_s - before_s, quiet_max_s) if index else 0.0
        before_s = began_s
        if change.kind is ChangeKind.JOINED:
            steps.append(Add(now_s, change.broker))
        elif change.kind is ChangeKind.RELEASED:
            steps.append(Remove(now_s, change.broker))
        else:
            _place(steps, now_s, change)
    return tuple(steps)


def _began_s(change: PlanChange) -> float:
    return change.at_s if change.began_s is None else change.began_s


def _place(steps: list[Step], now_s: float, change: PlanChange) -> None:
    placed = (change.mode or Mode.SINGLE, change.brokers)
    last = steps[-1] if steps else None
    if isinstance(last, Place) and last.at_s == now_s:
        last.topics[change.topic] = placed
    else:
        steps.append(Place(now_s, {change.topic: placed}))


def judge(world: World, script: Sequence[Step]) -> Replayed:
    faults = [fault for check in CHECKERS.values() for fault in check(world)]
    gaps = [event for program in world.subscribers for _, event in program.events if isinstance(event, Gap)]
    return Replayed(
        messages=world.history.messages,
        deliveries=sum(len(program.events) for program in world.subscribers),
        steps=len(script),
        moves=world.history.moves,
        forced=len(world.history.forced),
        joined=sum(isinstance(step, Add) for step in script),
        left=sum(isinstance(step, Remove) for step in script),
        lost=len(check_owed(world)) + sum(gap.count for gap in gaps),
        duplicated=len(check_duplicates(world)),
        reordered=len(check_order(world)),
        faults=faults[:FAULTS_SHOWN],
        simulated_s=world.timeline.now_s,
    )


# --- additions


_IDLE = TopicLoad()


class Seen(msgspec.Struct, frozen=True):
    """What a policy saw when it asked for a broker."""

    snapshot: Snapshot
    plan: Plan


class Move(msgspec.Struct, frozen=True):
    """A move that would have been enough."""

    topic: str
    source: str
    target: str


class Additions:
    """A policy that remembers when it asked for a broker."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.seen: list[Seen] = []
        self._policy = policy

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        proposal = self._policy.propose(snapshot, plan)
        if any(isinstance(change, AddBroker) for change in proposal.changes):
            self.seen.append(Seen(snapshot, plan))
        return proposal


def sufficing_move(seen: Seen, lr_high: float) -> Move | None:
    """A move of one topic, or of one replica's share, that brings all load ratios below `lr_high`, or None."""
    brokers = seen.snapshot.brokers
    output = {name: broker.output_bytes_per_s for name, broker in brokers.items()}
    room = {name: lr_high * broker.capacity_bytes_per_s for name, broker in brokers.items()}
    too_high = [name for name in brokers if output[name] >= room[name]]
    targets = [name for name, broker in brokers.items() if not broker.draining]
    for topic, placement in sorted(seen.plan.topics.items()):
        share = seen.snapshot.topics.get(topic, _IDLE).output_bytes_per_s / len(placement.brokers)
        for source in placement.brokers:
            if source not in output or any(name != source for name in too_high):
                continue  # the broker is gone, or another one stays too high
            if output[source] - share >= room[source]:
                continue
            for target in targets:
                if target not in placement.brokers and output[target] + share < room[target]:
                    return Move(topic, source, target)
    return None


# --- sustained clients


MEAN_S = 10.0


class Sustained(msgspec.Struct, frozen=True, kw_only=True):
    """How many clients a cluster sustained, and for how long."""

    clients: int  # 0 if the mean was never below the limit
    until_s: float  # the last second below the limit
    ended: bool  # False: the limit was not passed for good, so `clients` is only a lower bound
    clients_at_first_breach: int  # the clients when the limit was first passed, however briefly
    seconds_above_before: float  # above the limit before `until_s`


def sustained(
    clients: Sequence[int], response_s: Sequence[float], limit_s: float, *, step_s: float = 1.0, mean_s: float = MEAN_S
) -> Sustained:
    """Both sequences have one entry per step; a response time is NaN where there were no messages."""
    if not clients or len(clients) != len(response_s):
        raise UsageError("clients and response times must have the same number of steps, at least one")
    means = trailing_means(response_s, max(1, round(mean_s / step_s)))
    below = [mean < limit_s for mean in means]  # NaN is not below
    last = max((step for step, good in enumerate(below) if good), default=-1)
    first_breach = below.index(False) if False in below else len(below) - 1
    return Sustained(
        clients=clients[last] if last >= 0 else 0,
        until_s=max(last, 0) * step_s,
        ended=last < len(below) - 1,
        clients_at_first_breach=clients[first_breach],
        seconds_above_before=below[: last + 1].count(False) * step_s,
    )


def trailing_means(values: Sequence[float], steps: int) -> list[float]:
    """For each value, the mean of it and the values before it, up to `steps` in all. NaN values are left out."""
    means: list[float] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - steps) : end] if not math.isnan(value)]
        means.append(math.fsum(known) / len(known) if known else math.nan)
    return means
