"""The plan changes of a flow simulation, made again in the message-level simulator, where every single message counts.

The flow simulator says which topics move when, and which brokers come and go; it knows no messages, only rates. Here
the product's own machines make the same changes in the same order, with publishers and subscribers on the same
topics, and the checkers of the protocol look at what everybody got. Quiet time between two changes is cut short, so
changes follow closer on each other than they did; nothing fails on purpose, so any Gap, Interrupted or forced move is
a fault too.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nearcast.core.message import Gap
from nearcast.core.placement import Mode
from nearcast.errors import UsageError
from nearcast.flow.series import ChangeKind, PlanChange
from nearcast.sim.checkers import CHECKERS, check_duplicates, check_order, check_owed
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.script import Add, Place, Remove, Step
from nearcast.sim.world import START_S, Setup, World

BEGIN_S = START_S + 1.0  # clients are attached by then
END_S = 5.0  # traffic after the last change
FAULTS_SHOWN = 5


class ReplaySettings(msgspec.Struct, frozen=True, kw_only=True):
    quiet_max_s: float = 1.0  # between two changes
    publishers: int = 4  # each on all topics
    subscribers: int = 150  # each on one topic, half of them from the beginning
    rate_per_s: float = 40.0  # of each publisher
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.quiet_max_s, self.rate_per_s) <= 0 or min(self.publishers, self.subscribers) < 1:
            raise UsageError("a replay needs quiet_max_s and rate_per_s above 0, and at least one client of each kind")


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. `lost`: acknowledged, owed to an attached subscriber, and not delivered, told or not."""

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
    faults: list[str]  # the first few of everything the checkers found
    simulated_s: float


def replay(
    topics: Sequence[str], brokers: Sequence[str], changes: Sequence[PlanChange], settings: ReplaySettings
) -> Replayed:
    """`topics`: of the workload. `brokers`: those there were at the start."""
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
    """Moves that began together are one step. A broker leaves when the flow simulator released it: by then the policy
    has moved what it carried, and a removal that was called off needs no step."""
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
