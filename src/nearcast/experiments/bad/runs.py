"""Runs of gateways: a placement, a way of balancing, and some seeds; the worlds they run in, and the paper's measures.

There are the two worlds of the paper's experiments: its prototype (section 6.1) and its simulation (section 6.2). The
world of a seed is made once for all ways of balancing. The paper gives alpha and beta for the simulation only, and
neither gamma nor theta. Here gamma has the policy's default, and theta equals beta in both. For the prototype, beta is
about a quarter of the mean load of a broker after everybody has subscribed: below that, the first few subscribers alone
would make loads differ. Its alpha is 0.1, about the value of a random placement of 400 subscribers, so that there is
something to do, as in figure 6.

The measures are the load of the busiest broker, the coefficient of variation, and the number of moves (section 6.1.3).
Loads and cov are means over the time after everybody has subscribed; moves are those of the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.experiments.result import Estimate, Progress, estimate, run_jobs
from nearcast.flow.gateways import GatewaySeries, GatewaySettings, GatewaySimulation, GatewayWorld
from nearcast.policies.multistage import Multistage, MultistageConfig, Scheme
from nearcast.policies.multistage.loads import Numbers
from nearcast.policies.multistage.policy import at_random, nearest, round_robin
from nearcast.workloads.emergency.flow import ScaleSettings, gateway_world, scale_world
from nearcast.workloads.emergency.scenario import SUBSCRIBE_S, EmergencySettings, emergency_world

# --- the two worlds


class Unit(msgspec.Struct, frozen=True):
    """The unit in which loads are shown."""

    name: str
    bytes_per_s: float

    def text(self, load_bytes_per_s: float) -> str:
        return f"{load_bytes_per_s / self.bytes_per_s:,.0f} {self.name}"


class Prototype(msgspec.Struct, frozen=True, kw_only=True):
    """The world of the paper's prototype (section 6.1)."""

    emergency: EmergencySettings = EmergencySettings()
    brokers: int = 5  # 6.1.2
    alpha: float = 0.10
    beta_bytes_per_s: float = 20e3
    unit: Unit = Unit("kB/s", 1e3)

    def __post_init__(self) -> None:
        if self.brokers < 2:
            raise UsageError("there is nothing to balance on one broker: use 2 or more")

    @property
    def subscribed_s(self) -> int:
        """When everybody has subscribed."""
        return int(SUBSCRIBE_S[1] / self.emergency.speed)

    def world(self, seed: int) -> GatewayWorld:
        return gateway_world(emergency_world(self.emergency, seed), self.brokers)


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """The world of the paper's simulation (section 6.2)."""

    scale: ScaleSettings = ScaleSettings()
    alpha: float = 0.15  # 6.2.2
    beta_bytes_per_s: float = 300e6  # 6.2.2
    unit: Unit = Unit("MB/s", 1e6)

    @property
    def subscribed_s(self) -> int:
        return self.scale.subscribe_s

    def world(self, seed: int) -> GatewayWorld:
        return scale_world(self.scale, seed)


Bench = Prototype | Simulation


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What the figures depend on, printed with them."""

    world: Bench
    gateways: GatewaySettings
    gamma: float
    theta_bytes_per_s: float


def conditions_of(bench: Bench) -> Conditions:
    return Conditions(
        world=bench,
        gateways=GatewaySettings(),
        gamma=MultistageConfig().gamma,
        theta_bytes_per_s=bench.beta_bytes_per_s,
    )


# --- runs


class Placement(StrEnum):
    """Stage 1: how the broker of a new subscriber is chosen."""

    RND = "RND"
    RR = "RR"
    NR = "NR"


class Balancing(StrEnum):
    """Stages 2 and 3: how subscribers are moved."""

    NONE = "no balancing"
    LDM = "LDM"
    SDM = "SDM"
    LDM_GSH = "LDM + GSH"
    SDM_GSH = "SDM + GSH"

    @property
    def scheme(self) -> Scheme:
        return Scheme.SDM if self in (Balancing.SDM, Balancing.SDM_GSH) else Scheme.LDM

    @property
    def shuffles(self) -> bool:
        return self in (Balancing.LDM_GSH, Balancing.SDM_GSH)


class Way(msgspec.Struct, frozen=True):
    """One of the combinations that are compared."""

    placement: Placement
    balancing: Balancing
    alpha: float | None = None  # the world's if not given
    beta_bytes_per_s: float | None = None  # the world's if not given

    def __str__(self) -> str:
        return f"{self.placement} + {self.balancing}"

    def policy(self, bench: Bench) -> Multistage | None:
        if self.balancing is Balancing.NONE:
            return None
        beta = bench.beta_bytes_per_s if self.beta_bytes_per_s is None else self.beta_bytes_per_s
        return Multistage(
            MultistageConfig(
                scheme=self.balancing.scheme,
                alpha=bench.alpha if self.alpha is None else self.alpha,
                beta_bytes_per_s=beta,
                gamma=MultistageConfig().gamma if self.balancing.shuffles else inf,
                theta_bytes_per_s=beta,
            )
        )

    def home(self, world: GatewayWorld, seed: int) -> Numbers:
        """The first broker of each subscriber."""
        if self.placement is Placement.NR:
            return nearest(world.positions, world.broker_positions)
        if self.placement is Placement.RND:
            return at_random(world.subscribers, world.brokers, seed)
        home = np.empty(world.subscribers, dtype=np.int32)
        home[np.argsort(world.arrival_s, kind="stable")] = round_robin(world.subscribers, world.brokers)
        return home


class Runs(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The results of all ways with all seeds."""

    bench: Bench
    seeds: tuple[int, ...]
    done: dict[Way, list[GatewaySeries]]  # in the order of the seeds

    def first(self, way: Way) -> GatewaySeries:
        return self.done[way][0]


