"""A campaign: many seeds on all cores, and the first failing one with the command that replays it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from nearcast.sim.checkers import CHECKERS
from nearcast.sim.drawing import draw_plan
from nearcast.sim.faults import FaultPlan
from nearcast.sim.world import Setup, World

BATCH = 20  # seeds per task: large enough to hide the cost of a task, small enough for a smooth progress bar


class Outcome(msgspec.Struct, frozen=True):
    """What one seed gave."""

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
    except Exception as error:  # a crash of a machine is a finding like any other, and must name its seed
        violations = [f"crashed: {error!r}"]
    history = world.history
    return Outcome(
        seed, plan.profile, history.messages, history.moves, len(history.forced), violations, list(world.faults.done)
    )


def run_seeds(seeds: range, workers: int | None = None) -> Iterator[Outcome]:
    """The outcomes of all seeds, batch by batch as they are done."""
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
