"""The comparison: forwarding and nearcast's fenced moves on the same seeds, without faults and with agent crashes.

A seed draws the number of brokers and topics, the delays of all links, the traffic and the crashes. Both protocols get
the same crashes; traffic and moves are drawn from the same distributions, but each protocol takes its own course.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from random import Random

import msgspec

from nearcast.core.placement import Mode
from nearcast.core.settings import DEFAULT_TIMING
from nearcast.sim.campaign import BATCH
from nearcast.sim.checkers import CHECKERS
from nearcast.sim.drawing import draw_plan
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.forwarding.tally import Tally, count_forwarding, count_nearcast
from nearcast.sim.forwarding.timers import Timers
from nearcast.sim.forwarding.world import ForwardingWorld, brokers_apart, one_data_centre
from nearcast.sim.world import START_S, Setup, World

CRASHES = 2  # agents that crash in a run with faults, each once

# How long an agent is away, in seconds, before a factor of 0.5 to 1.5. Less than T_dead of our protocol: an agent that
# stays away longer costs its broker, and that is another comparison.
DOWN_S = (0.05, 0.3, 1.0)


class Protocol(StrEnum):
    FORWARDING = "forwarding"  # as in the paper, brokers near the users
    FORWARDING_LINGER = "forwarding, subscribers linger"  # and leave the old server as late as ours do
    FORWARDING_LAN = "forwarding, one data centre"  # the paper's setting
    NEARCAST = "nearcast"


class Case(msgspec.Struct, frozen=True):
    protocol: Protocol
    crashes: bool


CASES = tuple(Case(protocol, crashes) for crashes in (False, True) for protocol in Protocol)


class Outcome(msgspec.Struct, frozen=True):
    """What one seed gave in one case."""

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
    except Exception as error:  # a crash of a machine is a finding like any other, and must name its seed
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
    """What all seeds gave in one case."""

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
    failed: list[int]  # seeds in which nearcast broke an invariant, or lost, doubled or reordered anything


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
    """Losses of forwarding are the finding; ours would be a failure."""
    tally = outcome.tally
    wrong = outcome.violations or tally.lost or tally.duplicated or tally.reordered
    return outcome.case.protocol is Protocol.NEARCAST and bool(wrong)