class _Job(msgspec.Struct, frozen=True):
    bench: Bench
    ways: tuple[Way, ...]
    seed: int

    def __str__(self) -> str:
        return f"seed {self.seed}, {len(self.ways)} runs"


def make_runs(
    bench: Bench, ways: Sequence[Way], seeds: Sequence[int], progress: Progress, workers: int | None = None
) -> Runs:
    if not seeds:
        raise UsageError("give at least one seed")
    by_seed = run_jobs(_run_seed, [_Job(bench, tuple(ways), seed) for seed in seeds], progress, workers)
    done = {way: [series[place] for series in by_seed] for place, way in enumerate(ways)}
    return Runs(bench=bench, seeds=tuple(seeds), done=done)


def _run_seed(job: _Job) -> list[GatewaySeries]:
    world = job.bench.world(job.seed)
    return [GatewaySimulation(world, way.home(world, job.seed), way.policy(job.bench)).run() for way in job.ways]


# --- measures


Interval = tuple[float, float]


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the seeds."""

    cov: float
    cov_ci95: Interval
    highest_load_bytes_per_s: float  # of the busiest broker
    highest_load_bytes_per_s_ci95: Interval
    incoming_bytes_per_s: float  # of all brokers together
    incoming_bytes_per_s_ci95: Interval
    migrations: float
    migrations_ci95: Interval
    migrations_later: float  # after the first plan
    shuffles: float


def measures_of(runs: Runs, way: Way) -> Measures:
    bench, done = runs.bench, runs.done[way]
    cov = estimate([mean_cov(series, bench) for series in done])
    highest = estimate([float(series.highest[bench.subscribed_s :].mean()) for series in done])
    incoming = estimate([mean_incoming(series, bench) for series in done])
    migrations = estimate([float(series.moves[-1]) for series in done])
    return Measures(
        cov=cov.mean,
        cov_ci95=cov.interval,
        highest_load_bytes_per_s=highest.mean,
        highest_load_bytes_per_s_ci95=highest.interval,
        incoming_bytes_per_s=incoming.mean,
        incoming_bytes_per_s_ci95=incoming.interval,
        migrations=migrations.mean,
        migrations_ci95=migrations.interval,
        migrations_later=estimate([float(series.moves_later) for series in done]).mean,
        shuffles=estimate([float(series.shuffles) for series in done]).mean,
    )


def mean_cov(series: GatewaySeries, bench: Bench) -> float:
    return float(series.cov[bench.subscribed_s :].mean())


def mean_incoming(series: GatewaySeries, bench: Bench) -> float:
    return float(series.incoming[bench.subscribed_s :].sum(axis=1).mean())


def incoming_saved(runs: Runs, way: Way, other: Way) -> Estimate:
    """The share of the other way's incoming load that this way saves, computed per seed."""
    pairs: Sequence[tuple[GatewaySeries, GatewaySeries]] = list(zip(runs.done[way], runs.done[other], strict=True))
    bench = runs.bench
    return estimate([1 - mean_incoming(mine, bench) / mean_incoming(theirs, bench) for mine, theirs in pairs])


def described(measures: Measures, unit: Unit) -> str:
    """The measures as text."""
    low, high = measures.cov_ci95
    text = f"cov {measures.cov:.3f} (95 %: {low:.3f} to {high:.3f}), "
    text += f"busiest broker {unit.text(measures.highest_load_bytes_per_s)}, "
    text += f"{measures.migrations:,.0f} moves"
    if measures.migrations:
        text += f" ({measures.migrations_later:,.0f} after the first plan)"
    return text + (f", {measures.shuffles:.0f} shuffle" if measures.shuffles else "")
