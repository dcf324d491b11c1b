"""Experiment 2: a game that grows from 120 to 1,200 players, balanced in several ways (Dynamoth V.D).

Figures 5 and 6 are two views of these runs; see scalability.py and server_load.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from nearcast.core.placement import Mode
from nearcast.core.proposal import Policy
from nearcast.core.ring import VIRTUAL_NODES
from nearcast.errors import UsageError
from nearcast.experiments.dynamoth.game import GOOD_S, Game
from nearcast.experiments.dynamoth.shedding import Shedding
from nearcast.experiments.parallel import run_jobs
from nearcast.experiments.result import Progress, silent
from nearcast.experiments.sustained import Sustained, sustained
from nearcast.flow.delays import Delays, LognormalDelays
from nearcast.flow.series import Series
from nearcast.flow.simulation import FlowSimulation
from nearcast.policies.dynamoth import Dynamoth
from nearcast.policies.hash_ring import HashRing
from nearcast.workloads.ramp import Ramp


class Way(StrEnum):
    """How topics are put on servers."""

    DYNAMOTH = "dynamoth"
    HASHING = "hashing"  # consistent hashing with virtual nodes
    SHEDDING = "shedding"  # the baseline of the authors' published code, see shedding.py
    IDEAL = "ideal"  # the load divided perfectly over all servers, from the start


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    game: Game = Game()
    players_first: int = 120  # V.D
    players_last: int = 1200  # V.D
    join_every_s: float = 1.0  # ours: the paper's players 'slowly join', its figures show about a quarter of an hour
    hold_s: float = 60.0  # after the last has joined
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    virtual_nodes: tuple[int, ...] = (1, 8, VIRTUAL_NODES)

    def __post_init__(self) -> None:
        if not 0 < self.players_first < self.players_last:
            raise UsageError("players_first must be above 0 and below players_last")
        if min(self.join_every_s, self.hold_s) <= 0 or not self.seeds or not self.virtual_nodes:
            raise UsageError("join_every_s and hold_s must be above 0; give at least one seed and one virtual node")

    @property
    def ramp(self) -> Ramp:
        ends_s = (self.players_last - self.players_first) * self.join_every_s
        return Ramp(((0.0, self.players_first), (ends_s, self.players_last)))

    @property
    def seconds(self) -> float:
        return self.ramp.points[-1][0] + self.hold_s


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run to be made."""

    growth: Growth
    way: Way
    seed: int
    virtual_nodes: int
    delays: Delays = LognormalDelays()

    def __str__(self) -> str:
        nodes = f", {self.virtual_nodes} virtual nodes" if self.way in (Way.DYNAMOTH, Way.HASHING) else ""
        return f"{self.way}{nodes}, seed {self.seed}"


class Done(msgspec.Struct, frozen=True):
    run: Run
    series: Series

    @property
    def sustained(self) -> Sustained:
        return sustained(self.series.clients, self.series.response_s, GOOD_S, step_s=self.series.step_s)


def make_runs(runs: Sequence[Run], progress: Progress = silent, workers: int | None = None) -> list[Done]:
    return run_jobs(make_run, runs, progress, workers)


def make_run(run: Run) -> Done:
    growth = run.growth
    workload, flow = growth.game.workload(growth.ramp, run.seed), growth.game.flow(run.virtual_nodes)
    if run.way is Way.IDEAL:
        brokers = tuple(f"b{number}" for number in range(1, growth.game.servers + 1))
        # In this mode each broker sends the same share of a topic's output, and nothing is sent twice.
        placements = dict.fromkeys(workload.topics, (Mode.ALL_SUBSCRIBERS, brokers))
        simulation = FlowSimulation(workload, None, flow, run.delays, run.seed, len(brokers), placements)
    else:
        simulation = FlowSimulation(workload, _policy(run), flow, run.delays, run.seed)
    return Done(run, simulation.run(growth.seconds))


def _policy(run: Run) -> Policy:
    if run.way is Way.HASHING:
        return HashRing(run.virtual_nodes)
    return Shedding() if run.way is Way.SHEDDING else Dynamoth()
