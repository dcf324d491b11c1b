"""Speed of the flow simulator: how long a simulated second takes, and how that grows with the number of clients.

The workload is RGame with ten players per tile, on brokers that are 60 % loaded on average. The Dynamoth policy is
asked every second, except within T_wait of a change. The first step, in which every topic is placed, does not count in
the figures per simulated second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter

import msgspec
import numpy as np

from nearcast.core.model.placement import Plan
from nearcast.core.model.planning import Policy, Proposal, Snapshot
from nearcast.flow.model import FlowSettings
from nearcast.flow.simulation import FlowSimulation
from nearcast.policies.catalog import policy_named
from nearcast.workloads.rgame import Ramp, RGame

POLICY = "dynamoth"
PLAYERS_PER_TILE = 10
BROKERS = 8
LOAD = 0.6

Progress = Callable[[str], None]


class Size(msgspec.Struct, frozen=True):
    """A measured run. `seconds_per_step` is wall time for one simulated second."""

    clients: int
    topics: int
    steps: int
    policy_calls: int
    seconds: float  # of the whole run, including the placement of all topics
    seconds_per_step: float


class FlowBench(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the requested run, and how they grow with the number of clients."""

    clients: int
    topics: int
    simulated_s: int
    seconds: float  # wall time of the whole run
    rebalancings: int
    scaling: list[Size]
    exponent: float  # time per simulated second grows as the number of clients to this power


def measure_flow(
    clients: int, simulated_s: int, largest: int, progress: Progress = lambda _: None, seed: int = 0
) -> FlowBench:
    """The requested run, then runs with ten times as many clients each, up to the largest."""
    size, rebalancings = _run(clients, simulated_s, seed, progress)
    sizes = [size]
    count = clients * 10
    while count <= largest:
        steps = max(6, 200 * clients // count)
        sizes.append(_run(count, steps, seed, progress)[0])
        count *= 10
    return FlowBench(
        clients=clients,
        topics=size.topics,
        simulated_s=simulated_s,
        seconds=size.seconds,
        rebalancings=rebalancings,
        scaling=sizes,
        exponent=_exponent(sizes),
    )


def _run(clients: int, steps: int, seed: int, progress: Progress) -> tuple[Size, int]:
    progress(f"{clients:,} clients, {steps} simulated seconds")
    policy = _Counted(policy_named(POLICY))
    game, simulation = _game_and_simulation(clients, policy, seed)
    begun_s = perf_counter()
    simulation.run(1)
    placed_s = perf_counter()
    series = simulation.run(steps - 1)
    ended_s = perf_counter()
    per_step_s = (ended_s - placed_s) / max(steps - 1, 1)
    size = Size(clients, len(game.topics), steps, policy.calls, ended_s - begun_s, per_step_s)
    return size, len(series.rebalancings)


class _Counted:
    """A policy, and how often it was asked."""

    def __init__(self, policy: Policy) -> None:
        self.name = policy.name
        self.calls = 0
        self._policy = policy

    def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
        self.calls += 1
        return self._policy.propose(snapshot, plan)


def _game_and_simulation(clients: int, policy: Policy, seed: int) -> tuple[RGame, FlowSimulation]:
    tiles = max(1, clients // PLAYERS_PER_TILE)
    side = next(side for side in range(math.isqrt(tiles), 0, -1) if tiles % side == 0)
    other = tiles // side
    ramp = Ramp.steady(clients)
    game = RGame(side, other, ramp, seed)
    settings = FlowSettings(
        # CPUs are fast enough, so that only bandwidth matters to the policy.
        cpu_s_per_delivery=1e-9,
        cpu_s_per_publication=1e-9,
        brokers_max=2 * BROKERS,
        capacity_bytes_per_s=_output_bytes_per_s(RGame(side, other, ramp, seed)) / BROKERS / LOAD,
    )
    return game, FlowSimulation(game, policy, settings, seed=seed, brokers=BROKERS)


def _output_bytes_per_s(game: RGame) -> float:
    """What all brokers together send while players are at their starting positions."""
    tiles = game.demand(0.0).subscriptions.topic
    players = np.bincount(tiles).astype(np.float64)
    return float(players @ players) * game.updates_per_s * (game.message_bytes + FlowSettings().overhead_bytes)


def _exponent(sizes: Sequence[Size]) -> float:
    """The slope of log time over log clients; nan for one size."""
    if len(sizes) < 2:
        return math.nan
    logs = np.log([[size.clients, size.seconds_per_step] for size in sizes])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
