"""A campaign: draws the world and the faults of each seed, and runs many seeds on all cores.

An `Outcome` of a failed seed names the command that replays it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random

import msgspec

from nearcast.core.client.log_reader import Start
from nearcast.core.model.settings import Limits, Timing
from nearcast.sim.checkers import CHECKERS
from nearcast.sim.faults import FaultPlan, Profile
from nearcast.sim.readers import Read
from nearcast.sim.script import Add, Drop, Keep, Step
from nearcast.sim.world import START_S, Setup, World

BRISK = Timing(heartbeat_s=0.25, lease_s=1.2, dead_s=1.5, leader_s=0.7)
PATIENT = Timing(heartbeat_s=0.8, lease_s=4.0, dead_s=5.0, leader_s=1.5)


def draw_plan(seed: int) -> tuple[Setup, FaultPlan]:
    """The world and the faults of a seed."""
    rng = Random(seed ^ 0x5EED)
    profile: Profile = rng.choice([profile for profile in Profile if profile not in (Profile.CLOCKS, Profile.LOSS)])
    apart = Random(seed ^ 0xC10C).random() * len(Profile)  # drawn separately, so that other seeds keep their runs
    if apart < 1:
        profile = Profile.CLOCKS
    elif apart < 2:
        profile = Profile.LOSS
    boundaries = frozenset(rng.sample(range(1, 600), 2)) if profile in (Profile.CONTROL, Profile.ALL) else frozenset()
    setup = Setup(
        brokers=rng.choice((2, 3, 3, 4)),
        controllers=rng.choice((1, 2)),
        topics=rng.choice((1, 2)),
        pattern_subscribers=rng.choice((0, 1)),
        late_pattern_subscribers=rng.choice((0, 0, 1)),
        drains=rng.choice((0, 0, 1, 2)),
        # Without faults, no Gap may be reported; with a small limit of held frames, one may be necessary.
        limits=Limits(window=256, held=8192 if profile is Profile.CALM else rng.choice((8192, 8192, 4))),
        load_s=rng.choice((0.0, 0.0, 1.5)) if profile in (Profile.STORE, Profile.ALL) else 0.0,
        sites=rng.choice((False, True)),
        slow_connects=rng.choice((0.0, 0.05)),
    )
    if profile is Profile.CALM:  # a lost packet is a fault: connecting may take longer than a move waits
        setup = msgspec.structs.replace(setup, slow_connects=0.0)
    # From far away, attaching to many topics takes longer than a run: questions per round trip are limited.
    if not setup.sites:
        setup = msgspec.structs.replace(setup, many_topics=rng.choice((0, 0, 100)))
    idle_rng = Random(seed ^ 0x1D1E)
    if idle_rng.random() < 1 / 6:  # also drawn separately
        setup = _seldom_used(setup, idle_rng)
    timers_rng = Random(seed ^ 0x71E5)
    if timers_rng.random() < 1 / 6:
        setup = _with_other_leaders(setup, timers_rng)
    logs_rng = Random(seed ^ 0x1065)
    if logs_rng.random() < 1 / 6:
        keep = Keep(START_S + logs_rng.random() * 2, logs_rng.choice(("topic-*", "topic-0", "*")))
        members = logs_rng.choice((0, 1, 2))
        setup = msgspec.structs.replace(setup, script=(keep, *setup.script), readers=1, members=members)
        setup = _with_replicas(setup, Random(seed ^ 0x5EA1)) if profile is not Profile.LOSS else setup
    elif (several_rng := Random(seed ^ 0x5E7E)).random() < 1 / 8:
        setup = _with_several_logs(setup, several_rng)
    stops = 0 if profile is Profile.CALM or Random(seed ^ 0x570B).random() > 1 / 4 else 2  # also drawn separately
    return setup, FaultPlan(profile, boundaries, counted_from_s=START_S, stops=stops)


def _with_replicas(setup: Setup, rng: Random) -> Setup:
    """The same world with a quorum, or not. A broker that dies twice still has a replica for its third life."""
    if rng.random() < 2 / 3:
        return setup
    return msgspec.structs.replace(setup, quorum=2, replicas=3, members=min(setup.members, 1))


def _with_several_logs(setup: Setup, rng: Random) -> Setup:
    """The same world with logs that overlap, come and go; some keep so little that retention passes their readers."""
    patterns = ("topic-*", "topic-0", "*")
    quorum = rng.choice((1, 1, 2))
    begins_s = START_S + rng.random()
    limits = rng.choice(({}, {}, {"retain_s": rng.choice((1.0, 2.0))}, {"retain_bytes": 1 << 16}))
    more = Keep(begins_s + rng.random() * 1.5, rng.choice(patterns), "more", quorum=rng.choice((1, quorum)), **limits)
    steps: list[Step] = [Keep(begins_s, rng.choice(patterns)), more]
    if rng.random() < 0.6:
        dropped, drop_s = rng.choice(("kept", "more")), more.at_s + rng.random() * 1.5
        steps.append(Drop(drop_s, dropped))
        if rng.random() < 0.8:
            steps.append(Keep(drop_s + rng.choice((0.0, 0.5)), rng.choice(patterns), dropped))
    reads = [Read("more", nap_s=rng.choice((0.0, 0.0, 3.0)))]
    if rng.random() < 0.5:
        reads.append(Read("kept", start=Start.LATEST, after_s=rng.random() * 3))
    reads += _members(rng)
    return msgspec.structs.replace(
        setup,
        quorum=quorum,
        replicas=3 if quorum > 1 else 0,
        script=tuple(sorted((*steps, *setup.script), key=lambda step: step.at_s)),
        readers=1,
        members=rng.choice((0, 1, 2)),
        reads=tuple(reads),
        payload_bytes=600 if "retain_bytes" in limits else 0,
        many_topics=0,
    )


def _members(rng: Random) -> list[Read]:
    """Members of a second group of each log. They agree whether it holds."""
    drawn = [_member(rng) for _ in range(rng.choice((0, 0, 1, 2, 3)))]
    holding = {member.log: member.holds for member in reversed(drawn)}
    return [msgspec.structs.replace(member, holds=holding[member.log]) for member in drawn]


def _member(rng: Random) -> Read:
    """It comes late, may sleep, and may crash."""
    return Read(
        rng.choice(("kept", "more")),
        group="second",
        holds=rng.random() < 0.5,
        after_s=rng.random() * 2,
        crashes=rng.random() < 0.5,
        nap_s=rng.choice((0.0, 0.0, 2.0, 4.0)),
    )


def _with_other_leaders(setup: Setup, rng: Random) -> Setup:
    """The same world with controllers whose timers differ: longer ones, shorter ones, and the initial ones."""
    # Far from the store, a grant would take longer than a short lease.
    choices = (PATIENT, Timing()) if setup.sites else (PATIENT, BRISK, Timing())
    idle_s = max(setup.timing.idle_s, *(0.55 * timing.lease_s for timing in choices))  # must be the same for all
    leaders = tuple(msgspec.structs.replace(timing, idle_s=idle_s) for timing in rng.sample(choices, k=len(choices)))
    return msgspec.structs.replace(setup, timing=Timing(), leaders=leaders)


def _seldom_used(setup: Setup, rng: Random) -> Setup:
    """The same world with topics that are used so rarely that they end and begin again."""
    return msgspec.structs.replace(
        setup,
        topics=8,
        publishers=3,
        rate_per_s=2.5,
        late_subscribers=6,
        hasty_subscribers=4,
        moves_per_s=rng.choice((0.0, 0.5)),
        traffic_s=10.0,
        script=(Add(START_S + rng.random() * 4, "late"),) if rng.random() < 0.5 else (),
        timing=Timing(idle_s=rng.choice((1.3, 1.5))),
    )


# --- running


BATCH = 20  # seeds per task: enough to hide the cost of a task, few enough for a smooth progress bar


class Outcome(msgspec.Struct, frozen=True):
    """The result of one seed."""

    seed: int
    profile: str
    messages: int
    moves: int
    forced: int
    violations: list[str]
    faults: list[str]

    @property
    def replay(self) -> str:
        return f"nearcast simulate protocol --seeds 1 --first-seed {self.seed}"


def run_seed(seed: int) -> Outcome:
    return run_world(seed, *draw_plan(seed))


def run_world(seed: int, setup: Setup, plan: FaultPlan) -> Outcome:
    world = World(seed, setup, plan)
    try:
        world.run()
        violations = [wrong for check in CHECKERS.values() for wrong in check(world)]
    except Exception as error:  # a machine that crashes is a finding too, and must name its seed
        violations = [f"crashed: {error!r}"]
    history = world.history
    return Outcome(
        seed, plan.profile, history.messages, history.moves, len(history.forced), violations, list(world.faults.done)
    )


def run_seeds(seeds: range, workers: int | None = None) -> Iterator[Outcome]:
    """The outcomes of all seeds, in batches, as they finish."""
    batches = [seeds[start : start + BATCH] for start in range(0, len(seeds), BATCH)]
    workers = workers or os.cpu_count() or 1
    if workers == 1 or len(batches) == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        for outcomes in pool.map(_run_batch, batches):
            yield from outcomes


def _run_batch(seeds: range) -> list[Outcome]:
    return [run_seed(seed) for seed in seeds]
