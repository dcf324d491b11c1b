"""The comparison: forwarding and nearcast's fenced moves on the same seeds, without faults and with agent crashes.

A seed draws the number of brokers and topics, the delays of all links, the traffic and the crashes. Both protocols get
the same crashes. Traffic and moves are drawn from the same distributions, but differ between the protocols.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from random import Random

import msgspec

from nearcast.core.model.message import Message
from nearcast.core.model.placement import Mode
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.sim.campaign import BATCH, draw_plan
from nearcast.sim.checkers import CHECKERS
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.forwarding.wire import Timers
from nearcast.sim.forwarding.world import ForwardingWorld, brokers_apart, one_data_centre
from nearcast.sim.programs import Publication
from nearcast.sim.world import START_S, Setup, World

# --- the count


class Received(msgspec.Struct, frozen=True):
    """What one subscriber received, from its subscription until the end of the run."""

    topic: bytes
    joined_s: float | None  # None: it was never subscribed
    messages: list[tuple[int, int]]  # (publisher, sequence), in the order of arrival


class Tally(msgspec.Struct, frozen=True):
    """What a run lost, delivered twice or delivered out of order, counted by the same rules for every protocol.

    The count is independent of the protocols: it sees only what was acknowledged to publishers, and what subscribers
    received.
    """

    acknowledged: int = 0  # messages
    owed: int = 0  # deliveries: an acknowledged message and a subscriber that was subscribed before it was published
    lost: int = 0  # deliveries owed that were never made
    duplicated: int = 0  # deliveries of messages already delivered
    reordered: int = 0  # deliveries after a later message of the same publisher

    def __add__(self, other: Tally) -> Tally:
        return Tally(*map(sum, zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)))


def count(publications: Sequence[Publication], subscribers: Iterable[Received]) -> Tally:
    acknowledged = [publication for publication in publications if publication.acknowledged_s is not None]
    tally = Tally(acknowledged=len(acknowledged))
    for subscriber in subscribers:
        tally += _count_one(acknowledged, subscriber)
    return tally


def _count_one(acknowledged: Sequence[Publication], subscriber: Received) -> Tally:
    if subscriber.joined_s is None:
        return Tally()
    seen = set(subscriber.messages)
    owed = [
        publication
        for publication in acknowledged
        if publication.topic == subscriber.topic and publication.published_s > subscriber.joined_s
    ]
    lost = sum((publication.publisher, publication.sequence) not in seen for publication in owed)
    return Tally(
        owed=len(owed),
        lost=lost,
        duplicated=len(subscriber.messages) - len(seen),
        reordered=_count_reordered(subscriber.messages),
    )


def _count_reordered(messages: Iterable[tuple[int, int]]) -> int:
    highest: dict[int, int] = defaultdict(int)
    reordered = 0
    for publisher, sequence in messages:
        reordered += sequence < highest[publisher]
        highest[publisher] = max(sequence, highest[publisher])
    return reordered


# --- the notes of the programs, in either world


def count_forwarding(world: ForwardingWorld) -> Tally:
    publications = [publication for sender in world.senders for publication in sender.publications]
    received = [Received(program.topic, program.joined_s, program.received) for program in world.receivers]
    return count(publications, received)


def count_nearcast(world: World) -> Tally:
    publications = [publication for program in world.publishers for publication in program.publications]
    received = []
    stayed = [program for program in world.subscribers if program.left_s is None]  # nothing is owed to those that left
    for program in stayed:
        messages = [event for _, event in program.events if isinstance(event, Message)]
        numbered = [(m.publisher, m.sequence) for m in messages if m.publisher is not None and m.sequence is not None]
        received.append(Received(program.topic, program.joined_s, numbered))
    return count(publications, received)


# --- the comparison


CRASHES = 2  # agents that crash in a run with faults, each once

# How long an agent is away, in seconds, before a factor of 0.5 to 1.5. It is less than T_dead of our protocol: if an
# agent stays away longer, its broker is given up, and that would be a different comparison.
DOWN_S = (0.05, 0.3, 1.0)


class Protocol(StrEnum):
    """What is compared."""

    FORWARDING = "forwarding"  # as in the paper, brokers near the users
    FORWARDING_LINGER = "forwarding, subscribers linger"  # the same, but they leave as late as ours do
    FORWARDING_LAN = "forwarding, one data centre"  # the paper's setting
    NEARCAST = "nearcast"


class Case(msgspec.Struct, frozen=True):
    """One line of the comparison."""

    protocol: Protocol
    crashes: bool


CASES = tuple(Case(protocol, crashes) for crashes in (False, True) for protocol in Protocol)


class Outcome(msgspec.Struct, frozen=True):
    """The result of one seed in one case."""

    case: Case
    seed: int
    moves: int
    tally: Tally
    violations: list[str] = []  # of nearcast's invariants


def run_case(case: Case, seed: int) -> Outcome:
    drawn, _ = draw_plan(seed)
    setup = Setup(brokers=drawn.brokers, topics=drawn.topics, modes=(Mode.SINGLE,), cancelled_share=0.0)
    if case.protocol is Protocol.NEARCAST:
        return _run_nearcast(case, seed, setup)
    lan = case.protocol is Protocol.FORWARDING_LAN
    linger_s = DEFAULT_TIMING.linger_s if case.protocol is Protocol.FORWARDING_LINGER else 0.0
    links = one_data_centre if lan else brokers_apart
    world = ForwardingWorld(seed, setup, links=links, timers=Timers(linger_s=linger_s))
    if case.crashes:
        schedule_crashes(world)
    world.run()
    return Outcome(case, seed, world.balancer.moves, count_forwarding(world))


def _run_nearcast(case: Case, seed: int, setup: Setup) -> Outcome:
    world = World(seed, setup, FaultPlan(Profile.CALM))
    if case.crashes:
        schedule_crashes(world)
    try:
        world.run()
        violations = [wrong for check in CHECKERS.values() for wrong in check(world)]
    except Exception as error:  # a machine that crashes is a finding too, and must name its seed
        violations = [f"crashed: {error!r}"]
    return Outcome(case, seed, world.history.moves, count_nearcast(world), violations)


def schedule_crashes(world: World) -> None:
    """Crashes of agents, the same for every protocol."""
    rng = Random(world.seed ^ 0xC4A5)
    for broker in rng.sample(world.brokers, CRASHES):
        at_s = START_S + 0.3 + rng.random() * (world.setup.traffic_s - 0.3)
        down_s = rng.choice(DOWN_S) * (0.5 + rng.random())
        world.timeline.after(at_s, world.crash_control, f"agent {broker}", down_s)


def run_cases(seed: int) -> list[Outcome]:
    return [run_case(case, seed) for case in CASES]


def run_comparison(seeds: range, workers: int | None = None) -> Iterator[list[Outcome]]:
    """The outcomes of all cases, seed by seed."""
    workers = workers or os.cpu_count() or 1
    if workers == 1 or len(seeds) <= BATCH:
        yield from map(run_cases, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(run_cases, seeds, chunksize=BATCH)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all seeds in one case."""

    protocol: Protocol
    crashes: bool
    seeds: int
    moves: int
    acknowledged: int  # messages
    owed: int  # deliveries
    lost: int
    seeds_with_loss: int
    share_of_seeds_with_loss: float
    lost_per_million: float  # of the deliveries owed
    duplicated: int
    reordered: int
    failed: list[int]  # seeds in which nearcast broke an invariant, or lost, duplicated or reordered anything


def summarise(case: Case, outcomes: Sequence[Outcome]) -> Row:
    tally = sum((outcome.tally for outcome in outcomes), Tally())
    losing = sum(outcome.tally.lost > 0 for outcome in outcomes)
    return Row(
        protocol=case.protocol,
        crashes=case.crashes,
        seeds=len(outcomes),
        moves=sum(outcome.moves for outcome in outcomes),
        acknowledged=tally.acknowledged,
        owed=tally.owed,
        lost=tally.lost,
        seeds_with_loss=losing,
        share_of_seeds_with_loss=losing / len(outcomes),
        lost_per_million=1e6 * tally.lost / max(1, tally.owed),
        duplicated=tally.duplicated,
        reordered=tally.reordered,
        failed=[outcome.seed for outcome in outcomes if _failed(outcome)],
    )


def _failed(outcome: Outcome) -> bool:
    """What forwarding loses is the finding; what ours loses would be a failure."""
    tally = outcome.tally
    wrong = outcome.violations or tally.lost or tally.duplicated or tally.reordered
    return outcome.case.protocol is Protocol.NEARCAST and bool(wrong)
