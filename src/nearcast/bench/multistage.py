"""How long multistage balancing takes: a greedy shuffle, and a whole run of single moves from the nearest placement.

The demand is that of the paper's simulation (section 6.2.1) at any size: 10 to 30 subscriptions each, rates around a
mean, people crowded around a few places. Popular subscriptions are wanted more often. One process, one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import msgspec
import numpy as np
from numpy.typing import NDArray

from nearcast.bench.multistage_reference import Move, reference_moves
from nearcast.errors import UsageError
from nearcast.policies.multistage import Assignment, Demand, Multistage, MultistageConfig, Scheme, moving_average
from nearcast.policies.multistage.loads import BrokerLoads
from nearcast.policies.multistage.migration import migrate
from nearcast.policies.multistage.placement import nearest

WANTED_MIN, WANTED_MAX = 10, 30  # subscriptions of one subscriber (section 6.2.1)
RATE_MEAN, RATE_DEVIATION = 2000.0, 500.0  # bytes per second: a million subscribers load 100 brokers above beta
SAMPLES = 10  # measurements in a moving average
POPULARITY = 2.0  # a draw is a uniform one to this power: half of the draws hit the first quarter
CROWDS = 8  # places around which people are
CROWD_WIDTH = 0.15  # of the side of the map
ROWS_AT_ONCE = 100_000
SUBSCRIBERS_MIN = 1000
REFERENCE = (1000, 100, 10)  # subscribers, subscriptions, brokers: what the plain transcription finishes in seconds
GROWTH = (0.01, 0.1, 1.0)  # of the subscribers that were asked for

ALPHA = MultistageConfig().alpha

Progress = Callable[[str], None]


class Timed(msgspec.Struct, frozen=True):
    """One plan: from demand and assignment to the moves, everything counted."""

    seconds: float
    cpu_seconds: float  # of this process: the same on a machine that does other things too
    moves: int
    cov_before: float
    cov_after: float
    incoming_saved_share: float  # of the incoming load of all brokers before; negative if it grew


class Size(msgspec.Struct, frozen=True):
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
    asked = growth[-1]
    return MultistageBench(
        subscribers=subscribers,
        backend=backend,
        brokers=brokers,
        gsh_s=asked.gsh.seconds,
        gsh_cpu_s=asked.gsh.cpu_seconds,
        ldm_s=asked.ldm.seconds,
        ldm_cpu_s=asked.ldm.cpu_seconds,
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
    """The same for the same arguments: everybody online, at the nearest broker."""
    dice = np.random.default_rng(seed)
    means = dice.normal(RATE_MEAN, RATE_DEVIATION, size=backend).clip(RATE_MEAN / 10)
    measured = dice.normal(means, RATE_DEVIATION / 5, size=(SAMPLES, backend)).clip(0)
    # Whole bytes per second: sums are exact, and moves can be compared one by one.
    rates = moving_average(measured).round()
    lengths, parts = [], []
    for first in range(0, subscribers, ROWS_AT_ONCE):
        length, part = _wanted(dice, min(ROWS_AT_ONCE, subscribers - first), backend)
        lengths.append(length)
        parts.append(part)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    demand = Demand(starts, np.concatenate(parts), rates, np.ones(subscribers, dtype=np.bool_))
    crowds = dice.random((CROWDS, 2))
    # Brokers are where people are: as in figure 13, one has two to three times its share, and others below half.
    return demand, Assignment(brokers, nearest(_around(dice, crowds, subscribers), _around(dice, crowds, brokers)))


def _wanted(dice: np.random.Generator, rows: int, backend: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """How many subscriptions each row has, and which; popular ones have low numbers. A draw twice counts once."""
    drawn = (backend * dice.random((rows, WANTED_MAX)) ** POPULARITY).astype(np.int32)
    asked = dice.integers(WANTED_MIN, WANTED_MAX + 1, size=(rows, 1))
    drawn[np.arange(WANTED_MAX) >= asked] = backend  # beyond what the row asks for: sorted to the end, then cut
    drawn.sort(axis=1)
    kept = drawn < backend
    kept[:, 1:] &= drawn[:, 1:] != drawn[:, :-1]
    return kept.sum(axis=1), drawn[kept]


def _around(dice: np.random.Generator, crowds: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return crowds[dice.integers(len(crowds), size=count)] + dice.normal(0, CROWD_WIDTH, size=(count, 2))
