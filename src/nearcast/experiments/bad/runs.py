"""Runs of gateways: a placement, a way of balancing, and some seeds. The world of a seed is made once for all ways."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.experiments.bad.benches import Bench
from nearcast.experiments.parallel import run_jobs
from nearcast.experiments.result import Progress
from nearcast.flow.gateway_series import GatewaySeries
from nearcast.flow.gateway_world import GatewayWorld
from nearcast.flow.gateways import GatewaySimulation
from nearcast.policies.multistage import Multistage, MultistageConfig, Scheme
from nearcast.policies.multistage.demand import Numbers
from nearcast.policies.multistage.placement import at_random, nearest, round_robin


class Placement(StrEnum):
    """Stage 1: the broker of a subscriber that comes."""

    RND = "RND"
    RR = "RR"
    NR = "NR"


class Balancing(StrEnum):
    """Stages 2 and 3."""

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
    """One thing that is compared with others."""

    placement: Placement
    balancing: Balancing
    alpha: float | None = None  # the bench's if not given
    beta_bytes_per_s: float | None = None  # alike

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
        """The broker of each subscriber when it has come."""
        if self.placement is Placement.NR:
            return nearest(world.positions, world.broker_positions)
        if self.placement is Placement.RND:
            return at_random(world.subscribers, world.brokers, seed)
        home = np.empty(world.subscribers, dtype=np.int32)
        home[np.argsort(world.arrival_s, kind="stable")] = round_robin(world.subscribers, world.brokers)
        return home


class Runs(msgspec.Struct, frozen=True, eq=False, kw_only=True):
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
