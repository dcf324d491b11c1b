"""How long multistage balancing takes: a greedy shuffle, and a whole run of single moves from the nearest placement.

The demand is that of the paper's simulation (section 6.2.1), at any size: each subscriber has 10 to 30 subscriptions,
rates vary around a mean, and people crowd around a few places. Popular subscriptions are chosen more often. Everything
runs in one process, on one core.

It is compared with Algorithm 1 of multistage balancing as printed in the paper, in plain Python (`reference_moves`).
There, loads are computed from equations 1-5 over the subscribers of a broker whenever they are needed, subscribers are
sorted in each iteration, and the table of similarities is made for each of them, as the pseudocode says. The readings
and deviations are those of `nearcast.policies.multistage`; without them the pseudocode does not terminate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf, sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.errors import UsageError
from nearcast.policies.multistage import Assignment, Demand, Multistage, MultistageConfig, Scheme, moving_average
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.moves import migrate
from nearcast.policies.multistage.policy import nearest

# --- the paper's pseudocode


Move = tuple[int, int, int]  # subscriber, source, target
Wanted = Sequence[Sequence[int]]  # by subscriber
Homes = list[int]  # by subscriber


def load_of(members: Sequence[int], wanted: Wanted, rates: Sequence[float]) -> float:
    """F_j by equation 5: z_jk (1 + n_jk) lambda_k over all k."""
    attached: dict[int, int] = {}
    for i in members:
        for k in wanted[i]:
            attached[k] = attached.get(k, 0) + 1
    return sum((1 + n) * rates[k] for k, n in attached.items())


def members_of(broker: int, home: Homes) -> list[int]:
    return [i for i, j in enumerate(home) if j == broker]


def mean_and_cov(loads: Sequence[float]) -> tuple[float, float]:
    """Equations 6-8."""
    mean = sum(loads) / len(loads)
    deviation = sqrt(sum((load - mean) ** 2 for load in loads) / len(loads))
    return mean, deviation / mean if mean > 0 else 0.0


def reference_moves(
    wanted: Wanted, rates: Sequence[float], home: Homes, brokers: int, config: MultistageConfig
) -> list[Move]:
    """Lines 5-25: the moves in their order. `home` is changed."""
    loads = [load_of(members_of(j, home), wanted, rates) for j in range(brokers)]
    moves: list[Move] = []
    while True:
        mean, cov = mean_and_cov(loads)
        if cov <= config.alpha or mean <= config.beta_bytes_per_s:
            return moves
        source = max(range(brokers), key=loads.__getitem__)
        found = _first_valid(wanted, rates, home, loads, source, config.scheme)
        if found is None:
            return moves
        subscriber, target = found
        home[subscriber] = target
        moves.append((subscriber, source, target))
        loads[source] = load_of(members_of(source, home), wanted, rates)
        loads[target] = load_of(members_of(target, home), wanted, rates)


def _first_valid(
    wanted: Wanted, rates: Sequence[float], home: Homes, loads: list[float], source: int, scheme: Scheme
) -> tuple[int, int] | None:
    """Lines 8-21."""
    own = {i: sum(rates[k] for k in wanted[i]) for i in members_of(source, home)}
    for i in sorted(own, key=own.__getitem__, reverse=True):
        held = [{k for member in members_of(j, home) for k in wanted[member]} for j in range(len(loads))]
        similar = [sum(rates[k] for k in wanted[i] if k in held[j]) for j in range(len(loads))]
        target = _target(loads, similar, scheme)
        if target is None or target == source or not own[i]:
            continue
        after = load_of([*members_of(target, home), i], wanted, rates)
        left = load_of([member for member in members_of(source, home) if member != i], wanted, rates)
        if after < loads[source] or (after == loads[source] and left < loads[target]):
            return i, target
    return None


def _target(loads: list[float], similar: list[float], scheme: Scheme) -> int | None:
    """Lines 11-16."""
    if scheme is Scheme.LDM:
        return min(range(len(loads)), key=loads.__getitem__)
    mean = sum(loads) / len(loads)
    below = [j for j in range(len(loads)) if loads[j] < mean]
    return max(below, key=similar.__getitem__) if below else None


def reference_shuffle(wanted: Wanted, rates: Sequence[float], brokers: int) -> Homes:
    """GSH: each time a broker gets a subscriber, its load is recomputed."""
    own = [sum(rates[k] for k in row) for row in wanted]
    members: list[list[int]] = [[] for _ in range(brokers)]
    loads = [0.0] * brokers
    home = [0] * len(wanted)
    for i in sorted(range(len(wanted)), key=own.__getitem__, reverse=True):
        j = min(range(brokers), key=loads.__getitem__)
        members[j].append(i)
        home[i] = j
        loads[j] = load_of(members[j], wanted, rates)
    return home


# --- the measurement


WANTED_MIN, WANTED_MAX = 10, 30  # subscriptions of one subscriber (section 6.2.1)
RATE_MEAN, RATE_DEVIATION = 2000.0, 500.0  # bytes per second: a million subscribers load 100 brokers above beta
SAMPLES = 10  # measurements in a moving average
POPULARITY = 2.0  # a draw is a uniform draw to this power: half of the draws are in the first quarter
CROWDS = 8  # places that people are around
CROWD_WIDTH = 0.15  # of the side of the map
ROWS_AT_ONCE = 100_000
SUBSCRIBERS_MIN = 1000
REFERENCE = (1000, 100, 10)  # subscribers, subscriptions, brokers: small enough for the plain transcription
GROWTH = (0.01, 0.1, 1.0)  # shares of the requested subscribers

ALPHA = MultistageConfig().alpha

Progress = Callable[[str], None]


class Timed(msgspec.Struct, frozen=True):
    """One plan. The times are from demand and assignment to the moves."""

    seconds: float
    cpu_seconds: float  # of this process: not affected by other work on the machine
    moves: int
    cov_before: float
    cov_after: float
    incoming_saved_share: float  # of the previous incoming load of all brokers; negative if it grew


class Size(msgspec.Struct, frozen=True):
    """The figures of one size."""

    subscribers: int
    frontend: int
    gsh: Timed
    ldm: Timed
    sdm: Timed


class Compared(msgspec.Struct, frozen=True):
    """The single moves of LDM and their plain transcription, on a size that the latter can finish."""

    subscribers: int
    backend: int
    brokers: int
    moves: int
    seconds: float
    seconds_reference: float
    ratio: float  # seconds_reference / seconds
    identical: bool  # the same moves in the same order


class MultistageBench(msgspec.Struct, frozen=True):
    """The figures of one run."""

    subscribers: int
    backend: int
    brokers: int
    gsh_s: float
    gsh_cpu_s: float
    ldm_s: float
    ldm_cpu_s: float
    ratio: float
    reference: Compared
    growth: list[Size]


def measure_multistage(
    subscribers: int, backend: int, brokers: int, *, progress: Progress = lambda _: None
) -> MultistageBench:
    if subscribers < SUBSCRIBERS_MIN or backend < WANTED_MAX or brokers < 2:
        raise UsageError(f"give at least {SUBSCRIBERS_MIN} subscribers, {WANTED_MAX} subscriptions and 2 brokers")
    growth = []
    for count in dict.fromkeys(max(SUBSCRIBERS_MIN, round(subscribers * share)) for share in GROWTH):
        progress(f"{count:,} subscribers, {backend:,} backend subscriptions, {brokers} brokers")
        growth.append(timed_size(count, backend, brokers))
    progress(f"the plain transcription, {REFERENCE[0]:,} subscribers, {REFERENCE[2]} brokers")
    reference = compared(*REFERENCE)
    requested = growth[-1]
    return MultistageBench(
        subscribers=subscribers,
        backend=backend,
        brokers=brokers,
        gsh_s=requested.gsh.seconds,
        gsh_cpu_s=requested.gsh.cpu_seconds,
        ldm_s=requested.ldm.seconds,
        ldm_cpu_s=requested.ldm.cpu_seconds,
        ratio=reference.ratio,
        reference=reference,
        growth=growth,
    )


def timed_size(subscribers: int, backend: int, brokers: int) -> Size:
    demand, assignment = made_world(subscribers, backend, brokers)
    return Size(
        subscribers=subscribers,
        frontend=len(demand.wanted),
        gsh=_timed(_config(gamma=ALPHA), demand, assignment),
        ldm=_timed(_config(), demand, assignment),
        sdm=_timed(_config(scheme=Scheme.SDM), demand, assignment),
    )


def _config(scheme: Scheme = Scheme.LDM, gamma: float = inf) -> MultistageConfig:
    """No shuffle unless gamma is given; no bounds on the mean load, so that small sizes are balanced too."""
    return MultistageConfig(scheme=scheme, alpha=ALPHA, gamma=gamma, beta_bytes_per_s=0.0, theta_bytes_per_s=0.0)


def _timed(config: MultistageConfig, demand: Demand, assignment: Assignment) -> Timed:
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    plan = Multistage(config).propose(demand, assignment)
    seconds, cpu_seconds = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    saved = 1 - plan.after.incoming / plan.before.incoming
    return Timed(seconds, cpu_seconds, len(plan.moves), plan.before.cov, plan.after.cov, saved)


def compared(subscribers: int, backend: int, brokers: int) -> Compared:
    demand, assignment = made_world(subscribers, backend, brokers)
    config = _config()
    began_s = time.perf_counter()
    steps, _ = migrate(BrokerLoads(demand, assignment), config)
    seconds = time.perf_counter() - began_s
    wanted = [row.tolist() for row in np.split(demand.wanted, demand.starts[1:-1])]
    home = assignment.home.tolist()
    began_s = time.perf_counter()
    moves = reference_moves(wanted, demand.rates.tolist(), home, brokers, config)
    seconds_reference = time.perf_counter() - began_s
    own: list[Move] = list(zip(steps.subscribers, steps.sources, steps.targets, strict=True))
    ratio = seconds_reference / seconds
    return Compared(subscribers, backend, brokers, len(moves), seconds, seconds_reference, ratio, own == moves)


def made_world(subscribers: int, backend: int, brokers: int, seed: int = 1) -> tuple[Demand, Assignment]:
    """A demand in which all are online, at the nearest broker; the same for the same arguments."""
    dice = np.random.default_rng(seed)
    means = dice.normal(RATE_MEAN, RATE_DEVIATION, size=backend).clip(RATE_MEAN / 10)
    measured = dice.normal(means, RATE_DEVIATION / 5, size=(SAMPLES, backend)).clip(0)
    # Whole bytes per second, so that sums are exact and moves can be compared one by one.
    rates = moving_average(measured).round()
    lengths, parts = [], []
    for first in range(0, subscribers, ROWS_AT_ONCE):
        length, part = _wanted(dice, min(ROWS_AT_ONCE, subscribers - first), backend)
        lengths.append(length)
        parts.append(part)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    demand = Demand(starts, np.concatenate(parts), rates, np.ones(subscribers, dtype=np.bool_))
    crowds = dice.random((CROWDS, 2))
    # Brokers are where people are. As in figure 13, one has two to three times its share, and others less than half.
    return demand, Assignment(brokers, nearest(_around(dice, crowds, subscribers), _around(dice, crowds, brokers)))


def _wanted(dice: np.random.Generator, rows: int, backend: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """How many subscriptions each row has, and which. Popular ones have low numbers. Repeated draws count once."""
    drawn = (backend * dice.random((rows, WANTED_MAX)) ** POPULARITY).astype(np.int32)
    wanted = dice.integers(WANTED_MIN, WANTED_MAX + 1, size=(rows, 1))
    drawn[np.arange(WANTED_MAX) >= wanted] = backend  # beyond what the row asks for: sorted to the end, then cut off
    drawn.sort(axis=1)
    kept = drawn < backend
    kept[:, 1:] &= drawn[:, 1:] != drawn[:, :-1]
    return kept.sum(axis=1), drawn[kept]


def _around(dice: np.random.Generator, crowds: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return crowds[dice.integers(len(crowds), size=count)] + dice.normal(0, CROWD_WIDTH, size=(count, 2))
